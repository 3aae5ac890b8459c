"""Zeros for lowering take no memory."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import tensorflow as tf

from meshtf.runtime.spmd.module.untouched_zeros import untouched_zeros
from tests.checkpoints.memory_worker import resident


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "float64", "int32", "int64", "bool"]
)
@pytest.mark.parametrize("sizes", [(3, 5), (), (0, 3), (7,)])
def test_they_are_zeros(sizes, dtype):
    zeros = untouched_zeros(sizes, dtype)
    assert (tuple(zeros.shape), zeros.dtype.name) == (sizes, dtype)
    np.testing.assert_array_equal(zeros.numpy().astype("float32"), np.zeros(sizes))
    assert not np.asarray(
        tf.cast(zeros, tf.float32) * 2.0
    ).any()  # as TensorFlow reads it


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_they_take_no_memory(dtype):
    untouched_zeros([8], dtype)
    before = resident("VmRSS")
    variable = tf.Variable(untouched_zeros([1 << 28], dtype))
    assert resident("VmRSS") - before < 1 << 26  # of half a gigabyte or more
    assert variable.shape == [1 << 28]
