"""meshtf: models on named dimensions, for any mesh of devices.

mesh = mtf.Mesh("data:4;model:2", layout="batch:data;d_ff:model")
h = mtf.relu(mtf.einsum([x, w], "batch;d_ff"))  # x[batch, d_model], w[d_model, d_ff]
"""

from typing import TYPE_CHECKING, Any

from meshtf.command_line import answer_usage

answer_usage()  # `python -m meshtf --help`, before the imports below, which take seconds
from meshtf import calibration, checkpoints, cluster, decoding, errors, graph
from meshtf import layers, math, optimizers, pipeline, testing
from meshtf.cluster import connect, connected, lost_workers
from meshtf.errors import (
    ArgumentError,
    CheckpointError,
    ClusterError,
    DeviceMemoryError,
    DTypeError,
    IndexRangeError,
    LayoutError,
    LayoutWarning,
    MeshError,
    MeshtfError,
    NumericsError,
    ParseError,
    PlanError,
    ShapeError,
    MicrobatchWarning,
    TraceWarning,
)
from meshtf.forecast import Forecast
from meshtf.function.compiled_forecast import CompiledForecast
from meshtf.function.debugging import run_functions_eagerly
from meshtf.function.function import function
from meshtf.function.without_running import compile_for, explain, export
from meshtf.graph import gradients, Tensor
from meshtf.late_names import LATE, late_value
from meshtf.layout_search import search, SearchResult
from meshtf.mesh import Layout, Mesh, Partial, Placement, Replicated, Sharded
from meshtf.module import Module, scope
from meshtf.names import Dimension, Shape
from meshtf.names.calls import explain_calls_of
from meshtf.ops.control.cond_and_while_loop import cond, while_loop
from meshtf.ops.control.custom_gradient import custom_gradient
from meshtf.ops.control.layout_region import layout, replicate, shard, split, stage
from meshtf.ops.control.batch_means import mean_over_microbatches
from meshtf.ops.loops.scan import scan, scan_and_sum
from meshtf.ops.loops.map_over import map
from meshtf.ops.control.microbatch import microbatches_of, once_per_batch
from meshtf.ops.control.seeds import seed
from meshtf.ops.slicewise.slicewise import slicewise
from meshtf.ops.control.stop_gradient import recompute, stop_gradient
from meshtf.ops.elementwise.add_n import add_n
from meshtf.ops.elementwise.arithmetic import (
    add,
    divide,
    equal,
    floordiv,
    greater,
    greater_equal,
    less,
    less_equal,
    logical_and,
    logical_or,
    maximum,
    minimum,
    multiply,
    not_equal,
    outer,
    pow,
    subtract,
)
from meshtf.ops.elementwise.unary import (
    abs,
    ceil,
    cos,
    exp,
    floor,
    is_finite,
    is_nan,
    log,
    logical_not,
    negative,
    round,
    rsqrt,
    sigmoid,
    sign,
    sin,
    softplus,
    sqrt,
    square,
    tanh,
)
from meshtf.ops.elementwise.where_cast_clip import cast, clip, where
from meshtf.ops.indexing.dynamic_slice import (
    dynamic_shift,
    dynamic_slice,
    dynamic_update,
)
from meshtf.ops.indexing.gather import gather, take_along_axis
from meshtf.ops.indexing.one_hot_and_range import one_hot, range
from meshtf.ops.indexing.scatter import (
    scatter,
    scatter_add,
    scatter_update,
    segment_sum,
)
from meshtf.ops.indexing.top_k import argmax, argmin, top_1, top_k
from meshtf.ops.linear.einsum import einsum, matmul
from meshtf.ops.nn.activations import (
    elu,
    gelu,
    leaky_relu,
    relu,
    selu,
    silu,
    squared_relu,
)
from meshtf.ops.nn.cross_entropy import cross_entropy
from meshtf.ops.nn.normalization import layer_norm, rms_norm
from meshtf.ops.nn.softmax import log_softmax, softmax
from meshtf.ops.random.random import (
    categorical,
    dropout,
    random_normal,
    random_uniform,
    truncated_normal,
)
from meshtf.ops.reductions.broadcast import broadcast
from meshtf.ops.reductions.logsumexp import reduce_logsumexp
from meshtf.ops.reductions.moments import (
    reduce_prod,
    reduce_rms,
    reduce_std,
    reduce_variance,
)
from meshtf.ops.reductions.reduce import (
    reduce_all,
    reduce_any,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_sum,
)
from meshtf.ops.scans.cumulative import cumsum
from meshtf.ops.shapes.reshape import flatten, rename, reshape, transpose, unflatten
from meshtf.ops.shapes.slice import chunk, concat, pad, slice
from meshtf.ops.shapes.stack import stack, unstack
from meshtf.ops.sorting.sort import argsort, sort
from meshtf.ops.variables.fill import full, ones, ones_like, zeros, zeros_like
from meshtf.ops.variables.print_and_summary import print, scalar_summary
from meshtf.ops.windows.convolution import conv, conv_transpose
from meshtf.ops.windows.halo import halo_exchange
from meshtf.ops.windows.pooling import avg_pool, max_pool
from meshtf.ops.windows.separable_conv import separable_conv
from meshtf.ops.windows.shift import roll, shift
from meshtf.runtime.devices.resolve import logical_devices
from meshtf.runtime.host_batches import HostReader
from meshtf.runtime.placed.numerics_check import check_numerics
from meshtf.runtime.process import configure_process
from meshtf.runtime.spmd import Export
from meshtf.runtime.storage.asarray import asarray, constant
from meshtf.runtime.variable import Variable
from meshtf.saved_model.saved_model import export_saved_model, SavedModel
from meshtf.unknown_name import unknown_name
from meshtf.version import __version__

