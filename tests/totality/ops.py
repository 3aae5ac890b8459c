"""Legal calls of the functions of `meshtf` itself."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import tensorflow as tf

import meshtf as mtf
from meshtf.ops.control.stop_gradient import StopGradient
from tests.totality.calls import Call, call, tensor

_FLOATS = (
    "abs acos asin atan ceil cos cosh digamma elu erf erfinv exp expm1 floor is_finite "
    "is_nan lgamma log log1p negative reciprocal relu round rsqrt selu sigmoid sign "
    "silu sin sinh softplus sqrt square squared_relu tan tanh stop_gradient replicate "
    "conj real zeros_like ones_like reduce_max reduce_mean reduce_min reduce_prod "
    "reduce_rms reduce_std reduce_sum reduce_variance gelu leaky_relu"
).split()
_PAIRS = (
    "add atan2 divide divide_no_nan equal floordiv floormod greater greater_equal less "
    "less_equal logaddexp maximum minimum multiply not_equal pow squared_difference "
    "subtract"
).split()
_ALONG = (
    "argmax argmin argsort cummax cummin cumprod cumsum cumulative_logsumexp "
    "layer_norm rms_norm sort top_1 unstack"
).split()
_NUMBERS = {"x": "int float", "y": "int float"}


def pointwise(t: SimpleNamespace) -> dict[str, Call]:
    """Returns calls of what works element by element."""
    calls = {name: call(t.x) for name in _FLOATS}
    calls |= {name: call(t.x, t.y, takes=_NUMBERS) for name in _PAIRS}
    calls |= {
        f"logical_{name}": call(t.truth, t.truth) for name in ("and", "or", "xor")
    }
    return calls | {
        "reduce_logsumexp": call(t.x, takes={"sink_logit": "int float"}),
        "logical_not": call(t.truth),
        "reduce_all": call(t.truth),
        "reduce_any": call(t.truth),
        "angle": call(t.z),
        "imag": call(t.z),
        "add_n": call([t.x, t.y]),
        "complex": call(t.x, t.y, takes={"re": "int float", "im": "int float"}),
        "cast": call(t.x, "float32"),
        "clip": call(t.x, 0.0, 1.0),
        "where": call(t.truth, t.x, t.y, takes=_NUMBERS),
        "broadcast": call(t.x, "batch:4;d:6;e:2"),
        "outer": call(t.x, t.y, takes=_NUMBERS),
        "einsum": call([t.x, t.v], "batch;e"),
        "matmul": call(t.x, t.v),
    }


def shaping(t: SimpleNamespace) -> dict[str, Call]:
    """Returns calls of what moves elements and changes names."""
    calls = {name: call(t.x, "d") for name in _ALONG}
    square = tensor(t.mesh, "batch:4;block:2;row:4")
    return calls | {
        "softmax": call(t.x, "d", takes={"sink_logit": "int float"}),
        "log_softmax": call(t.x, "d", takes={"sink_logit": "int float"}),
        "chunk": call(t.x, "d", 2),
        "concat": call([t.x, t.y], "d"),
        "stack": call([t.x, t.y], "n"),
        "fft": call(t.z, "d"),
        "ifft": call(t.z, "d"),
        "rfft": call(t.x, "d"),
        "irfft": call(t.z, "d"),
        "halo_exchange": call(square, "block", "row", 1, 1),
        "flatten": call(t.x, "batch;d", "m"),
        "rename": call(t.x, "d", "e"),
        "reshape": call(t.x, "batch:4;a:2;b:3"),
        "unflatten": call(t.x, "d", "a:2;b:3"),
        "transpose": call(t.x, "d;batch"),
        "pad": call(t.x, "d", 1, 1),
        "roll": call(t.x, "d", 1),
        "shift": call(t.x, "d", 1),
        "slice": call(t.x, "d", 1, 2),
        "dynamic_shift": call(t.x, "d", t.step),
        "dynamic_slice": call(t.x, "d", t.step, 2),
        "dynamic_update": call(t.x, "d", t.step, tensor(t.mesh, "batch:4;d:2")),
        "linear_recurrence": call(t.x, t.y, "d"),
        "top_k": call(t.x, "d", "k:2"),
        "nth_largest": call(t.x, "d", 1),
        "nth_smallest": call(t.x, "d", 1),
    }


def by_number(t: SimpleNamespace) -> dict[str, Call]:
    """Returns calls of what goes by ids, and of what makes tensors."""
    sum_up = call(t.x, t.ids, "bins:4")
    rows = tensor(t.mesh, "e:2;d:6")
    indices = tensor(t.mesh, "n:2", "int32")
    new = tensor(t.mesh, "n:2;d:6")
    shapes = {name: call(t.mesh, "batch:4") for name in ("zeros", "ones")}
    draws = {
        name: call(t.mesh, "batch:4", seed=1, takes={"seed": "int"})
        for name in ("random_normal", "random_uniform", "truncated_normal")
    }
    return (
        shapes
        | draws
        | {
            "gather": call(t.x, t.ids, "d"),
            "one_hot": call(t.ids, "v:4"),
            "range": call(t.mesh, "a:4"),
            "segment_sum": sum_up,
            "segment_max": sum_up,
            "segment_mean": sum_up,
            "segment_min": sum_up,
            "take_along_axis": call(t.x, t.n, "d"),
            "scatter": call(t.x, t.ids, "bins:4"),
            "scatter_add": call(rows, indices, new, "e"),
            "scatter_update": call(rows, indices, new, "e"),
            "full": call(t.mesh, "batch:4", 1.5, takes={"value": "int float"}),
            "constant": call(t.mesh, 1.5, "batch:4", takes={"value": "int float"}),
            "asarray": call(t.mesh, np.ones(3), "a", takes={"array": "list array"}),
            "categorical": call(
                t.x, "d", takes={"temperature": "int float", "seed": "int"}
            ),
            "dropout": call(t.x, 0.5, takes={"seed": "int"}),
            "cross_entropy": call(t.x, t.ids, "d"),
        }
    )


def windows(t: SimpleNamespace) -> dict[str, Call]:
    """Returns calls of convolutions and pooling."""
    image = tensor(t.mesh, "batch:4;h:8;c:2")
    kernel = tensor(t.mesh, "k:3;c:2;o:2")
    deep = tensor(t.mesh, "k:3;c:2")
    flat = tensor(t.mesh, "c:2;o:2")
    return {
        "conv": call(image, kernel, "h:k"),
        "conv_transpose": call(image, kernel, "h:k"),
        "separable_conv": call(image, deep, flat, "h:k"),
        "avg_pool": call(image, "h:2"),
        "max_pool": call(image, "h:2"),
    }


def control(t: SimpleNamespace) -> dict[str, Call]:
    """Returns calls of loops, gradients, regions and effects."""

    def is_more(x):
        return mtf.reduce_sum(x) < 100.0

    return {
        "cond": call(t.yes, lambda: t.x, lambda: t.y),
        "while_loop": call(is_more, t.fn, t.y),
        "map": call(t.fn, t.x, "d"),
        "scan": call(lambda s, row: (s, row), None, t.x, "d", takes={"init": "none"}),
        "scan_and_sum": call(
            lambda s, row: (s, row, None), None, t.x, "d", takes={"init": "none"}
        ),
        "recompute": call(t.fn, then=lambda f: f(t.x)),
        "custom_gradient": call(lambda x: (x, lambda dy: [dy]), then=lambda f: f(t.x)),
        "slicewise": call(t.fn, [t.x], shardable="batch"),
        "gradients": call([mtf.reduce_sum(t.v.tensor())], [t.v]),
        "once_per_batch": call(lambda x: None, t.x),
        "mean_over_microbatches": call(t.one),
        "microbatches_of": call("batch"),
        "print": call(t.one, "x"),
        "scalar_summary": call("loss", t.one, 3, takes={"step": "int"}),
        "layout": call("d:model"),
        "shard": call(t.x, "d:model"),
        "split": call(t.x, "d", "model"),
        "stage": call(0),
        "scope": call("inner"),
        "seed": call(1, takes={"values": "int"}),
        "function": call(t.fn, then=lambda f: f(t.x)),
        "explain": call(t.function, t.x, own=("args",)),
        "export": call(t.function, t.x, own=("args",)),
        # It needs the compiler of devices that are not there.
        "compile_for": call(
            t.function, t.x, topology="v5e:8", own=("args",), runs=False
        ),
        "export_saved_model": call(t.function, t.x, own=("args",)),
        "from_tensorflow": call(
            tf.nn.relu,
            t.mesh,
            tf.TensorSpec([4, 2]),
            own=("specs",),
            inputs={"features": "batch; d"},
            check=False,
        ),
        "graph.apply": call(StopGradient(), t.x),
        "graph.apply_all": call(StopGradient(), t.x),
        "check_numerics": call(),
        "run_functions_eagerly": call(),
    }


def around(t: SimpleNamespace) -> dict[str, Call]:
    """Returns calls of what is about files, devices and workers."""
    import tensorflow as tf

    return {
        "connect": call("no port", runs=False),
        "connected": call(),
        "configure_process": call(
            keep_freed_memory=True,
            threads="shared",
            freeze_imports=True,
            log_level="ERROR",
            runs=False,
        ),
        "lost_workers": call(),
        "logical_devices": call(1),
        "cluster.without_autotuning": call(tf.data.Dataset.range(3)),
        "errors.explain_error": call(
            "a headline.", takes={"headline": "all", "way_out": "all"}
        ),
        "errors.near_misses": call("bach", ["batch"]),
    }
