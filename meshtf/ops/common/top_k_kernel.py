"""The largest elements along an axis, in the same order with and without XLA. NaN is larger
than all numbers, or smaller; among equals the lowest index comes first, and all NaN are
equal, as 0.0 and -0.0 are.

values, indices = largest(context, x, 3)             # of the last axis: both [..., 3]
value, index = largest_and_index(context, x, axis=0)

TensorFlow's kernels compare floats, so NaN, which is neither more nor less than a number, ends
anywhere. Integers in the order of the floats have a place for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from meshtf.graph import LocalContext
from meshtf.ops.common.ordered_integers import from_ordered_integers, ordered_integers

# Up to so many elements, their integers take less time than a branch on whether there is NaN.
_FEW_ELEMENTS = 2**16


def largest(
    context: LocalContext, x: Any, k: int, nan_is_smallest: bool = False
) -> tuple[Any, Any]:
    """Returns the k largest elements along the last axis of x, the largest first, and their
    indices, of which the lowest comes first among equal elements.

    Args:
      context: the device.
      x: a TensorFlow tensor [..., elements] of floats or integers.
      k: the number of elements that are returned.
      nan_is_smallest: whether NaN is smaller than all numbers, and not larger.
    """
    if not x.dtype.is_floating:
        values, indices = tf.math.top_k(x, k)
        return values, indices

    def from_keys(keys: Any) -> tuple[Any, Any]:
        _, indices = tf.math.top_k(keys, k)
        return tf.gather(x, indices, batch_dims=len(x.shape) - 1), indices

    if context.compiled:
        # XLA selects among floats faster than among integers.
        return from_keys(_in_order_of_xla(x, nan_is_smallest))
    return _unless_nan(
        x,
        lambda: tuple(tf.math.top_k(x, k)),
        lambda: from_keys(_keys(x, nan_is_smallest)),
    )


def largest_and_index(context: LocalContext, x: Any, axis: int) -> tuple[Any, Any]:
    """Returns the largest element along an axis, without the axis, and its index, int32: the
    lowest among equals. NaN is larger than all numbers.
    """

    def of(keys: Any) -> tuple[Any, Any]:
        return tf.reduce_max(keys, axis), tf.argmax(keys, axis, output_type=tf.int32)

    def of_floats() -> tuple[Any, Any]:
        key, index = of(_keys(x))
        return from_ordered_integers(key, x.dtype), index

    if not x.dtype.is_floating:
        return of(x)
    if context.compiled:
        return of_floats()
    return _unless_nan(x, lambda: of(x), of_floats)


def _unless_nan(
    x: Any,
    without_nan: Callable[[], tuple[Any, Any]],
    with_nan: Callable[[], tuple[Any, Any]],
) -> tuple[Any, Any]:
    """Returns the result of `without_nan`, which is faster, or that of `with_nan` if the
    floats x have NaN, which may be known only when the program runs.
    """
    num_elements = x.shape.num_elements()
    if num_elements is not None and num_elements <= _FEW_ELEMENTS:
        return with_nan()
    # A sum is NaN if a term is. That of both infinities is as well, which does no harm.
    result: tuple[Any, Any] = tf.cond(
        tf.math.is_nan(tf.reduce_sum(x)), with_nan, without_nan
    )
    return result


def _keys(x: Any, nan_is_smallest: bool = False) -> Any:
    """Returns integers in the order of the floats x."""
    integers = ordered_integers(x, nan_is_smallest)
    # -0.0, which is -1, equals 0.0.
    return tf.where(tf.equal(integers, -1), tf.zeros([], integers.dtype), integers)


def _in_order_of_xla(x: Any, nan_is_smallest: bool) -> Any:
    """Returns the floats x as XLA orders them: it puts 0.0 before -0.0, and NaN first or last
    by its sign.
    """
    zero = tf.zeros([], x.dtype)
    nan = tf.constant(-math.nan if nan_is_smallest else math.nan, x.dtype)
    x = tf.where(tf.equal(x, zero), zero, x)
    return tf.where(tf.math.is_nan(x), nan, x)