__all__ = [
    # Meshes, layouts and devices
    "Mesh",
    "Layout",
    "Dimension",
    "Shape",
    "Placement",
    "Replicated",
    "Sharded",
    "Partial",
    "logical_devices",
    "configure_process",
    "connect",
    "connected",
    "lost_workers",
    # Sharding within a program
    "layout",
    "shard",
    "split",
    "replicate",
    "stage",
    # Tensors and variables
    "Tensor",
    "Variable",
    "asarray",
    "constant",
    "full",
    "ones",
    "ones_like",
    "range",
    "zeros",
    "zeros_like",
    "HostReader",
    # Functions, gradients and control flow
    "function",
    "run_functions_eagerly",
    "gradients",
    "custom_gradient",
    "stop_gradient",
    "recompute",
    "cond",
    "while_loop",
    "map",
    "scan",
    "scan_and_sum",
    "mean_over_microbatches",
    "microbatches_of",
    "once_per_batch",
    "slicewise",
    # Forecasts, exports and checks
    "explain",
    "Forecast",
    "search",
    "SearchResult",
    "export",
    "Export",
    "compile_for",
    "CompiledForecast",
    "export_saved_model",
    "SavedModel",
    "check_numerics",
    "print",
    "scalar_summary",
    # TensorFlow's functions and Keras' models
    "from_tensorflow",
    "keras",
    # Modules, and packages of their own
    "Module",
    "scope",
    "calibration",
    "checkpoints",
    "cluster",
    "decoding",
    "errors",
    "graph",
    "layers",
    "math",
    "optimizers",
    "pipeline",
    "testing",
    # Matrix products and reductions
    "einsum",
    "matmul",
    "outer",
    "reduce_all",
    "reduce_any",
    "reduce_logsumexp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_rms",
    "reduce_std",
    "reduce_sum",
    "reduce_variance",
    "cumsum",
    # Shapes
    "broadcast",
    "chunk",
    "concat",
    "flatten",
    "pad",
    "rename",
    "reshape",
    "roll",
    "shift",
    "slice",
    "stack",
    "transpose",
    "unflatten",
    "unstack",
    # Indices, sorting and scattering
    "argmax",
    "argmin",
    "argsort",
    "gather",
    "one_hot",
    "scatter",
    "scatter_add",
    "scatter_update",
    "segment_sum",
    "sort",
    "take_along_axis",
    "top_1",
    "top_k",
    "dynamic_shift",
    "dynamic_slice",
    "dynamic_update",
    # Arithmetic and comparisons
    "add",
    "add_n",
    "divide",
    "floordiv",
    "maximum",
    "minimum",
    "multiply",
    "pow",
    "subtract",
    "equal",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "not_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "where",
    "cast",
    "clip",
    # Functions of one tensor
    "abs",
    "ceil",
    "cos",
    "exp",
    "floor",
    "is_finite",
    "is_nan",
    "log",
    "negative",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "softplus",
    "sqrt",
    "square",
    "tanh",
    # Neural networks
    "elu",
    "gelu",
    "leaky_relu",
    "relu",
    "selu",
    "silu",
    "squared_relu",
    "softmax",
    "log_softmax",
    "cross_entropy",
    "layer_norm",
    "rms_norm",
    "conv",
    "conv_transpose",
    "separable_conv",
    "avg_pool",
    "max_pool",
    "halo_exchange",
    # Random numbers
    "seed",
    "categorical",
    "dropout",
    "random_normal",
    "random_uniform",
    "truncated_normal",
    # Errors and warnings
    "MeshtfError",
    "ArgumentError",
    "CheckpointError",
    "ClusterError",
    "DTypeError",
    "DeviceMemoryError",
    "IndexRangeError",
    "LayoutError",
    "MeshError",
    "NumericsError",
    "ParseError",
    "PlanError",
    "ShapeError",
    "LayoutWarning",
    "MicrobatchWarning",
    "TraceWarning",
    # The version of this library
    "__version__",
]

for _module in (checkpoints, decoding, layers, math, optimizers):
    explain_calls_of(vars(_module), _module.__all__)
explain_calls_of(globals(), [name for name in __all__ if name not in LATE])


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name in LATE:
            return late_value(name)
        raise unknown_name(__name__, name, __all__)
