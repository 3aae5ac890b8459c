"""Numbers of a distribution, each made of the two words of an element (see `bits`).

    draw = DISTRIBUTIONS["normal"]("float32", 0.02, 0.0)       # type, scale, shift
    y = draw(a, b)                                             # of NumPy arrays or of tensors

What comes out is cast to the type by the caller: numbers of few bits are made as
float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.ops.random.counter_bits import by_packets, mix, upper_bits

# Bits of a number in [0, 1) that the type holds exactly, so that none is rounded up to
# 1.
_DIGITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 31}

Draw = Callable[[Any, Any], Any]


def _uniform(dtype: str, scale: float, shift: float) -> Draw:
    digits, wide = _DIGITS[dtype], "float64" if dtype == "float64" else "float32"
    return _moved(
        lambda a, b: _cast(upper_bits(mix(a, b), digits), wide) * 2.0**-digits,
        scale,
        shift,
    )


def _integers(dtype: str, count: float, first: float) -> Draw:
    def draw(a: Any, b: Any) -> Any:
        product = _cast(mix(a, b), "uint64") * np.uint64(int(count))
        upper = (
            product >> np.uint64(32)
            if isinstance(product, np.ndarray)
            else tf.bitwise.right_shift(product, np.uint64(32))
        )
        return _cast(upper, dtype)

    return _moved(draw, 1, first)


def _normal(dtype: str, scale: float, shift: float) -> Draw:
    """Box and Muller: equal to 1e-6 op by op and under XLA, where erfinv differs by
    2e-3.
    """

    def radius(x: Any) -> Any:
        return tf.sqrt(-2.0 * tf.math.log(x))

    def draw(a: Any, b: Any) -> Any:
        x, angle = _float(mix(a, b), 24), _float(mix(b, a), 24)
        x += 1.0  # in place for NumPy, and another tensor for TensorFlow
        x *= 2.0**-24
        angle *= 2 * math.pi * 2.0**-24
        return by_packets(radius, x) * by_packets(tf.cos, angle)

    return _moved(draw, scale, shift)


def _truncated(dtype: str, scale: float, shift: float) -> Draw:
    inside = math.erf(math.sqrt(2))  # the mass within two standard deviations

    def quantile(bits: Any) -> Any:  # of the midpoints of 2**23 equal parts of (-1, 1)
        return tf.math.erfinv(
            (_float(bits, 23) + 0.5) * (inside * 2.0**-22) - inside
        ) * math.sqrt(2)

    return _moved(lambda a, b: by_packets(quantile, mix(a, b)), scale, shift)


def _gumbel(dtype: str, scale: float, shift: float) -> Draw:
    def double_log(
        bits: Any,
    ) -> Any:  # small numbers, the upper tail, keep all their digits
        return -tf.math.log(-tf.math.log1p((_float(bits, 31) + 0.5) * -(2.0**-31)))

    return _moved(lambda a, b: by_packets(double_log, mix(a, b)), scale, shift)


def _moved(draw: Draw, scale: float, shift: float) -> Draw:
    def moved(a: Any, b: Any) -> Any:
        y = draw(a, b)
        if scale != 1:
            y *= scale
        if shift:
            y += shift
        return y

    return moved


def _float(bits: Any, count: int) -> Any:
    return _cast(upper_bits(bits, count), "float32")


def _cast(x: Any, dtype: str) -> Any:
    return x.astype(dtype) if isinstance(x, np.ndarray) else tf.cast(x, dtype)


DISTRIBUTIONS: dict[str, Callable[[str, float, float], Draw]] = {
    "uniform": _uniform,
    "integers": _integers,
    "normal": _normal,
    "truncated": _truncated,
    "gumbel": _gumbel,
}
