"""Running products, maxima, minima, log-sum-exps and linear recurrences along an axis of one
device's tensor.

    running("max", x, axis=1, reverse=False)          # y[:, i] = max(x[:, 0], ..., x[:, i])

TensorFlow has kernels for products and log-sum-exps. Maxima, minima and recurrences use the
parallel scan of Hillis and Steele ("Data Parallel Algorithms", 1986): log2(n) passes over n
elements. After each pass an element covers twice as many of the elements before it:

    x               [9 1 4 1 5]
    after pass 1    [9 9 4 4 5]     element i: the maximum of elements i - 1 and i
    after pass 2    [9 9 9 9 5]     element i: the maximum of elements i - 3 to i
    after pass 3    [9 9 9 9 9]     element i: the maximum of elements i - 7 to i
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


def _smallest(dtype: tf.DType) -> float:
    """Returns the smallest value of a data type, -inf for floats."""
    return -np.inf if dtype.is_floating else dtype.min


def _largest(dtype: tf.DType) -> float:
    """Returns the largest value of a data type, inf for floats."""
    return np.inf if dtype.is_floating else dtype.max


# The identity element of each kind, as a function of the data type: the result for no
# elements, such as 1 for a product.
IDENTITIES: dict[str, Callable[[tf.DType], float]] = {
    "sum": lambda dtype: 0,
    "prod": lambda dtype: 1,
    "max": _smallest,
    "min": _largest,
    "logsumexp": _smallest,
}


def running(
    kind: str, x: Any, axis: int, reverse: bool, exclusive: bool = False
) -> Any:
    """Returns the running sum, product, maximum, minimum or log-sum-exp along an axis.

    Args:
      kind: "sum", "prod", "max", "min" or "logsumexp".
      x: a TensorFlow tensor.
      axis: the axis.
      reverse: whether the scan runs from the end.
      exclusive: whether the sum at an index leaves out the element at that index.
    """
    if kind == "sum":
        return tf.cumsum(x, axis, exclusive=exclusive, reverse=reverse)
    if kind == "prod":
        return tf.math.cumprod(x, axis, reverse=reverse)
    if kind == "logsumexp":
        return tf.math.cumulative_logsumexp(x, axis, reverse=reverse)
    combine = tf.maximum if kind == "max" else tf.minimum
    y = x
    step = 1
    while step < x.shape[axis]:
        previous, current, start = _split_at_step(y, axis, step, reverse=reverse)
        y = _concat(combine(current, previous), start, axis, reverse=reverse)
        step *= 2
    return y


def running_linear(a: Any, b: Any, axis: int, reverse: bool) -> tuple[Any, Any]:
    """Returns the running products of a, and h with h[i] = a[i] * h[i - 1] + b[i], where
    h[-1] = 0, along an axis; other arguments are as in `running`.

    From another initial value h[-1], h[i] is larger by h[-1] times the i-th product.
    """
    # Invariant: h[i] = products[i] * h[i - step] + partial_h[i], where products[i] is the
    # product of the last `step` elements of a, and partial_h[i] is h[i] if h[i - step] is 0.
    products = a
    partial_h = b
    step = 1
    while step < a.shape[axis]:
        a_slices = _split_at_step(products, axis, step, reverse=reverse)
        h_slices = _split_at_step(partial_h, axis, step, reverse=reverse)
        next_h = h_slices.current + a_slices.current * h_slices.previous
        partial_h = _concat(next_h, h_slices.start, axis, reverse=reverse)
        next_products = a_slices.current * a_slices.previous
        products = _concat(next_products, a_slices.start, axis, reverse=reverse)
        step *= 2
    return products, partial_h


class _Slices(NamedTuple):
    """Slices of a tensor along the axis of a scan, for one pass with a given step.

    Attributes:
      previous: for each element of `current`, the element that is `step` elements before it.
      current: the elements after the first `step` ones, in the order of the scan.
      start: the first `step` elements, in the order of the scan.
    """

    previous: Any
    current: Any
    start: Any


def _split_at_step(x: Any, axis: int, step: int, reverse: bool) -> _Slices:
    """Returns the slices of x for one pass. If `reverse`, the scan starts at the largest
    index.
    """
    size = x.shape[axis]
    low = _slice_axis(x, axis, begin=0, end=size - step)
    high = _slice_axis(x, axis, begin=step, end=size)
    if reverse:
        start = _slice_axis(x, axis, begin=size - step, end=size)
        return _Slices(previous=high, current=low, start=start)
    start = _slice_axis(x, axis, begin=0, end=step)
    return _Slices(previous=low, current=high, start=start)


def _slice_axis(x: Any, axis: int, begin: int, end: int) -> Any:
    """Returns elements [begin, end) of x along an axis."""
    return x[(slice(None),) * axis + (slice(begin, end),)]


def _concat(current: Any, start: Any, axis: int, reverse: bool) -> Any:
    """Returns `start`, the elements at the start of the scan, and `current`, all other ones,
    concatenated in the order of their indices.
    """
    order = [current, start] if reverse else [start, current]
    return tf.concat(order, axis)
