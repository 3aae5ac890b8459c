"""Keras' division of rows is recognised, and no other branch is taken for it."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf

X = tf.TensorSpec([8, 3])


def divided(values: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Returns rows, divided by those of x at the same places."""
    rows = tf.IndexedSlices(values, tf.constant([5, 0, 5]), tf.constant([8, 3]))
    return keras.ops.divide(rows, x).values


def test_rows_are_divided_by_rows() -> None:
    program = mtf.from_tensorflow(
        divided, mtf.Mesh("data:2"), tf.TensorSpec([3, 3]), X, check=False
    )
    rng = np.random.default_rng(0)
    values, x = rng.normal(size=(3, 3)), rng.normal(size=(8, 3))
    expected = values / x[[5, 0, 5]]
    np.testing.assert_allclose(program(values, x).numpy(), expected, rtol=1e-5)


def chosen(x: tf.Tensor) -> tf.Tensor:
    return tf.cond(
        tf.reduce_any(x > 0), lambda: tf.boolean_mask(x, x[:, 0] > 0), lambda: x
    )


def without_zeros(x: tf.Tensor) -> tf.Tensor:
    """The same question as in the division of rows, and another answer."""
    wrong = tf.reduce_any(tf.equal(x, 0) | tf.math.is_nan(x), axis=1)
    return tf.cond(
        tf.reduce_any(wrong), lambda: tf.boolean_mask(x, ~wrong), lambda: x / 2.0
    )


@pytest.mark.parametrize("fn", [chosen, without_zeros])
def test_other_branches_whose_sizes_depend_on_values_are_refused(fn) -> None:
    with pytest.raises(mtf.ArgumentError, match="Where at .*size of its result"):
        mtf.from_tensorflow(fn, mtf.Mesh("data:2"), X, check=False)
