"""How a dimension is divided into shards, if axes of the mesh need not divide its size.

A dimension of n elements over p positions has p shards of c = ceil(n / p) elements. Shard i
has the elements [i c, min((i + 1) c, n)): the last shards may be shorter than c, or empty. All
are stored with c elements; those beyond n are *padding*, with undefined values.

If several axes shard a dimension, each shard of the first (major) axis is divided by the next
axis in the same way. So a shard begins where it would on the major axes alone.

>>> shard_size(10, 4), num_elements(10, (4,), (3,)), num_elements(10, (2, 2), (1, 1))
(3, 1, 2)
>>> start_of_shard(10, (2, 2), (1, 1))
8
>>> elements_of_shards(5, (2, 2))
(2, 1, 2, 0)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any


def shard_size(size: int, num_shards: int) -> int:
    """Returns the number of elements of a shard, with padding."""
    return -(-size // num_shards)


def sizes_by_axis(size: int, axis_sizes: Sequence[int]) -> list[int]:
    """Returns the size of a shard along the first axis, along the first two, and so on.

    Args:
      size: the number of elements of the dimension.
      axis_sizes: the sizes of the axes that shard the dimension, the major one first.
    """
    sizes = []
    for axis_size in axis_sizes:
        size = shard_size(size, axis_size)
        sizes.append(size)
    return sizes


def is_padded(size: int, axis_sizes: Sequence[int]) -> bool:
    """Returns whether a shard of a dimension is shorter than the others; the arguments are
    those of `sizes_by_axis`.
    """
    for axis_size in axis_sizes:
        if size % axis_size:
            return True
        size //= axis_size
    return False


def start_of_shard(size: int, axis_sizes: Sequence[int], coordinates: Any) -> Any:
    """Returns the index, in the dimension, of the first element of a shard.

    Args:
      size: the number of elements of the dimension.
      axis_sizes: the sizes of the axes that shard the dimension, the major one first.
      coordinates: the coordinate of the shard along each axis: integers, or scalar tensors.
    """
    start = 0
    for shard, coordinate in zip(sizes_by_axis(size, axis_sizes), coordinates):
        start = start + coordinate * shard
    return start


def num_elements(
    size: int, axis_sizes: Sequence[int], coordinates: Sequence[int]
) -> int:
    """Returns the number of elements of a shard, without padding; the arguments are those of
    `start_of_shard`.
    """
    count = size
    for shard, coordinate in zip(sizes_by_axis(size, axis_sizes), coordinates):
        count = min(max(count - coordinate * shard, 0), shard)
    return count


def elements_of_shards(size: int, axis_sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns the number of elements of each shard, without padding, in the order of the
    shards; the arguments are those of `sizes_by_axis`.
    """
    coordinates_of_shards = itertools.product(*map(range, axis_sizes))
    return tuple(
        num_elements(size, axis_sizes, coordinates)
        for coordinates in coordinates_of_shards
    )


def has_empty_shard(size: int, axis_sizes: Sequence[int]) -> bool:
    """Returns whether a shard has no elements, in some order of the axes; the arguments are
    those of `sizes_by_axis`.
    """
    return any(
        0 in elements_of_shards(size, order)
        for order in itertools.permutations(axis_sizes)
    )
