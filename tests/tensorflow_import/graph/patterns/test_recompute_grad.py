"""Functions of `tf.recompute_grad`: their gradient, and what is computed again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.tensorflow_import.graph.custom_gradients import has_rule
from meshtf.tensorflow_import.graph.patterns.recompute_grad import first_recomputed

KERNEL = tf.Variable(np.ones([4, 4]))


@tf.recompute_grad
def twice(x: tf.Tensor, mask: tf.Tensor) -> Any:
    """Two results, of floats and integers and of a variable."""
    y = tf.nn.gelu(x @ KERNEL) * tf.cast(mask, x.dtype)
    return y, tf.tanh(y)


@tf.custom_gradient
def straight_through(x: tf.Tensor) -> Any:
    """Rounds, with the gradient of something else, which a tape computes."""

    def gradient(dy: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.tanh(x)
        return tape.gradient(y, x, dy)

    return tf.tanh(tf.round(x)), gradient


@tf.custom_gradient
def clipped(x: tf.Tensor) -> Any:
    """The identity, with a gradient between -1 and 1."""
    return tf.identity(x), lambda dy: tf.clip_by_value(dy, -1, 1)


def firsts(fn: Any) -> list[str | None]:
    """Returns what `first_recomputed` says of the functions with rules in a graph."""
    function = tf.function(fn).get_concrete_function(tf.TensorSpec([3, 4], tf.float64))
    operations = function.graph.get_operations()
    return [first_recomputed(each) for each in operations if has_rule(each)]


def test_only_recompute_grad_is_recognised() -> None:
    def fn(x: tf.Tensor) -> Any:
        y = straight_through(tf.exp(x))
        with tf.name_scope("again"):
            return twice(clipped(y), tf.ones([3, 4], tf.int32))

    assert firsts(fn) == [None, None, "again/matmul"]


def test_a_function_that_computes_something_else_again() -> None:
    """As what asks for a mode that is set only in the forward pass: all since its arguments."""
    modes = [True]

    @tf.recompute_grad
    def fn(x: tf.Tensor) -> tf.Tensor:
        return tf.tanh(tf.cos(x) if modes[0] else x)

    def traced(x: tf.Tensor) -> tf.Tensor:
        y = fn(tf.exp(x))
        modes[0] = False
        return y

    assert firsts(traced) == ["Cos"]


@pytest.mark.parametrize("axes", ["data:2", "data:2; model:2"])
def test_gradients(axes) -> None:
    """Those of TensorFlow, by arguments and by variables."""
    mask = tf.constant(np.arange(12).reshape(3, 4) % 2)

    def fn(x: tf.Tensor) -> Any:
        y, z = twice(straight_through(x), mask)
        return tf.reduce_sum(y * z)

    x = np.random.default_rng(0).normal(size=(3, 4))
    with tf.GradientTape() as tape:
        tensor = tf.constant(x)
        tape.watch(tensor)
        expected = tape.gradient(tf.function(fn)(tensor), [tensor, KERNEL])
    mesh = mtf.Mesh(axes, "rows:data; columns:model")
    program = mtf.from_tensorflow(
        fn, mesh, tf.TensorSpec([3, 4], tf.float64), inputs={"x": "rows; columns"}
    )

    @mtf.function(x="rows; columns")
    def gradients(x: mtf.Tensor) -> Any:
        return mtf.gradients([program(x)], [x, *program.trainable_variables])

    for result, value in zip(gradients(x), expected, strict=True):
        np.testing.assert_allclose(result.numpy(), value, 1e-12)
