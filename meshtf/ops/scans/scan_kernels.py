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
from typing import Any

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

    def combine_one(current: Any, previous: Any) -> tuple[Any]:
        return (combine(current[0], previous[0]),)

    (y,) = _parallel_scan(combine_one, (x,), axis, reverse)
    return y


def running_linear(a: Any, b: Any, axis: int, reverse: bool) -> tuple[Any, Any]:
    """Returns the running products of a, and h with h[i] = a[i] * h[i - 1] + b[i], where
    h[-1] = 0, along an axis; other arguments are as in `running`.

    From another initial value h[-1], h[i] is larger by h[-1] times the i-th product.
    """

    def combine(current: Any, previous: Any) -> tuple[Any, Any]:
        # Pairs: the product of the last elements of a, as many as have been combined, and h if
        # it were 0 before these.
        product, h = current
        previous_product, previous_h = previous
        return product * previous_product, h + product * previous_h

    products, h = _parallel_scan(combine, (a, b), axis, reverse)
    return products, h


def _parallel_scan(
    combine: Callable[[Any, Any], tuple[Any, ...]],
    xs: tuple[Any, ...],
    axis: int,
    reverse: bool,
) -> tuple[Any, ...]:
    """Returns the running results of tensors that are combined together.

    Args:
      combine: returns the results of elements of all tensors and of those before them.
      xs: the tensors.
      axis: the axis of the scan.
      reverse: whether the scan starts at the largest index.
    """
    size = xs[0].shape[axis]
    step = 1
    while step < size:
        low = [_slice_axis(x, axis, begin=0, end=size - step) for x in xs]
        high = [_slice_axis(x, axis, begin=step, end=size) for x in xs]
        # The first `step` elements in the order of the scan stay as they are.
        if reverse:
            start = [_slice_axis(x, axis, begin=size - step, end=size) for x in xs]
            pairs = zip(combine(low, high), start)
        else:
            start = [_slice_axis(x, axis, begin=0, end=step) for x in xs]
            pairs = zip(start, combine(high, low))
        xs = tuple(tf.concat(pair, axis) for pair in pairs)
        step *= 2
    return xs


def _slice_axis(x: Any, axis: int, begin: int, end: int) -> Any:
    """Returns elements [begin, end) of x along an axis."""
    return x[(slice(None),) * axis + (slice(begin, end),)]
