"""Running products, maxima, minima, log-sum-exps and linear recurrences of one device, along
an axis.

TensorFlow has kernels for products and log-sum-exps. Maxima, minima and recurrences use the
parallel scan of Hillis and Steele ("Data Parallel Algorithms", 1986): log2(n) passes over n
elements. After each pass an element covers twice as many of the elements before it:

    [3 1 4 1 5]  ->  [3 3 4 4 5]  ->  ...   element i: the maximum of the last 2, 4, 8 elements
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


def _least(dtype: tf.DType) -> float:
    """Returns the smallest value of a data type, -inf for floats."""
    return -np.inf if dtype.is_floating else dtype.min


def _greatest(dtype: tf.DType) -> float:
    """Returns the largest value of a data type, inf for floats."""
    return np.inf if dtype.is_floating else dtype.max


# The identity element of each kind, as a function of the data type. It is the result of a
# scan before the first element.
IDENTITIES: dict[str, Callable[[tf.DType], float]] = {
    "prod": lambda dtype: 1,
    "max": _least,
    "min": _greatest,
    "logsumexp": _least,
}


def running(kind: str, x: Any, axis: int, reverse: bool) -> Any:
    """Returns the running product, maximum, minimum or log-sum-exp along an axis.

    Args:
      kind: "prod", "max", "min" or "logsumexp".
      x: a TensorFlow tensor.
      axis: the axis.
      reverse: whether the scan runs from the end.
    """
    if kind == "prod":
        return tf.math.cumprod(x, axis, reverse=reverse)
    if kind == "logsumexp":
        return tf.math.cumulative_logsumexp(x, axis, reverse=reverse)
    combine = tf.maximum if kind == "max" else tf.minimum
    step = 1
    while step < x.shape[axis]:
        previous, current, start = _split_at_step(x, axis, step, reverse)
        current = combine(current, previous)
        x = _concat(current, start, axis, reverse)
        step *= 2
    return x


def running_linear(a: Any, b: Any, axis: int, reverse: bool) -> tuple[Any, Any]:
    """Returns the running products of a, and h with h[i] = a[i] * h[i - 1] + b[i], along
    an axis; the arguments are as in `running`.

    After a pass, element i is h[i] = a[i] * h[i - step] + b[i] for the products a and the
    partial results b of the last `step` elements.
    """
    step = 1
    while step < a.shape[axis]:
        a_previous, a_current, a_start = _split_at_step(a, axis, step, reverse)
        b_previous, b_current, b_start = _split_at_step(b, axis, step, reverse)
        b_current = b_current + a_current * b_previous
        b = _concat(b_current, b_start, axis, reverse)
        a = _concat(a_current * a_previous, a_start, axis, reverse)
        step *= 2
    return a, b


class _Slices(NamedTuple):
    """Slices of a tensor along the axis of a scan.

    Attributes:
      previous: the elements `step` before those of `current`, of the same shape.
      current: the elements that have an element `step` before them.
      start: the `step` elements at the start of the scan, which have none.
    """

    previous: Any
    current: Any
    start: Any


def _split_at_step(x: Any, axis: int, step: int, reverse: bool) -> _Slices:
    """Returns the slices of x for one pass. If `reverse`, the scan starts at the largest
    index.
    """
    size = x.shape[axis]
    low = _slice_axis(x, axis, 0, size - step)
    high = _slice_axis(x, axis, step, size)
    if reverse:
        start = _slice_axis(x, axis, size - step, size)
        return _Slices(previous=high, current=low, start=start)
    start = _slice_axis(x, axis, 0, step)
    return _Slices(previous=low, current=high, start=start)


def _slice_axis(x: Any, axis: int, begin: int, end: int) -> Any:
    """Returns elements [begin, end) of x along an axis."""
    return x[(slice(None),) * axis + (slice(begin, end),)]


def _concat(current: Any, start: Any, axis: int, reverse: bool) -> Any:
    """Returns the elements at the start of the scan and the other ones, concatenated."""
    order = [current, start] if reverse else [start, current]
    return tf.concat(order, axis)
