"""Ranges of elements of an axis, padded where they extend beyond the ends of the axis.

take_elements(x, axis=0, start=-1, stop=3, fill=0.0)       # [0, x[0], x[1], x[2]]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.mesh import Mesh
from meshtf.mesh.shard_sizes import sizes_by_axis
from meshtf.ops.common.trace_cache import constant

_MOST_AXES = 6


class ElementRange(NamedTuple):
    """A slice and a padding that give a range of elements of an axis.

    Attributes:
      begin: the start index of the slice along each axis; None: all elements.
      sizes: the size of the slice along each axis.
      pads: (elements before, elements after) for each axis; None: no padding.
    """

    begin: list[int] | None
    sizes: list[int]
    pads: list[list[int]] | None


def element_range(
    shape: Sequence[int],
    axis: int,
    start: int,
    stop: int,
) -> ElementRange:
    """Returns the slice and the padding for the elements [start, stop) of an axis; some or
    all elements may be beyond its ends.
    """
    size = shape[axis]
    length = stop - start
    # The elements of the range that exist: [low, high).
    low = min(max(start, 0), size)
    high = max(min(stop, size), low)
    sizes = list(shape)
    sizes[axis] = high - low
    begin = None
    if (low, high) != (0, size):
        begin = [0] * len(shape)
        begin[axis] = low
    num_before = max(0, min(-start, length))
    num_after = max(0, min(stop - size, length))
    pads = None
    if num_before or num_after:
        pads = [[0, 0] for _ in shape]
        pads[axis] = [num_before, num_after]
    return ElementRange(begin=begin, sizes=sizes, pads=pads)


def take_elements(
    x: Any,
    axis: int,
    start: int,
    stop: int,
    fill: float,
) -> Any:
    """Returns the elements [start, stop) of an axis of x; elements beyond its ends are
    `fill`.
    """
    shape = list(x.shape)
    if len(shape) > _MOST_AXES:
        # TensorFlow slices and pads tensors of few axes only.
        before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        x = tf.reshape(x, [before, shape[axis], after])
        x = take_elements(x, 1, start, stop, fill)
        return tf.reshape(x, [*shape[:axis], stop - start, *shape[axis + 1 :]])
    elements = element_range(shape, axis, start, stop)
    if elements.begin is not None:
        x = tf.slice(x, constant(elements.begin), constant(elements.sizes))
    if elements.pads is not None:
        x = tf.pad(x, elements.pads, constant_values=constant(fill, x.dtype))
    return x


def num_elements_at(
    coordinates: Any, size: int, axes: Sequence[str], mesh: Mesh
) -> Any:
    """Returns the number of elements of a shard without padding, a scalar int32 tensor.

    Args:
      coordinates: the coordinates of the shard: by axis, integers or scalar tensors.
      size: the size of the dimension.
      axes: the axes that shard it.
      mesh: the mesh.
    """
    count: Any = size
    sizes = sizes_by_axis(size, [mesh.axes[axis] for axis in axes])
    for axis, shard in zip(axes, sizes):
        remaining = count - coordinates[axis] * shard
        count = tf.clip_by_value(remaining, 0, shard)
    return count
