"""Shards of a dimension whose size the axes need not divide."""

from __future__ import annotations

import itertools

import pytest

from meshtf.mesh import shard_sizes


@pytest.mark.parametrize("size", range(1, 18))
@pytest.mark.parametrize("axis_sizes", [(1,), (2,), (5,), (2, 2), (3, 2), (2, 1, 3)])
def test_shards_have_each_element_once_and_in_order(size, axis_sizes):
    stored = shard_sizes.sizes_by_axis(size, axis_sizes)[-1]
    elements = []
    counts = []
    for coordinates in itertools.product(*map(range, axis_sizes)):
        start = shard_sizes.start_of_shard(size, axis_sizes, coordinates)
        count = shard_sizes.num_elements(size, axis_sizes, coordinates)
        assert 0 <= count <= stored
        elements += range(start, start + count)
        counts.append(count)
    assert elements == list(range(size))
    assert shard_sizes.is_padded(size, axis_sizes) == (min(counts) < stored)


def test_a_shard_begins_where_it_would_on_the_major_axis_alone():
    for size in range(1, 18):
        for major in range(3):
            alone = shard_sizes.start_of_shard(size, (3,), (major,))
            assert shard_sizes.start_of_shard(size, (3, 2), (major, 0)) == alone


def test_elements_of_shards_are_in_order_of_the_major_axis():
    assert shard_sizes.elements_of_shards(5, (2, 2)) == (2, 1, 2, 0)
    assert shard_sizes.elements_of_shards(3, (2, 4)) == (1, 1, 0, 0, 1, 0, 0, 0)
    assert shard_sizes.elements_of_shards(7, ()) == (7,)
