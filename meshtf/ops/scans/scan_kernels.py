"""Running products, maxima and recurrences of one device, along an axis.

TensorFlow has kernels for some. The others double their reach with each pass over all
rows (Hillis and Steele, Data Parallel Algorithms, 1986), which needs log2(rows) passes:

    [3 1 4 1 5]  ->  [3 3 4 4 5]  ->  ...        row i: the largest of 2, of 4, of 8 rows up to i
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


def _least(dtype: tf.DType) -> float:
    return -np.inf if dtype.is_floating else dtype.min


def _greatest(dtype: tf.DType) -> float:
    return np.inf if dtype.is_floating else dtype.max


# What changes nothing, and so stands for rows that are not there.
NEUTRAL: dict[str, Callable[[tf.DType], float]] = {
    "prod": lambda dtype: 1,
    "max": _least,
    "min": _greatest,
    "logsumexp": _least,
}


def running(kind: str, x: Any, axis: int, reverse: bool) -> Any:
    """Returns for each row the product, max, min or logsumexp of the rows up to it."""
    if kind == "prod":
        return tf.math.cumprod(x, axis, reverse=reverse)
    if kind == "logsumexp":
        return tf.math.cumulative_logsumexp(x, axis, reverse=reverse)
    y, step = x, 1
    while step < x.shape[axis]:
        before, here, rest = _apart(y, axis, step, reverse)
        here = tf.maximum(here, before) if kind == "max" else tf.minimum(here, before)
        y, step = _together(here, rest, axis, reverse), 2 * step
    return y


def running_linear(a: Any, b: Any, axis: int, reverse: bool) -> tuple[Any, Any]:
    """Returns running products of a, and h[i] = a[i] * h[i - 1] + b[i]."""
    step = 1
    while step < a.shape[axis]:
        a_before, a_here, a_rest = _apart(a, axis, step, reverse)
        b_before, b_here, b_rest = _apart(b, axis, step, reverse)
        b = _together(b_here + a_here * b_before, b_rest, axis, reverse)
        a, step = _together(a_here * a_before, a_rest, axis, reverse), 2 * step
    return a, b


def _apart(x: Any, axis: int, step: int, reverse: bool) -> tuple[Any, Any, Any]:
    """Returns all rows `step` before a row, those rows, and the first ones, which have
    none.
    """
    outer, rows = (slice(None),) * axis, x.shape[axis]
    if reverse:
        ends = slice(step, rows), slice(0, rows - step), slice(rows - step, rows)
    else:
        ends = slice(0, rows - step), slice(step, rows), slice(0, step)
    before, here, rest = (x[outer + (part,)] for part in ends)
    return before, here, rest


def _together(here: Any, rest: Any, axis: int, reverse: bool) -> Any:
    return tf.concat([here, rest] if reverse else [rest, here], axis)
