"""Random distributions, as functions of two uint32 words a and b of each element.

    draw = DISTRIBUTIONS["normal"]("float32", 0.02, 0.0)       # dtype, scale, shift
    y = draw(a, b)                                             # NumPy arrays or tensors

The words are hashes of the seed and the element's index (`counter_bits`); mix(a, b) are 32
random bits. The caller casts y to the data type: float16 and bfloat16 are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.ops.random.counter_bits import by_packets, mix, upper_bits

# The number of random bits of a number in [0, 1), by data type: at most the precision of the
# type, since with more bits a number could be rounded up to 1; and at most 31, since
# `upper_bits` returns int32.
_UNIFORM_BITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 31}

# A function (a, b) -> random numbers, all of one shape.
Draw = Callable[[Any, Any], Any]


# Each of the next five functions takes the data type of the numbers, a scale and a shift.


def _uniform(dtype: str, scale: float, shift: float) -> Draw:
    """Returns a function that draws floats, uniform in [shift, shift + scale)."""
    num_bits = _UNIFORM_BITS[dtype]
    compute_dtype = "float32"
    if dtype == "float64":
        compute_dtype = "float64"

    def draw(a: Any, b: Any) -> Any:
        bits = upper_bits(mix(a, b), num_bits)
        return _cast(bits, compute_dtype) * 2.0**-num_bits

    return _scale_and_shift(draw, scale, shift)


def _integers(dtype: str, count: float, minval: float) -> Draw:
    """Returns a function that draws integers, uniform in [minval, minval + count): minval +
    bits * count // 2**32.
    """

    def draw(a: Any, b: Any) -> Any:
        bits = _cast(mix(a, b), "uint64")
        product = bits * np.uint64(int(count))
        num_bits = np.uint64(32)
        if isinstance(product, np.ndarray):
            quotient = product >> num_bits
        else:
            quotient = tf.bitwise.right_shift(product, num_bits)
        return _cast(quotient, dtype)

    return _scale_and_shift(draw, scale=1, shift=minval)


def _normal(dtype: str, scale: float, shift: float) -> Draw:
    """Returns a function that draws normal numbers, by the Box-Muller transform:
    sqrt(-2 log(u)) * cos(angle) for uniform u in (0, 1] and angle in [0, 2 pi).

    The results of TensorFlow's ops one by one and of XLA agree within 1e-6; those of the
    inverse error function would differ by 2e-3.
    """

    def radius(u: Any) -> Any:
        return tf.sqrt(-2.0 * tf.math.log(u))

    def draw(a: Any, b: Any) -> Any:
        u = _upper_float(mix(a, b), count=24)
        angle = _upper_float(mix(b, a), count=24)
        u += 1.0  # in place for NumPy, a new tensor for TensorFlow
        u *= 2.0**-24
        angle *= 2 * math.pi * 2.0**-24
        # With `by_packets`, results do not depend on the index of an element.
        return by_packets(radius, u) * by_packets(tf.cos, angle)

    return _scale_and_shift(draw, scale, shift)


def _truncated(dtype: str, scale: float, shift: float) -> Draw:
    """Returns a function that draws normal numbers within two standard deviations of the
    mean, by the inverse of the distribution function.
    """
    mass = math.erf(math.sqrt(2))  # the probability of two standard deviations

    def quantile(bits: Any) -> Any:
        # Midpoints of 2**23 intervals of equal probability, in (-mass, mass).
        interval = mass * 2.0**-22
        midpoints = (_upper_float(bits, count=23) + 0.5) * interval - mass
        return tf.math.erfinv(midpoints) * math.sqrt(2)

    def draw(a: Any, b: Any) -> Any:
        return by_packets(quantile, mix(a, b))

    return _scale_and_shift(draw, scale, shift)


def _gumbel(dtype: str, scale: float, shift: float) -> Draw:
    """Returns a function that draws numbers of the Gumbel distribution: -log(-log(1 - p))
    for uniform p.
    """

    def double_log(bits: Any) -> Any:
        # log1p keeps all digits of a small p, which gives the upper tail.
        midpoints = _upper_float(bits, count=31) + 0.5
        minus_p = midpoints * -(2.0**-31)
        exponential = -tf.math.log1p(minus_p)
        return -tf.math.log(exponential)

    def draw(a: Any, b: Any) -> Any:
        return by_packets(double_log, mix(a, b))

    return _scale_and_shift(draw, scale, shift)


def _scale_and_shift(draw: Draw, scale: float, shift: float) -> Draw:
    """Returns a function whose result is draw(a, b) * scale + shift."""

    def scaled_draw(a: Any, b: Any) -> Any:
        y = draw(a, b)
        if scale != 1:
            y *= scale
        if shift:
            y += shift
        return y

    return scaled_draw


def _upper_float(bits: Any, count: int) -> Any:
    """Returns the upper `count` bits of 32 as an integer in float32."""
    return _cast(upper_bits(bits, count), "float32")


def _cast(x: Any, dtype: str) -> Any:
    """Returns a NumPy array or a tensor, cast to a data type."""
    if isinstance(x, np.ndarray):
        return x.astype(dtype)
    return tf.cast(x, dtype)


# Functions (dtype, scale, shift) -> Draw; for "integers", the scale is the count of integers.
DISTRIBUTIONS: dict[str, Callable[[str, float, float], Draw]] = {
    "uniform": _uniform,
    "integers": _integers,
    "normal": _normal,
    "truncated": _truncated,
    "gumbel": _gumbel,
}
