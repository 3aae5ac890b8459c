"""Window exchange by permutes: each shard receives the elements that it reads from its
neighbours.

Shard j reads elements [low(j), low(j) + length) of the global dimension. For each
distance d, one permute sends elements from shard j + d to shard j: all elements that any
shard needs at this distance, since all replicas run the same program. The received
elements are concatenated, and each shard slices its window from them.

    shards of 4 elements, which read elements 4j - 1 to 4j + 5:
    distance -1 sends the last element of a shard, distance 1 the first one
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.graph import Window
from meshtf.runtime.spmd.module.stablehlo_collectives import Groups, permute


@dataclasses.dataclass(frozen=True)
class _Windows:
    """Which elements the shards of a dimension read.

    Attributes:
      lows: of each shard, the first global index; it may be negative.
      length: how many elements each reads.
      local_size: how many elements each shard has.
      wrap: whether windows continue at the other end of the dimension.
    """

    lows: list[int]
    length: int
    local_size: int
    wrap: bool

    @property
    def num_shards(self) -> int:
        """How many shards there are."""
        return len(self.lows)

    @property
    def distances(self) -> range:
        """From which neighbours elements come: j + distance for shard j."""
        starts = [low // self.local_size - j for j, low in enumerate(self.lows)]
        stops = [
            (low + self.length - 1) // self.local_size - j
            for j, low in enumerate(self.lows)
        ]
        return range(min(starts), max(stops) + 1)

    def receivers(self, distance: int) -> list[int]:
        """Returns the shards that have a neighbour at a distance."""
        shards = range(self.num_shards)
        if self.wrap:
            return list(shards)
        return [j for j in shards if 0 <= j + distance < self.num_shards]

    def local_range(self, distance: int) -> tuple[int, int] | None:
        """Returns [start, stop) of the local elements that any shard needs of the shard
        at a distance; None: none.
        """
        starts = []
        stops = []
        for j in self.receivers(distance):
            offset = self.lows[j] - (j + distance) * self.local_size
            start = max(offset, 0)
            stop = min(offset + self.length, self.local_size)
            if start < stop:
                starts.append(start)
                stops.append(stop)
        return (min(starts), max(stops)) if starts else None


def exchange(
    x: Any,
    axis: int,
    window: Window,
    size: int,
    fill: float,
    index: Any,
    groups: Groups,
) -> Any:
    """Returns the window that this replica's shard of the output reads.

    Args:
      x: this replica's shard of the input.
      axis: the axis of x that is sharded.
      window: the elements that an output shard reads.
      size: the global size of the output dimension.
      fill: the value of elements beyond the ends of the dimension.
      index: the index of this shard, a scalar tensor.
      groups: the replicas that have the shards of one tensor, in order.
    """
    num_shards = len(groups[0])
    factor_shard = size // num_shards
    lows = [window.low(j * factor_shard) for j in range(num_shards)]
    highs = [window.high((j + 1) * factor_shard) for j in range(num_shards)]
    length = max(high - low for low, high in zip(lows, highs))
    windows = _Windows(lows, length, int(x.shape[axis]), window.wrap)
    received = [
        _from_distance(x, axis, distance, windows, groups)
        for distance in windows.distances
    ]
    low = tf.gather(tf.constant(lows, tf.int32), index)
    first_received = (index + windows.distances.start) * windows.local_size
    y = _take(tf.concat(received, axis), axis, low - first_received, length)
    if window.wrap:
        return y
    return _filled(y, axis, low, windows.local_size * num_shards, fill)


def _from_distance(
    x: Any,
    axis: int,
    distance: int,
    windows: _Windows,
    groups: Groups,
) -> Any:
    """Returns the shard at a distance, with zeros for elements that no shard needs."""
    num_shards = windows.num_shards
    if distance == 0 or windows.wrap and distance % num_shards == 0:
        return x
    needed = windows.local_range(distance)
    if needed is None:
        return tf.zeros_like(x)
    start, stop = needed
    sent = x[(slice(None),) * axis + (slice(start, stop),)]
    pairs = [
        (group[(j + distance) % num_shards], group[j])
        for group in groups
        for j in windows.receivers(distance)
    ]
    pads = np.zeros([len(x.shape), 2], int)
    pads[axis] = start, windows.local_size - stop
    return tf.pad(permute(sent, pairs), pads)


def _take(
    x: Any,
    axis: int,
    start: Any,
    length: int,
) -> Any:
    """Returns `length` elements of an axis, from a scalar tensor on."""
    begin: list[Any] = [0] * len(x.shape)
    begin[axis] = start
    sizes = x.shape.as_list()
    sizes[axis] = length
    return tf.slice(x, begin, sizes)


def _filled(
    x: Any,
    axis: int,
    low: Any,
    size: int,
    fill: float,
) -> Any:
    """Returns x with `fill` in elements beyond the ends of the dimension."""
    indices = low + tf.range(x.shape[axis])
    is_inside = (indices >= 0) & (indices < size)
    shape = [1] * len(x.shape)
    shape[axis] = int(x.shape[axis])
    return tf.where(tf.reshape(is_inside, shape), x, tf.cast(fill, x.dtype))
