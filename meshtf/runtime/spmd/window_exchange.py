"""The exchange of windows as permutes: every slice gets the rows that it reads beyond
its own.

Slice j reads rows [low(j), low(j) + length) of the whole. It gets them in hops: from
slice j + hop come those rows that any slice needs of the one so far away. What came is
laid side by side, and each slice takes its rows from there by its own offset.

    slices of 4 rows, rows 4j-1 .. 4j+5 needed:   hop -1 brings the last row, hop 1 the first
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.graph import Window
from meshtf.runtime.spmd.stablehlo_collectives import Groups, permute


def exchange(
    x: Any,
    axis: int,
    window: Window,
    size: int,
    fill: float,
    index: Any,
    groups: Groups,
) -> Any:
    """Returns the rows of a window along `axis`, `fill` where there are none.

    Args:
      x: this replica's slice.
      axis: the position of the dimension that is cut.
      window: which rows a slice of the factor reads.
      size: of the whole factor.
      fill: what stands outside.
      index: the number of this slice, a scalar tensor.
      groups: the replicas that hold the slices of one tensor, in order.
    """
    parts, rows = len(groups[0]), int(x.shape[axis])
    each = size // parts
    ends = [(window.low(j * each), window.high((j + 1) * each)) for j in range(parts)]
    lows, length = [low for low, _ in ends], max(high - low for low, high in ends)
    first = min(low // rows - j for j, low in enumerate(lows))
    last = max((low + length - 1) // rows - j for j, low in enumerate(lows))
    came = [
        _hop(x, axis, hop, lows, length, window.wrap, groups)
        for hop in range(first, last + 1)
    ]
    low = tf.gather(tf.constant(lows, tf.int32), index)
    y = _take(tf.concat(came, axis), axis, low - (index + first) * rows, length)
    return y if window.wrap else _filled(y, axis, low, rows * parts, fill)


def _hop(
    x: Any,
    axis: int,
    hop: int,
    lows: Sequence[int],
    length: int,
    wrap: bool,
    groups: Groups,
) -> Any:
    """Returns the slice `hop` further on, of which only rows that some slice needs have
    come.
    """
    parts, rows = len(lows), int(x.shape[axis])
    if hop == 0 or wrap and hop % parts == 0:
        return x
    there = [j for j in range(parts) if wrap or 0 <= j + hop < parts]
    begin = [max(lows[j] - (j + hop) * rows, 0) for j in there]
    end = [min(lows[j] + length - (j + hop) * rows, rows) for j in there]
    wanted = [(b, e) for b, e in zip(begin, end) if b < e]
    if not wanted:
        return tf.zeros_like(x)
    start, stop = min(b for b, _ in wanted), max(e for _, e in wanted)
    part = x[(slice(None),) * axis + (slice(start, stop),)]
    pairs = [(group[(j + hop) % parts], group[j]) for group in groups for j in there]
    pads = np.zeros([len(x.shape), 2], int)
    pads[axis] = start, rows - stop
    return tf.pad(permute(part, pairs), pads)


def _take(x: Any, axis: int, start: Any, length: int) -> Any:
    begin = [0] * len(x.shape)
    sizes = list(map(int, x.shape))
    sizes[axis] = length
    return tf.slice(x, [*begin[:axis], start, *begin[axis + 1 :]], sizes)


def _filled(x: Any, axis: int, low: Any, size: int, fill: float) -> Any:
    """Returns x with `fill` in rows that lie outside of the whole."""
    row = low + tf.range(x.shape[axis])
    shape = [1] * len(x.shape)
    shape[axis] = int(x.shape[axis])
    inside = tf.reshape((row >= 0) & (row < size), shape)
    return tf.where(inside, x, tf.cast(fill, x.dtype))
