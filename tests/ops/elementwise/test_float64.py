"""Values of float64 are never rounded to float32 on the way."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.graph import current_executor
from meshtf.ops.linear import correlation
from meshtf.optimizers import clip_by_global_norm, global_norm

LAYOUTS = ["", "batch:data", "batch:data; h:model"]
_LAYERS = mtf.layers


def named(mesh, array, names):
    return mtf.asarray(mesh, array, names)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("taps, stride", [(5, 1), (7, 2), (9, 3)])
def test_avg_pool(layout, taps, stride, rng):
    array = tf.constant(rng.normal(size=(4, 12, 3)))
    with tf.GradientTape() as tape:
        tape.watch(array)
        want = tf.nn.avg_pool1d(array, taps, stride, "SAME")
    weights = rng.normal(size=want.shape)
    want_dx = tape.gradient(want, array, weights)
    mesh = mtf.Mesh("data:2; model:2", layout)

    def pooled(x, weights):
        y = mtf.avg_pool(x, f"h:{taps}", stride, "same")
        return y, mtf.gradients([y], [x], [weights])[0]

    for function in (pooled, mtf.function(pooled, mesh=mesh)):
        y, dx = function(
            named(mesh, array, "batch;h;d"), named(mesh, weights, "batch;h;d")
        )
        np.testing.assert_allclose(y.numpy(), want, rtol=1e-14, atol=1e-14)
        np.testing.assert_allclose(dx.numpy(), want_dx, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_global_norm(layout, rng):
    mesh = mtf.Mesh("data:2; model:2", layout)
    x_values, y_values = rng.normal(size=(4, 6)), rng.normal(size=4).astype("float32")
    x, y = named(mesh, x_values, "batch;h"), named(mesh, y_values, "batch")
    want = np.sqrt(np.square(x_values).sum() + np.square(y_values).sum())
    norm = global_norm([x, None, y])
    assert norm.dtype == "float64"
    np.testing.assert_allclose(norm.numpy(), want, rtol=1e-7)
    np.testing.assert_allclose(
        global_norm([x]).numpy(), np.linalg.norm(x_values), rtol=1e-14
    )
    (clipped,), _ = clip_by_global_norm([x], 0.5)
    np.testing.assert_allclose(
        clipped.numpy(), x_values * (0.5 / np.linalg.norm(x_values)), rtol=1e-14
    )
    assert global_norm([y]).dtype == "float32"


PROGRAMS = {
    "statistics": lambda x: [
        correlation.rms(x, "d"),
        correlation.correlation(x, x, "batch"),
        mtf.reduce_std(x, "d"),
        mtf.reduce_rms(x),
        mtf.reduce_variance(x),
    ],
    "norms": lambda x: [mtf.layer_norm(x, "d"), mtf.rms_norm(x, "d")],
    "softmax": lambda x: [
        mtf.softmax(x, "d"),
        mtf.log_softmax(x, "d"),
        mtf.softmax(x, "d", sink_logit=0.3),
        mtf.reduce_logsumexp(x, "d", 0.1),
    ],
    "losses": lambda x: [
        _LAYERS.mean_squared_error(x, x * 0.3),
        _LAYERS.sigmoid_cross_entropy(x, x > 0),
        _LAYERS.softmax_cross_entropy(
            x, mtf.argmax(x, "d"), "d", 1e-4, label_smoothing=0.1
        ),
        _LAYERS.softmax_cross_entropy(
            x, mtf.softmax(x, "d"), "d", 1e-4, mtf.reduce_sum(x, "d")
        ),
    ],
    "scans": lambda x: [
        mtf.cumsum(x, "h"),
        mtf.math.cumprod(x, "h"),
        mtf.math.cumulative_logsumexp(x, "h"),
        mtf.math.linear_recurrence(x, x, "h"),
    ],
    "pooling": lambda x: [
        mtf.avg_pool(x, "h:3", 1, "same"),
        mtf.max_pool(x, "h:3", 1, "same"),
    ],
    "clip_gradient": lambda x: mtf.gradients([_LAYERS.clip_gradient(x, 0.1) * x], [x]),
    "segments": lambda x: [
        mtf.math.segment_mean(x, mtf.range(x.mesh, "h:6") // 2, "bins:3")
    ],
    "activations": lambda x: [
        mtf.gelu(x),
        mtf.gelu(x, approximate=False),
        mtf.silu(x),
        mtf.elu(x),
        mtf.selu(x),
        mtf.softplus(x),
    ],
    "waves": lambda x: [
        _LAYERS.sinusoids(mtf.range(x.mesh, "h:6"), "d:4", dtype="float64"),
        *_LAYERS.rope(mtf.range(x.mesh, "h:6"), "d:4", dtype="float64"),
        _LAYERS.distance_slopes(
            mtf.range(x.mesh, "h:6"),
            mtf.range(x.mesh, "memory:6"),
            "heads:2",
            dtype="float64",
        ),
    ],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_number_of_a_program_is_float32(name, rng):
    """A value that once was rounded to float32 is no float64, whatever its type says
    later.
    """
    recorded = []
    mesh = mtf.Mesh("data:2; model:2", "batch:data; h:model")

    @mtf.function(mesh=mesh)
    def program(x):
        ys = PROGRAMS[name](x)
        back = mtf.gradients([y for y in ys if y.dtype == "float64"], [x])
        recorded.extend(current_executor().nodes)
        return ys, [dx for dx in back if dx is not None]

    ys, _ = program(named(mesh, rng.normal(size=(4, 6, 4)), "batch;h;d"))
    assert all(y.dtype == "float64" for y in ys)
    rounded = [node for node in recorded for y in node.outputs if y.dtype == "float32"]
    assert not rounded, [(node.op, str(node.source)) for node in rounded]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fading_dropout(layout, rng):
    mesh, array = mtf.Mesh("data:2; model:2", layout), rng.normal(size=(4, 6))
    with mtf.seed(3):
        y = _LAYERS.AnnealedDropout(0.3, 0, 7)(
            named(mesh, array, "batch;h"), mtf.full(mesh, "", 3, "int32"), training=True
        ).numpy()
    is_kept = y != 0
    assert is_kept.any() and not is_kept.all()
    np.testing.assert_allclose(
        y[is_kept], (array / (1 - 0.3 * 4 / 7))[is_kept], rtol=1e-15
    )
