"""Elements of a window, with those beyond the ends filled in."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.ops.common.traced_once import constant


def take_rows(x: Any, axis: int, start: int, stop: int, fill: float) -> Any:
    """Returns rows [start, stop) of an axis, `fill` where there are none."""
    size = x.shape[axis]
    before, after = (
        max(0, min(-start, stop - start)),
        max(0, min(stop - size, stop - start)),
    )
    low, high = min(max(start, 0), size), max(min(stop, size), min(max(start, 0), size))
    if (low, high) != (0, size):
        begin = [low if k == axis else 0 for k in range(len(x.shape))]
        sizes = [high - low if k == axis else n for k, n in enumerate(x.shape)]
        x = tf.slice(x, constant(begin), constant(sizes))
    if before or after:
        pads = [[before, after] if k == axis else [0, 0] for k in range(len(x.shape))]
        x = tf.pad(x, pads, constant_values=tf.cast(fill, x.dtype))
    return x
