"""meshtf: models on named dimensions, for any mesh of devices.

Example:

    mesh = mtf.Mesh("data:4;model:2", layout="batch:data;d_ff:model")
    x = mtf.import_tensor(mesh, array, "batch;d_model")
    h = mtf.relu(mtf.einsum([x, w], "batch;d_ff"))
"""

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
from meshtf.function.function import explain, export, function
from meshtf.graph import (
    Op,
    OpWithStatistics,
    RenamingOp,
    Role,
    Sample,
    Spec,
    Statistics,
    Tensor,
    Window,
    WindowedOp,
    apply,
    apply_all,
    gradients,
)
from meshtf.mesh import Layout, Mesh, Partial, Sharded, Replicated
from meshtf.module import Module, scope
from meshtf.names import Dimension, Shape
from meshtf.ops.nn.activations import (
    elu,
    gelu,
    leaky_relu,
    relu,
    selu,
    silu,
    squared_relu,
)
from meshtf.ops.elementwise.add_n import add_n
from meshtf.ops.elementwise.arithmetic import (
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
from meshtf.ops.elementwise.complex import complex, conj, imag, real
from meshtf.ops.control.stop_gradient import recompute, stop_gradient
from meshtf.ops.control.slicewise import slicewise
from meshtf.ops.windows.convolution import conv, conv_transpose, separable_conv
from meshtf.ops.control.custom_gradient import custom_gradient
from meshtf.ops.indexing.dynamic_slice import (
    dynamic_shift,
    dynamic_slice,
    dynamic_update,
)
from meshtf.ops.variables.print_and_summary import print, scalar_summary
from meshtf.ops.linear.einsum import einsum, matmul
from meshtf.ops.linear.fourier import fft, ifft, irfft, rfft
from meshtf.ops.windows.halo import halo_exchange
from meshtf.ops.indexing.gather import gather, one_hot, range, segment_sum, take_along
from meshtf.ops.control.layout_region import layout, replicate, shard, split, stage
from meshtf.ops.control.cond_and_while_loop import cond, while_loop
from meshtf.ops.control.loops import scan, scan_and_sum
from meshtf.ops.nn.cross_entropy import cross_entropy
from meshtf.ops.control.microbatch import microbatches_of, once_per_batch
from meshtf.ops.reductions.moments import (
    reduce_prod,
    reduce_rms,
    reduce_std,
    reduce_variance,
)
from meshtf.ops.nn.normalization import normalize_layer, normalize_rms
from meshtf.ops.elementwise.where_cast_clip import cast, clip, where
from meshtf.ops.windows.pooling import avg_pool, max_pool
from meshtf.ops.random.random import (
    categorical,
    dropout,
    random_normal,
    random_uniform,
    truncated_normal,
)
from meshtf.ops.reductions.reduce import (
    reduce_all,
    reduce_any,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_sum,
)
from meshtf.ops.reductions.logsumexp import reduce_logsumexp
from meshtf.ops.reductions.broadcast import broadcast
from meshtf.ops.shapes.reshape import merge, rename, reshape, split_dim, transpose
from meshtf.ops.scans.cumulative import (
    cummax,
    cummin,
    cumprod,
    cumsum,
    cumulative_logsumexp,
    linear_recurrence,
)
from meshtf.ops.indexing.scatter import (
    scatter,
    scatter_add,
    scatter_update,
    segment_max,
    segment_mean,
    segment_min,
)
from meshtf.ops.control.seeds import seed
from meshtf.ops.indexing.top_k import (
    argmax,
    argmin,
    nth_largest,
    nth_smallest,
    top_1,
    top_k,
)
from meshtf.ops.windows.shift import roll, shift
from meshtf.ops.shapes.slice import chunk, concat, pad, slice
from meshtf.ops.nn.softmax import log_softmax, softmax
from meshtf.ops.sorting.sort import argsort, sort
from meshtf.ops.shapes.stack import stack, unstack
from meshtf.ops.variables.fill import full, ones, ones_like, zeros, zeros_like
from meshtf.ops.elementwise.unary import (
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
from meshtf.runtime.dataset_options import untuned
from meshtf.runtime.devices.resolve import logical_devices
from meshtf.runtime.placed.numerics_check import check_numerics
from meshtf.runtime.host_batches import HostReader
from meshtf.runtime.process import configure_process
from meshtf.runtime.spmd import Export
from meshtf.runtime.storage.import_tensor import constant, import_tensor
from meshtf.runtime.variable import Variable
from meshtf.saved_model.saved_model import SavedModel, export_saved_model
