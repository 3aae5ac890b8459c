"""Halo exchange by collective permutes: each replica receives the elements that it reads from
its neighbours' shards of a dimension, such as the borders of an image that is convolved.

Shard j reads elements [low(j), low(j) + length) of the global dimension: its window. For each
distance d, one permute sends elements from shard j + d to shard j. These are all elements
that any shard needs at this distance, since all replicas run the same program. The received
elements are concatenated, and each shard slices its window from them.

    shards of 4 elements that read elements [4j - 1, 4j + 5):
    distance -1 sends the last element of a shard, distance 1 the first element
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.graph import Window
from meshtf.mesh.shard_sizes import shard_size
from meshtf.ops.common.trace_cache import constant
from meshtf.runtime.lowering.filled_padding import with_poisoned_end
from meshtf.runtime.spmd.module.stablehlo_collectives import Groups, permute


@dataclasses.dataclass(frozen=True)
class _Windows:
    """The elements of a dimension that each of its shards reads: its window.

    Attributes:
      lows: the first global index that each shard reads; it may be negative.
      length: the number of elements that each shard reads.
      local_size: the number of elements that each shard has.
      wrap: whether windows continue at the opposite end of the dimension.
    """

    lows: list[int]
    length: int
    local_size: int
    wrap: bool

    @property
    def num_shards(self) -> int:
        """The number of shards."""
        return len(self.lows)

    @property
    def distances(self) -> range:
        """The distances at which any shard reads: at distance d, shard j reads shard j + d."""
        first_distances = []
        last_distances = []
        for j, low in enumerate(self.lows):
            first_shard = low // self.local_size
            last_shard = (low + self.length - 1) // self.local_size
            first_distances.append(first_shard - j)
            last_distances.append(last_shard - j)
        return range(min(first_distances), max(last_distances) + 1)

    def receivers(self, distance: int) -> list[int]:
        """Returns the shards j for which there is a shard j + distance."""
        shards = range(self.num_shards)
        if self.wrap:
            return list(shards)
        return [j for j in shards if 0 <= j + distance < self.num_shards]

    def local_range(self, distance: int) -> tuple[int, int] | None:
        """Returns the range [start, stop) of local elements that any shard reads of its
        neighbour at a distance; None if no shard reads any.
        """
        starts = []
        stops = []
        for j in self.receivers(distance):
            # The first element of the window of shard j, as a local index of shard
            # j + distance; it may be outside of that shard.
            offset = self.lows[j] - (j + distance) * self.local_size
            start = max(offset, 0)
            stop = min(offset + self.length, self.local_size)
            if start < stop:
                starts.append(start)
                stops.append(stop)
        if not starts:
            return None
        return min(starts), max(stops)


def exchange(
    x: Any,
    axis: int,
    window: Window,
    size: int,
    input_size: int,
    fill: float,
    shard_index: Any,
    groups: Groups,
) -> Any:
    """Returns the elements along `axis` that this replica's shard of the output reads.

    Args:
      x: this replica's shard of the input.
      axis: the axis of x that is sharded.
      window: the elements that each element of the output reads.
      size: the global size of the output dimension.
      input_size: the global size of the input dimension, without the padding of shards.
      fill: the value of elements beyond the ends of the dimension.
      shard_index: the index of this replica's shard, a scalar tensor.
      groups: the groups of replicas that have the shards of one tensor, in order.
    """
    num_shards = len(groups[0])
    output_shard_size = shard_size(size, num_shards)
    lows = []
    highs = []
    for j in range(num_shards):
        lows.append(window.low(j * output_shard_size))
        highs.append(window.high((j + 1) * output_shard_size))
    # All replicas run one program, so all windows have the length of the longest.
    length = max(high - low for low, high in zip(lows, highs))
    local_size = int(x.shape[axis])
    if input_size % num_shards:
        x = with_poisoned_end(x, axis, input_size - shard_index * local_size)
    windows = _Windows(
        lows=lows, length=length, local_size=local_size, wrap=window.wrap
    )
    received = [
        _receive_from(x, axis, distance, windows, groups)
        for distance in windows.distances
    ]
    low = tf.gather(tf.constant(lows, tf.int32), shard_index)
    # The global index of the first received element.
    received_start = (shard_index + windows.distances.start) * local_size
    y = _slice_axis(
        tf.concat(received, axis), axis, start=low - received_start, length=length
    )
    if window.wrap:
        return y
    return _fill_outside(y, axis, low, size=input_size, fill=fill)


def _receive_from(
    x: Any,
    axis: int,
    distance: int,
    windows: _Windows,
    groups: Groups,
) -> Any:
    """Returns the shard of the neighbour at a distance. Elements that no shard reads are not
    sent: they are zeros.
    """
    num_shards = windows.num_shards
    is_local_shard = distance == 0 or (windows.wrap and distance % num_shards == 0)
    if is_local_shard:
        return x
    range_read = windows.local_range(distance)
    if range_read is None:
        return tf.zeros_like(x)
    start, stop = range_read
    region = (slice(None),) * axis + (slice(start, stop),)
    sent = x[region]
    pairs = []
    for group in groups:
        for j in windows.receivers(distance):
            source = group[(j + distance) % num_shards]
            target = group[j]
            pairs.append((source, target))
    pads = np.zeros([len(x.shape), 2], int)
    pads[axis] = start, windows.local_size - stop
    return tf.pad(permute(sent, pairs), pads)


def _slice_axis(x: Any, axis: int, start: Any, length: int) -> Any:
    """Returns elements [start, start + length) of an axis; `start` is a scalar tensor."""
    begin: list[Any] = [0] * len(x.shape)
    begin[axis] = start
    sizes = x.shape.as_list()
    sizes[axis] = length
    return tf.slice(x, begin, sizes)


def _fill_outside(x: Any, axis: int, low: Any, size: int, fill: float) -> Any:
    """Returns a window with `fill` in place of elements beyond the ends of the dimension.

    Args:
      x: the window.
      axis: the axis of the dimension.
      low: the global index of the first element of the window, a scalar tensor.
      size: the global size of the dimension.
      fill: the value.
    """
    indices = low + tf.range(x.shape[axis])
    is_inside = (indices >= 0) & (indices < size)
    shape = [1] * len(x.shape)
    shape[axis] = int(x.shape[axis])
    return tf.where(tf.reshape(is_inside, shape), x, constant(fill, x.dtype))
