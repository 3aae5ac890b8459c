"""Sums by several kernels are those of NumPy, in as many ops as is worth it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from meshtf.ops.sums import sum_over


@pytest.mark.parametrize("shape", [(16, 9, 12, 11), (2, 3, 4, 5), (4, 8192)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_every_choice_of_axes(shape, dtype, seed):
  x = np.random.default_rng(seed).integers(-9, 9, shape).astype(dtype)
  for number in range(len(shape) + 1):
    for axes in itertools.permutations(range(len(shape)), number):
      y = sum_over(tf.constant(x), axes)
      assert y.dtype == dtype
      np.testing.assert_array_equal(y, x.sum(axes))      # small integers: no order matters


@pytest.mark.parametrize("shape, axes, ops", [
    ((16, 128, 64), [0, 1], ["BiasAddGrad"]), ((16, 8, 64, 128), [0, 2], ["Sum", "BiasAddGrad"]),
    ((16, 128, 64), [2], ["Sum"]), ((16, 128, 64), [0, 1, 2], ["Sum"]),
    ((4, 8192), [0], ["Sum"]), ((16, 16), [0], ["Sum"])])
def test_the_kernel_that_is_taken(shape, axes, ops):
  found = tf.function(lambda x: sum_over(x, axes)).get_concrete_function(
      tf.TensorSpec(shape)).graph.get_operations()
  assert [op.type for op in found if op.type in ("Sum", "BiasAddGrad")] == ops
