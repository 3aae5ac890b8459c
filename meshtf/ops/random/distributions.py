"""Random distributions, as functions of two uint32 words a and b of each element.

    draw = draw_function("normal", "float32", scale=0.02, shift=0.0)
    y = draw(a, b)                                             # NumPy arrays or tensors

The words are hashes of the seed and the element's index (`counter_bits`); mix(a, b) are 32
random bits. The caller casts y to the data type: float16 and bfloat16 are computed in float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.names import accumulation_dtype
from meshtf.ops.random.counter_bits import by_packets, mix, mix_high, upper_bits

# The number of random bits of a number in [0, 1), by data type: at most the precision of the
# type, since with more bits a number could be rounded up to 1; and at most 31, since
# `upper_bits` returns int32.
_UNIFORM_BITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 31}

# A function (a, b) -> random numbers, all of one shape.
Draw = Callable[[Any, Any], Any]


def draw_function(kind: str, dtype: str, scale: float, shift: float) -> Draw:
    """Returns a function that draws standard numbers * scale + shift.

    Args:
      kind: the distribution of the standard numbers: "uniform" in [0, 1), "integers" in
        [0, scale), which are not multiplied, "normal", "truncated" or "gumbel"; or "mask",
        booleans that are false with the probability `scale`.
      dtype: the data type of the numbers.
      scale: the factor.
      shift: what is added.
    """
    draw: Draw
    if kind == "mask":
        return functools.partial(_mask, scale)
    if kind == "uniform":
        draw = functools.partial(_uniform, dtype)
    elif kind == "integers":
        draw = functools.partial(_integers, dtype, int(scale))
        scale = 1
    else:
        draw = {"normal": _normal, "truncated": _truncated, "gumbel": _gumbel}[kind]

    def scaled_draw(a: Any, b: Any) -> Any:
        y = draw(a, b)
        if scale != 1:
            y *= scale
        if shift:
            y += shift
        return y

    return scaled_draw


def _mask(rate: float, a: Any, b: Any) -> Any:
    """Returns booleans, false with the probability `rate`."""
    # The number of the 2**32 values of the random bits that give false.
    threshold = np.uint32(min(round(rate * 2**32), 2**32 - 1))
    # The upper 16 bits of `mix_high` are random enough for a comparison.
    return mix_high(a, b) >= threshold


def _uniform(dtype: str, a: Any, b: Any) -> Any:
    """Returns floats, uniform in [0, 1)."""
    num_bits = _UNIFORM_BITS[dtype]
    bits = upper_bits(mix(a, b), num_bits)
    return _cast(bits, accumulation_dtype(dtype)) * 2.0**-num_bits


def _integers(dtype: str, count: int, a: Any, b: Any) -> Any:
    """Returns integers, uniform in [0, count): bits * count // 2**32."""
    product = _cast(mix(a, b), "uint64") * np.uint64(count)
    num_bits = np.uint64(32)
    if isinstance(product, np.ndarray):
        return _cast(product >> num_bits, dtype)
    return _cast(tf.bitwise.right_shift(product, num_bits), dtype)


def _normal(a: Any, b: Any) -> Any:
    """Returns normal numbers, by the Box-Muller transform: sqrt(-2 log(u)) * cos(angle) for
    uniform u in (0, 1] and angle in [0, 2 pi).

    The results of TensorFlow's ops one by one and of XLA agree within 1e-6; those of the
    inverse error function would differ by 2e-3.
    """

    def radius(u: Any) -> Any:
        return tf.sqrt(-2.0 * tf.math.log(u))

    u = _upper_float(mix(a, b), count=24)
    angle = _upper_float(mix(b, a), count=24)
    u += 1.0  # in place for NumPy, a new tensor for TensorFlow
    u *= 2.0**-24
    angle *= 2 * math.pi * 2.0**-24
    # With `by_packets`, results do not depend on the index of an element.
    return by_packets(radius, u) * by_packets(tf.cos, angle)


def _truncated(a: Any, b: Any) -> Any:
    """Returns normal numbers within two standard deviations of the mean, by the inverse of
    the distribution function.
    """
    mass = math.erf(math.sqrt(2))  # the probability of two standard deviations

    def quantile(bits: Any) -> Any:
        # Midpoints of 2**23 intervals of equal probability, in (-mass, mass).
        interval = mass * 2.0**-22
        midpoints = (_upper_float(bits, count=23) + 0.5) * interval - mass
        return tf.math.erfinv(midpoints) * math.sqrt(2)

    return by_packets(quantile, mix(a, b))


def _gumbel(a: Any, b: Any) -> Any:
    """Returns numbers of the Gumbel distribution: -log(-log(1 - p)) for uniform p."""

    def double_log(bits: Any) -> Any:
        # log1p keeps all digits of a small p, which gives the upper tail.
        midpoints = _upper_float(bits, count=31) + 0.5
        minus_p = midpoints * -(2.0**-31)
        exponential = -tf.math.log1p(minus_p)
        return -tf.math.log(exponential)

    return by_packets(double_log, mix(a, b))


def _upper_float(bits: Any, count: int) -> Any:
    """Returns the upper `count` bits of 32 as an integer in float32."""
    return _cast(upper_bits(bits, count), "float32")


def _cast(x: Any, dtype: str) -> Any:
    """Returns a NumPy array or a tensor, cast to a data type."""
    if isinstance(x, np.ndarray):
        return x.astype(dtype)
    return tf.cast(x, dtype)
