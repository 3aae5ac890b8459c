"""Activations against TensorFlow: far out, in half floats, and their second
derivatives.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.graph import apply
from meshtf.ops.elementwise.unary_op import Unary


def put(mesh, value, shape, dtype="float32"):
    return mtf.asarray(mesh, np.asarray(value, dtype), shape)


def gradient(y, *xs):
    return [dx.numpy() for dx in mtf.gradients([y], xs)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "ours, theirs",
    [
        (mtf.gelu, lambda x: tf.nn.gelu(x, True)),
        (lambda x: mtf.gelu(x, approximate=False), tf.nn.gelu),
        (mtf.silu, tf.nn.silu),
    ],
    ids=["gelu", "gelu exact", "silu"],
)
def test_activations_equal_those_of_tensorflow_far_out_too(ours, theirs, dtype):
    values = np.concatenate([np.linspace(-12, 12, 97), [-100, 100]])
    x = mtf.cast(put(mtf.Mesh(""), values, "d:99"), dtype)
    y = ours(x)
    have = y, *mtf.gradients([y], [x])
    exact = tf.constant(x.numpy().astype("float64"))
    with tf.GradientTape() as tape:
        tape.watch(exact)
        want = theirs(exact)
    for a, b in zip(have, (want, tape.gradient(want, exact)), strict=True):
        tolerance = {"float32": 2e-6, "float16": 5e-3, "bfloat16": 4e-2}[dtype]
        np.testing.assert_allclose(
            a.numpy().astype("float64"), b, rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (lambda x: mtf.leaky_relu(x, 0.3), lambda x: tf.nn.leaky_relu(x, 0.3)),
        (mtf.squared_relu, lambda x: tf.nn.relu(x) ** 2),
        (mtf.elu, tf.nn.elu),
        (mtf.selu, tf.nn.selu),
    ],
)
def test_activations_of_half_floats(ours, theirs):
    values = np.linspace(-3, 3, 13)
    x = mtf.cast(put(mtf.Mesh(""), values, "d:13"), "bfloat16")
    y = ours(x)
    assert y.dtype == "bfloat16" and mtf.gradients([y], [x])[0].dtype == "bfloat16"
    np.testing.assert_allclose(y.numpy().astype("float32"), theirs(values), atol=0.05)


@pytest.mark.parametrize(
    "theirs",
    [lambda x: tf.nn.gelu(x, True), tf.nn.gelu, tf.nn.silu, tf.nn.elu, tf.nn.selu],
    ids=["gelu", "gelu_exact", "silu", "elu", "selu"],
)
def test_second_derivatives_of_activations(theirs, request):
    ours = request.node.callspec.id
    values = np.linspace(-4, 4, 33)
    x = put(mtf.Mesh(""), values, "d:33")
    (dx,) = mtf.gradients([apply(Unary(ours), x)], [x])
    exact = tf.constant(values)
    with tf.GradientTape() as outer:
        outer.watch(exact)
        with tf.GradientTape() as inner:
            inner.watch(exact)
            y = theirs(exact)
        dy = inner.gradient(y, exact)
    np.testing.assert_allclose(
        gradient(dx, x)[0], outer.gradient(dy, exact), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
def test_slopes_at_corners_are_those_of_tensorflow(devices):
    points = np.array([0.0, -0.0, 6.0, np.inf], "float64")
    functions = {
        mtf.relu: tf.nn.relu,
        mtf.elu: tf.nn.elu,
        mtf.selu: tf.nn.selu,
        mtf.leaky_relu: tf.nn.leaky_relu,
        abs: tf.abs,
        mtf.sqrt: tf.sqrt,
    }
    mesh = mtf.Mesh("", devices=devices)

    def both(x):
        results = []
        for ours in functions:
            y = ours(x)
            results.append((y, mtf.gradients([y], [x])[0]))
        return results

    have = mtf.function(both, mesh=mesh, x="d")(points)
    for (y, dx), theirs in zip(have, functions.values(), strict=True):
        x = tf.constant(points)
        with tf.GradientTape() as tape:
            tape.watch(x)
            want = theirs(x)
        np.testing.assert_allclose(y.numpy(), want, rtol=1e-12)
        np.testing.assert_allclose(dx.numpy(), tape.gradient(want, x), rtol=1e-12)
    infinite = mtf.asarray(mesh, [np.inf, -np.inf], "d")
    assert (mtf.math.erf(infinite).numpy() == [1, -1]).all()
    erf = mtf.function(mtf.math.erf, mesh=mesh)
    assert (erf(infinite).numpy() == [1, -1]).all()
