"""Adagrad against TensorFlow's kernel and NumPy, with accumulators for elements and for rows."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf import optimizers
from meshtf.layers import initializers

MESHES = {
    "one position": {"axes": ""},
    "rows and columns": {"axes": "data:2;model:2", "layout": "a:data;b:model"},
    "ZeRO-1": {"axes": "data:2", "optimizer_layout": "a:data"},
    "live": {"axes": "model:2", "layout": "b:model", "devices": "spmd:cpu"},
}


def train(mesh, shape, grads, dtype="float32", **settings):
    """Returns a variable that begins at 1, and its accumulator, after some steps."""
    mesh = mtf.Mesh(**mesh)
    variable = mtf.Variable(mesh, shape, initializers.ones, "w", dtype=dtype)
    optimizer = optimizers.Adagrad([variable], 0.1, epsilon=1e-3, **settings)
    for step, grad in enumerate(grads):
        optimizer.apply_gradients(
            [mtf.cast(mtf.asarray(mesh, grad, shape), dtype)],
            [variable],
            mtf.asarray(mesh, np.int32(step), ""),
        )
    return variable.numpy(), optimizer.slots["w"]["accumulator"].numpy()


@pytest.mark.parametrize("mesh", MESHES)
def test_updates_equal_those_of_tensorflow(mesh, rng):
    grads = rng.normal(size=(3, 4, 6)).astype("float32")
    variable, accumulator = train(MESHES[mesh], "a:4;b:6", grads)
    expected, expected_accumulator = (
        tf.Variable(tf.ones([4, 6])),
        tf.Variable(tf.zeros([4, 6])),
    )
    for grad in grads:
        tf.raw_ops.ResourceApplyAdagradV2(
            var=expected.handle,
            accum=expected_accumulator.handle,
            lr=0.1,
            epsilon=1e-3,
            grad=grad,
        )
    np.testing.assert_allclose(variable, expected, rtol=1e-5)
    np.testing.assert_allclose(accumulator, expected_accumulator, rtol=1e-5)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("shape", ["a:4;b:6", "a:4;b:3;c:2"])
def test_rows_share_an_accumulator(shape, mesh, rng):
    sizes = mtf.Shape(shape).sizes
    grads = rng.normal(size=(3, *sizes)).astype("float32")
    variable, accumulator = train(MESHES[mesh], shape, grads, rowwise=True)
    expected, total = np.ones(sizes), np.zeros(4)
    for grad in grads:
        total += (grad**2).reshape(4, -1).mean(axis=1)
        step_sizes = 0.1 / (np.sqrt(total) + 1e-3)
        expected -= grad * step_sizes.reshape(4, *[1] * (len(sizes) - 1))
    np.testing.assert_allclose(variable, expected, rtol=1e-5)
    np.testing.assert_allclose(accumulator, total, rtol=1e-5)


def test_a_vector_has_an_accumulator_for_each_element(rng):
    grads = rng.normal(size=(2, 4)).astype("float32")
    expected = train(MESHES["one position"], "a:4", grads)
    np.testing.assert_array_equal(
        train(MESHES["one position"], "a:4", grads, rowwise=True), expected
    )


def test_a_row_of_half_floats_is_rounded_once(rng):
    grads = rng.normal(size=(1, 4, 6)).astype("float32")
    grads = tf.cast(tf.cast(grads, tf.bfloat16), tf.float32).numpy()
    half, _ = train(MESHES["one position"], "a:4;b:6", grads, "bfloat16", rowwise=True)
    expected, _ = train(MESHES["one position"], "a:4;b:6", grads, rowwise=True)
    np.testing.assert_array_equal(half, tf.cast(expected, tf.bfloat16).numpy())
