"""Elements of a window, with those beyond the ends filled in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.ops.common.trace_cache import constant


class ElementRange(NamedTuple):
    """How to get a range of elements of an axis."""

    begin: list[int] | None  # where the part begins that exists; None: all of it
    sizes: list[int]  # and its sizes
    pads: list[list[int]] | None  # what is filled in around it; None: nothing


def element_range(
    shape: Sequence[int], axis: int, start: int, stop: int
) -> ElementRange:
    """Returns how to get elements [start, stop) of an axis of some tensor."""
    size = shape[axis]
    length = stop - start
    low = min(max(start, 0), size)
    high = max(min(stop, size), low)
    begin = [0] * len(shape)
    begin[axis] = low
    sizes = list(shape)
    sizes[axis] = high - low
    pads = [[0, 0] for _ in shape]
    pads[axis] = [max(0, min(-start, length)), max(0, min(stop - size, length))]
    return ElementRange(
        None if (low, high) == (0, size) else begin,
        sizes,
        pads if any(pads[axis]) else None,
    )


def take_elements(x: Any, axis: int, start: int, stop: int, fill: float) -> Any:
    """Returns elements [start, stop) of an axis, `fill` where there are none."""
    wanted = element_range(x.shape, axis, start, stop)
    if wanted.begin is not None:
        x = tf.slice(x, constant(wanted.begin), constant(wanted.sizes))
    if wanted.pads is not None:
        x = tf.pad(x, wanted.pads, constant_values=tf.cast(fill, x.dtype))
    return x
