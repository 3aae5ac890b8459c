"""Elements of a window, with those beyond the ends filled in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.ops.common.traced_once import constant


class Rows(NamedTuple):
    """How to get some rows of an axis."""

    begin: list[int] | None  # where the part begins that is there; None: at all rows
    sizes: list[int]  # and its sizes
    pads: list[list[int]] | None  # what is filled in around it; None: nothing


def rows_of(shape: Sequence[int], axis: int, start: int, stop: int) -> Rows:
    """Returns how to get rows [start, stop) of an axis of some tensor."""
    size = shape[axis]
    before = max(0, min(-start, stop - start))
    after = max(0, min(stop - size, stop - start))
    low = min(max(start, 0), size)
    high = max(min(stop, size), low)
    begin = [low if k == axis else 0 for k in range(len(shape))]
    sizes = [high - low if k == axis else n for k, n in enumerate(shape)]
    pads = [[before, after] if k == axis else [0, 0] for k in range(len(shape))]
    return Rows(
        None if (low, high) == (0, size) else begin,
        sizes,
        pads if before or after else None,
    )


def take_rows(x: Any, axis: int, start: int, stop: int, fill: float) -> Any:
    """Returns rows [start, stop) of an axis, `fill` where there are none."""
    rows = rows_of(x.shape, axis, start, stop)
    if rows.begin is not None:
        x = tf.slice(x, constant(rows.begin), constant(rows.sizes))
    if rows.pads is not None:
        x = tf.pad(x, rows.pads, constant_values=tf.cast(fill, x.dtype))
    return x
