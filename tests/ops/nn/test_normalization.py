"""The cores of layer norm and RMS norm: moments, cancellation, half floats, second
derivatives.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf


@pytest.fixture(params=["", "d:x", "b:x"])
def mesh(request):
    return mtf.Mesh("x:2", layout=request.param)


def random_values(shift=0.0):
    return np.random.default_rng(0).normal(shift, 2.0, (4, 64)).astype("float32")


def layer(x, epsilon):
    x = tf.cast(x, tf.float64)
    mean, variance = tf.nn.moments(x, [1], keepdims=True)
    return (x - mean) / tf.sqrt(variance + epsilon)


def rms(x, epsilon):
    x = tf.cast(x, tf.float64)
    return x / tf.sqrt(tf.reduce_mean(tf.square(x), 1, keepdims=True) + epsilon)


@pytest.mark.parametrize("ours, theirs", [(mtf.layer_norm, layer), (mtf.rms_norm, rms)])
def test_values_and_epsilon(mesh, ours, theirs):
    x = mtf.asarray(mesh, random_values(), "b;d")
    np.testing.assert_allclose(
        ours(x, "d", 0.5).numpy(), theirs(random_values(), 0.5), atol=1e-5
    )


def test_a_large_mean_does_not_cancel(mesh):
    x = mtf.asarray(mesh, random_values(1000.0), "b;d")
    y = mtf.layer_norm(x, "d")
    np.testing.assert_allclose(y.numpy(), layer(random_values(1000.0), 1e-6), atol=1e-3)


def test_half_floats_have_statistics_in_float32(mesh):
    x = mtf.asarray(mesh, random_values(20.0), "b;d", dtype="bfloat16")
    y = mtf.layer_norm(x, "d")
    assert y.dtype == "bfloat16"
    np.testing.assert_allclose(
        y.numpy().astype("float32"), layer(x.numpy().astype("float32"), 1e-6), atol=2e-2
    )
    (dx,) = mtf.gradients([mtf.square(y)], [x])
    assert dx.dtype == "bfloat16"


@pytest.mark.parametrize("ours, theirs", [(mtf.layer_norm, layer), (mtf.rms_norm, rms)])
def test_second_derivatives(mesh, ours, theirs):
    x = mtf.asarray(mesh, random_values(), "b;d")
    (dx,) = mtf.gradients([mtf.sin(ours(x, "d"))], [x])
    (ddx,) = mtf.gradients([mtf.square(dx)], [x])
    v = tf.constant(random_values(), tf.float64)
    with tf.GradientTape() as outer:
        outer.watch(v)
        with tf.GradientTape() as inner:
            inner.watch(v)
            y = tf.sin(theirs(v, 1e-6))
        y = tf.square(inner.gradient(y, v))
    np.testing.assert_allclose(ddx.numpy(), outer.gradient(y, v), rtol=1e-3, atol=1e-5)


def test_what_is_refused(mesh):
    x = mtf.asarray(mesh, random_values(), "b;d")
    with pytest.raises(mtf.ShapeError, match='no dimension "e"'):
        mtf.layer_norm(x, "e")
    with pytest.raises(mtf.DTypeError, match="rms_norm does not take int32"):
        mtf.rms_norm(mtf.cast(x, "int32"), "d")


@pytest.mark.parametrize("axes, layout", [("x:4", "d:x"), ("x:2;y:2", "d:x+y")])
@pytest.mark.parametrize("size", [3, 61, 62])
@pytest.mark.parametrize("ours, theirs", [(mtf.layer_norm, layer), (mtf.rms_norm, rms)])
def test_shards_count_by_their_elements(axes, layout, size, ours, theirs):
    """A large mean shows wrong weights, and a shard without elements."""
    values = random_values(1000.0)[:, :size]
    x = mtf.asarray(mtf.Mesh(axes, layout), values, "b;d")
    y = ours(x, "d", 0.5).numpy()
    np.testing.assert_allclose(y, theirs(values, 0.5), atol=1e-3)
