"""Running products, maxima and recurrences of one device, along an axis.

TensorFlow has kernels for prod and logsumexp. Maxima, minima and recurrences use the
parallel scan of Hillis and Steele (Data Parallel Algorithms, 1986): log2(n) passes over
n elements, each of which doubles the length of the prefix that an element covers.

    [3 1 4 1 5]  ->  [3 3 4 4 5]  ->  ...   element i: the maximum of the last 2, 4, 8 elements
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


def _least(dtype: tf.DType) -> float:
    if dtype.is_floating:
        return -np.inf
    return dtype.min


def _greatest(dtype: tf.DType) -> float:
    return np.inf if dtype.is_floating else dtype.max


# The identity of each kind: used where an element has no predecessor.
NEUTRAL: dict[str, Callable[[tf.DType], float]] = {
    "prod": lambda dtype: 1,
    "max": _least,
    "min": _greatest,
    "logsumexp": _least,
}


def running(kind: str, x: Any, axis: int, reverse: bool) -> Any:
    """Returns at each index of `axis` the prod, max, min or logsumexp up to that index.

    reverse: from that index to the end.
    """
    if kind == "prod":
        return tf.math.cumprod(x, axis, reverse=reverse)
    if kind == "logsumexp":
        return tf.math.cumulative_logsumexp(x, axis, reverse=reverse)
    combine = tf.minimum
    if kind == "max":
        combine = tf.maximum
    step = 1
    while step < x.shape[axis]:
        previous, current, start = _split_at_step(x, axis, step, reverse)
        current = combine(current, previous)
        x = _concat(current, start, axis, reverse)
        step *= 2
    return x


def running_linear(a: Any, b: Any, axis: int, reverse: bool) -> tuple[Any, Any]:
    """Returns the running products of a, and h with h[i] = a[i] * h[i - 1] + b[i]."""
    step = 1
    while step < a.shape[axis]:
        a_previous, a_current, a_start = _split_at_step(a, axis, step, reverse)
        b_previous, b_current, b_start = _split_at_step(b, axis, step, reverse)
        b_current = b_current + a_current * b_previous
        b = _concat(b_current, b_start, axis, reverse)
        a = _concat(a_current * a_previous, a_start, axis, reverse)
        step *= 2
    return a, b


def _split_at_step(x: Any, axis: int, step: int, reverse: bool) -> tuple[Any, Any, Any]:
    """Returns (previous, current, start) slices of x along `axis`.

    current: the elements that have a predecessor `step` earlier; previous: those
    predecessors, of the same shape; start: the `step` elements without one.
    reverse: "earlier" means a larger index.
    """
    size = x.shape[axis]
    low = _slice_axis(x, axis, 0, size - step)
    high = _slice_axis(x, axis, step, size)
    if reverse:
        return high, low, _slice_axis(x, axis, size - step, size)
    return low, high, _slice_axis(x, axis, 0, step)


def _slice_axis(x: Any, axis: int, begin: int, end: int) -> Any:
    """Returns elements begin to end (exclusive) of x along `axis`."""
    return x[(slice(None),) * axis + (slice(begin, end),)]


def _concat(current: Any, start: Any, axis: int, reverse: bool) -> Any:
    """Returns the tensor that `_split_at_step` split into `current` and `start`."""
    return tf.concat([current, start] if reverse else [start, current], axis)
