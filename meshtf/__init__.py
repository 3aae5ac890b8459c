"""meshtf: models on named dimensions, for any mesh of devices.

Example:

    mesh = mtf.Mesh("data:4;model:2", layout="batch:data;d_ff:model")
    x = mtf.import_tensor(mesh, array, "batch;d_model")
    h = mtf.relu(mtf.einsum([x, w], "batch;d_ff"))
"""

from meshtf.runtime import (
    allocator as _allocator,
    quiet as _quiet,
)  # first: before TensorFlow
from meshtf import checkpoints, decoding, layers, optimizers, pipeline
from meshtf.checkpoints import latest as latest_checkpoint
from meshtf.checkpoints import restore as restore_checkpoint
from meshtf.checkpoints import save as save_checkpoint
from meshtf.cluster import connect, connected, lost_workers
from meshtf.errors import (
    ArgumentError,
    CheckpointError,
    ClusterError,
    DTypeError,
    LayoutError,
    LayoutWarning,
    MeshError,
    MeshtfError,
    NumericsError,
    ParseError,
    PlanError,
    ShapeError,
    TraceWarning,
    explain_error,
    near_misses,
)
from meshtf.forecast import Forecast
from meshtf.function import explain, export, function
from meshtf.graph import (
    Op,
    Role,
    Sample,
    Spec,
    Tensor,
    Window,
    apply,
    apply_all,
    gradients,
)
from meshtf.mesh import Layout, Mesh, Pending, Split, Whole
from meshtf.module import Module, scope
from meshtf.names import Dimension, Shape
from meshtf.ops.activations import elu, gelu, leaky_relu, relu, selu, silu, squared_relu
from meshtf.ops.adding import add_n
from meshtf.ops.arithmetic import (
    add,
    atan2,
    divide,
    divide_no_nan,
    equal,
    floordiv,
    floormod,
    greater,
    greater_equal,
    less,
    less_equal,
    logaddexp,
    logical_and,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    multiply,
    not_equal,
    outer,
    pow,
    squared_difference,
    subtract,
)
from meshtf.ops.complex import complex, conj, imag, real
from meshtf.ops.control import recompute, slicewise, stop_gradient
from meshtf.ops.convolution import conv, conv_transpose, separable_conv
from meshtf.ops.custom import custom_gradient
from meshtf.ops.dynamic import dynamic_shift, dynamic_slice, dynamic_update
from meshtf.ops.effects import print, scalar_summary
from meshtf.ops.einsum import einsum, matmul
from meshtf.ops.fourier import fft, ifft, irfft, rfft
from meshtf.ops.halo import halo_exchange
from meshtf.ops.indexing import gather, one_hot, range, segment_sum, take_along
from meshtf.ops.laying import layout, replicate, shard, split, stage
from meshtf.ops.deciding import cond, while_loop
from meshtf.ops.loops import scan, scan_and_sum
from meshtf.ops.loss import cross_entropy
from meshtf.ops.microbatch import microbatches_of, once_per_batch
from meshtf.ops.moments import reduce_prod, reduce_rms, reduce_std, reduce_variance
from meshtf.ops.normalize import normalize_layer, normalize_rms
from meshtf.ops.pointwise import cast, clip, where
from meshtf.ops.pooling import avg_pool, max_pool
from meshtf.ops.random import (
    categorical,
    dropout,
    random_normal,
    random_uniform,
    truncated_normal,
)
from meshtf.ops.reduce import (
    broadcast,
    reduce_all,
    reduce_any,
    reduce_logsumexp,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_sum,
)
from meshtf.ops.reshape import merge, rename, reshape, split_dim, transpose
from meshtf.ops.scanning import (
    cummax,
    cummin,
    cumprod,
    cumsum,
    cumulative_logsumexp,
    linear_recurrence,
)
from meshtf.ops.scatter import (
    scatter,
    scatter_add,
    scatter_update,
    segment_max,
    segment_mean,
    segment_min,
)
from meshtf.ops.seeds import seed
from meshtf.ops.select import argmax, argmin, nth_largest, nth_smallest, top_1, top_k
from meshtf.ops.shifting import roll, shift
from meshtf.ops.slicing import chunk, concat, pad, slice
from meshtf.ops.softmax import log_softmax, softmax
from meshtf.ops.sorting import argsort, sort
from meshtf.ops.stacking import stack, unstack
from meshtf.ops.state import full, ones, ones_like, zeros, zeros_like
from meshtf.ops.unary import (
    abs,
    acos,
    angle,
    asin,
    atan,
    ceil,
    cos,
    cosh,
    digamma,
    erf,
    erfinv,
    exp,
    expm1,
    floor,
    is_finite,
    is_nan,
    lgamma,
    log,
    log1p,
    logical_not,
    negative,
    reciprocal,
    round,
    rsqrt,
    sigmoid,
    sign,
    sin,
    sinh,
    softplus,
    sqrt,
    square,
    tan,
    tanh,
)
from meshtf.runtime.datasets import untuned
from meshtf.runtime.devices import logical_devices
from meshtf.runtime.numerics import check_numerics
from meshtf.runtime.slices import HostReader
from meshtf.runtime.spmd import Export
from meshtf.runtime.stores import constant, import_tensor
from meshtf.runtime.variables import Variable
from meshtf.saved_model import SavedModel, export_saved_model
