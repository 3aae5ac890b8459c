"""Integers in the order of floats, in which NaN has a place.

integers = ordered_integers(x)               # NaN is the largest
y = from_ordered_integers(integers, x.dtype)
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def ordered_integers(x: Any, nan_is_smallest: bool = False) -> Any:
    """Returns int32, or int64 for float64, in the order of the floats x. -0.0 is -1, and 0.0
    is 0.

    Args:
      x: a TensorFlow tensor of floats.
      nan_is_smallest: whether NaN is the smallest integer, and not the largest.
    """
    if x.dtype.size < 4:
        x = tf.cast(x, tf.float32)
    integer = tf.int64 if x.dtype == tf.float64 else tf.int32
    bits = tf.bitcast(x, integer)
    # The bits of a float are its sign, and then its size.
    ordered = tf.where(bits < 0, tf.bitwise.bitwise_xor(bits, integer.max), bits)
    of_nan = integer.min if nan_is_smallest else integer.max
    return tf.where(tf.math.is_nan(x), tf.constant(of_nan, integer), ordered)


def from_ordered_integers(y: Any, dtype: tf.DType) -> Any:
    """Returns the floats of a data type that `ordered_integers` gave the integers of."""
    integer = y.dtype
    bits = tf.where(y < 0, tf.bitwise.bitwise_xor(y, integer.max), y)
    as_float = tf.float64 if integer == tf.int64 else tf.float32
    return tf.cast(tf.bitcast(bits, as_float), dtype)
