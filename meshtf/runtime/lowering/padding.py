"""Ranges of elements of an axis, padded where they reach beyond its ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.ops.common.trace_cache import constant


class ElementRange(NamedTuple):
    """A slice and a padding that give a range of elements of an axis.

    Attributes:
      begin: the first indices of the slice; None: nothing is sliced off.
      sizes: the sizes of the slice.
      pads: (elements before, elements after) of each axis; None: no padding.
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
    """Returns the slice and the padding for elements [start, stop) of an axis."""
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


def take_elements(
    x: Any,
    axis: int,
    start: int,
    stop: int,
    fill: float,
) -> Any:
    """Returns elements [start, stop) of an axis, padded with `fill` beyond its ends."""
    elements = element_range(x.shape, axis, start, stop)
    if elements.begin is not None:
        x = tf.slice(x, constant(elements.begin), constant(elements.sizes))
    if elements.pads is not None:
        x = tf.pad(x, elements.pads, constant_values=tf.cast(fill, x.dtype))
    return x
