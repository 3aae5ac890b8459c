"""Elementwise ops of drawn programs in plain TensorFlow: see `tests.fuzz.judge.plain`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.fuzz.judge.plain import Named, binary, ordered, plain


def _each(fn: Any) -> Any:
    return lambda x: Named(fn(plain(x).value), plain(x).dims)


def _both(fn: Any) -> Any:
    return lambda a, b: binary(fn, a, b)


tanh, sin, sigmoid, softplus = map(
    _each, (tf.tanh, tf.sin, tf.sigmoid, tf.math.softplus)
)
relu, erf, square = map(_each, (tf.nn.relu, tf.math.erf, tf.square))
cos, atan, exp, expm1 = map(_each, (tf.cos, tf.atan, tf.exp, tf.math.expm1))
log, log1p, sqrt, rsqrt = map(
    _each, (tf.math.log, tf.math.log1p, tf.sqrt, tf.math.rsqrt)
)
reciprocal, tan, asin, acos = map(_each, (tf.math.reciprocal, tf.tan, tf.asin, tf.acos))
sinh, cosh, erfinv, lgamma = map(
    _each, (tf.sinh, tf.cosh, tf.math.erfinv, tf.math.lgamma)
)
silu, elu, selu, leaky_relu = map(
    _each, (tf.nn.silu, tf.nn.elu, tf.nn.selu, tf.nn.leaky_relu)
)
abs, sign, floor, ceil = map(_each, (tf.abs, tf.sign, tf.floor, tf.math.ceil))
round, is_finite, logical_not = map(
    _each, (tf.round, tf.math.is_finite, tf.logical_not)
)
stop_gradient = _each(tf.stop_gradient)

maximum, minimum, pow, atan2 = map(_both, (tf.maximum, tf.minimum, tf.pow, tf.atan2))
multiply, divide, floormod = map(_both, (tf.multiply, tf.divide, tf.math.floormod))
floordiv, divide_no_nan = map(_both, (tf.math.floordiv, tf.math.divide_no_nan))
squared_difference = _both(tf.math.squared_difference)
less, less_equal, greater = map(_both, (tf.less, tf.less_equal, tf.greater))
greater_equal, equal, not_equal = map(_both, (tf.greater_equal, tf.equal, tf.not_equal))
logical_and, logical_or = map(_both, (tf.logical_and, tf.logical_or))
logical_xor = _both(tf.math.logical_xor)


def logaddexp(a: Any, b: Any) -> Named:
    return binary(lambda x, y: x + tf.math.softplus(y - x), a, b)


def gelu(x: Any, approximate: bool = True) -> Named:
    return _each(lambda v: tf.nn.gelu(v, approximate))(x)


def squared_relu(x: Any) -> Named:
    return square(relu(x))


def clip(x: Any, low: float, high: float) -> Named:
    return minimum(maximum(x, low), high)


def where(condition: Any, x: Any, y: Any) -> Named:
    dims = plain(x).dims
    return Named(
        tf.where(ordered(condition, dims), ordered(x, dims), ordered(y, dims)), dims
    )


def cast(x: Any, dtype: str) -> Named:
    return Named(tf.cast(plain(x).value, dtype), plain(x).dims)
