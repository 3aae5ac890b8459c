"""Tensors in the equal blocks that collectives send, and back."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from meshtf.mesh.shard_sizes import num_elements, sizes_by_axis, start_of_shard
from meshtf.runtime.lowering.padding.shard_blocks import (
    NumpyOps,
    TensorFlowOps,
    from_blocks,
    to_blocks,
)


@pytest.mark.parametrize("size", [1, 2, 5, 6, 11, 12])
@pytest.mark.parametrize("axis_sizes", [(2,), (5,), (2, 2), (3, 2), (2, 1, 3)])
@pytest.mark.parametrize("ops", [NumpyOps(), TensorFlowOps()], ids=["numpy", "tf"])
def test_each_block_begins_with_the_elements_of_its_shard(size, axis_sizes, ops):
    array = np.arange(3 * size * 2).reshape(3, size, 2)
    x = tf.constant(array) if isinstance(ops, TensorFlowOps) else array
    blocks = to_blocks(x, 1, axis_sizes, ops)
    shards = itertools.product(*map(range, axis_sizes))
    stored = sizes_by_axis(size, axis_sizes)[-1]
    parts = np.split(np.asarray(blocks), np.prod(axis_sizes), 1)
    for coordinates, part in zip(shards, parts, strict=True):
        assert part.shape == (3, stored, 2)
        start = start_of_shard(size, axis_sizes, coordinates)
        count = num_elements(size, axis_sizes, coordinates)
        np.testing.assert_array_equal(part[:, :count], array[:, start : start + count])
    back = from_blocks(blocks, 1, size, axis_sizes, ops)
    np.testing.assert_array_equal(np.asarray(back), array)
