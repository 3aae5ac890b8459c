"""Elementwise kernels on TensorFlow tensors, with as few passes over memory as possible.

TensorFlow runs one op after the other, and each op is a pass over memory. Some of its
kernels, most of them for gradients, compute an expression of several ops in one pass. Here
they are also used for other formulas, such as silu:

    TanhGrad(y, dy)           dy * (1 - y * y)
    SigmoidGrad(y, dy)        dy * y * (1 - y)
    SoftplusGrad(dy, x)       dy * sigmoid(x); so silu(x) is SoftplusGrad(x, x)
    ReciprocalGrad(y, dy)     -dy * y * y
    Xdivy(dy, y)              dy / y, but 0 where dy is 0, even if y is 0
    MulNoNan(y, dy)           y * dy, but 0 where dy is 0, even if y is infinite

For [2048, 1024] floats on one core, gelu and its gradient take 12 ms in this form;
TensorFlow's tape on the plain formula takes 14 to 17 ms.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from meshtf.ops.common.tensorflow_functions import tf_function

# The constants of the tanh approximation of gelu (Hendrycks and Gimpel, arXiv 1606.08415,
# section 2), doubled: see `gelu_kernel`.
_A = 2 * math.sqrt(2 / math.pi)
_B = _A * 0.044715


def through_float32(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a kernel that also takes float16 and bfloat16, which it computes in float32.

    Args:
      kernel: a kernel that TensorFlow has only for wider types.
    """

    def wide_kernel(*xs: Any) -> Any:
        dtype = xs[0].dtype
        if dtype not in (tf.bfloat16, tf.float16):
            return kernel(*xs)
        y = kernel(*(tf.cast(x, tf.float32) for x in xs))
        return tf.cast(y, dtype)

    return wide_kernel


erfinv_kernel = through_float32(tf_function("math.erfinv"))
lgamma_kernel = through_float32(tf_function("math.lgamma"))
digamma_kernel = through_float32(tf_function("math.digamma"))


def silu_kernel(x: Any) -> Any:
    """Returns x * sigmoid(x)."""
    return tf.raw_ops.SoftplusGrad(gradients=x, features=x)


def _silu_gradient(dy: Any, x: Any) -> Any:
    """Returns dy * (s + x s (1 - s)), where s = sigmoid(x)."""
    s = tf.sigmoid(x)
    return dy * (s + tf.raw_ops.SigmoidGrad(y=s, dy=x))


def gelu_kernel(x: Any) -> Any:
    """Returns the tanh approximation x * (1 + tanh(u)) / 2 as x * sigmoid(2u), with
    2u = x * (_A + _B * x**2).
    """
    return tf.raw_ops.SoftplusGrad(gradients=x, features=x * (_A + _B * tf.square(x)))


def _gelu_gradient(dy: Any, x: Any) -> Any:
    """Returns dy * (s + x s (1 - s) v'), where s = sigmoid(v) and v = x * (_A + _B * x**2).

    v' is _A + 3 * _B * x**2 = 3 * (_A + _B * x**2) - 2 * _A.
    """
    factor = _A + _B * tf.square(x)
    s = tf.sigmoid(x * factor)
    v_derivative = 3 * factor - 2 * _A
    # x s (1 - s) is computed first, since it is 0 for a large x. The product of x and v'
    # could be infinite.
    return dy * (s + tf.raw_ops.SigmoidGrad(y=s, dy=x) * v_derivative)


def erf_kernel(x: Any) -> Any:
    """Returns erf(x), also of infinite float64, for which kernels give NaN."""
    y = tf.math.erf(x)
    return tf.where(tf.math.is_inf(x), tf.sign(x), y) if x.dtype == tf.float64 else y


def gelu_exact_kernel(x: Any) -> Any:
    """Returns x Phi(x), where Phi is the distribution function of the normal distribution."""
    return x * (0.5 + 0.5 * erf_kernel(x * math.sqrt(0.5)))


def _gelu_exact_gradient(dy: Any, x: Any) -> Any:
    """Returns dy * (x phi(x) + Phi(x)), where phi is the density and Phi the distribution
    function of the normal distribution.
    """
    density_at_0 = math.sqrt(0.5 / math.pi)
    density = tf.exp(-0.5 * tf.square(x)) * density_at_0
    distribution = 0.5 + 0.5 * erf_kernel(x * math.sqrt(0.5))
    slope = x * density + distribution
    return dy * slope


def logaddexp_kernel(x: Any, y: Any) -> Any:
    """Returns log(exp(x) + exp(y)); infinities give infinities, not NaN."""
    largest = tf.maximum(x, y)
    # Finite, since inf - inf is NaN.
    largest = tf.clip_by_value(largest, largest.dtype.min, largest.dtype.max)
    total = tf.exp(x - largest) + tf.exp(y - largest)
    return tf.math.log(total) + largest


def extreme_gradients(fn: str, dz: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Returns dx and dy of z = fn(x, y), where `fn` is "maximum" or "minimum": dz goes to the
    selected element; two equal elements get half of it each.
    """
    zero = tf.zeros([], dz.dtype)
    half_dz = dz * tf.constant(0.5, dz.dtype)
    if fn == "maximum":
        selects_x = x > y
        selects_y = x < y
    else:
        selects_x = x < y
        selects_y = x > y
    dx = tf.where(selects_x, dz, tf.where(selects_y, zero, half_dz))
    dy = tf.where(selects_y, dz, tf.where(selects_x, zero, half_dz))
    return dx, dy


def logaddexp_gradients(dz: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Returns dx and dy of z = log(exp(x) + exp(y)): dz times the softmax of x and y."""
    # Equal infinities get equal shares: their difference would be NaN.
    zero = tf.zeros([], dz.dtype)
    difference = tf.where(tf.equal(x, y), zero, x - y)
    share = tf.sigmoid(difference)
    dx = dz * share
    dy = dz * (1 - share)
    return dx, dy


def pow_gradients(dz: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Returns dx and dy of z = x ** y: dz y x**(y - 1) and dz x**y log(x)."""
    zero = tf.zeros([], dz.dtype)
    one = tf.ones([], dz.dtype)
    # x ** 0 is constant in x. The exponent is replaced there by 1, so that no NaN or infinity
    # is computed.
    is_constant = tf.equal(y, 0)
    x_slope = y * tf.pow(x, tf.where(is_constant, one, y - one))
    dx = tf.math.multiply_no_nan(x_slope, dz)
    dx = tf.where(is_constant, zero, dx)
    # A base that is not positive has no real logarithm. It is replaced by 1 likewise.
    if x.dtype.is_complex:
        has_log = tf.not_equal(x, 0)
    else:
        has_log = tf.greater(x, 0)
    safe_x = tf.where(has_log, x, one)
    y_slope = tf.pow(safe_x, y) * tf.math.log(safe_x)
    dy = tf.math.multiply_no_nan(y_slope, dz)
    return dx, tf.where(has_log, dy, zero)


def _rsqrt_gradient(dy: Any, y: Any) -> Any:
    """Returns dy * -0.5 * y**3, where y = 1 / sqrt(x)."""
    minus_y_cubed = tf.raw_ops.ReciprocalGrad(y=y, dy=y)
    return tf.raw_ops.MulNoNan(x=minus_y_cubed, y=dy * 0.5)


def _selu_gradient(dy: Any, y: Any) -> Any:
    """Returns dy times the slope of selu: `scale` from 0 on, y + scale * alpha below. At 0,
    XLA's kernel SeluGrad has the slope of the other side.
    """
    scale = tf.constant(1.0507009873554805, y.dtype)
    return dy * tf.where(y < 0, y + 1.7580993408473769, scale)


# Gradients of functions y = f(x): from dy and y, or from dy and x, as the names of the
# arguments say; and of functions z = f(x, y): from dz, x and y, both gradients.
FUSED_GRADIENTS: dict[str, Callable[..., Any]] = {
    "sqrt": lambda dy, y: tf.raw_ops.Xdivy(x=dy, y=y + y),
    "rsqrt": _rsqrt_gradient,
    "tanh": lambda dy, y: tf.raw_ops.TanhGrad(y=y, dy=dy),
    "sigmoid": lambda dy, y: tf.raw_ops.SigmoidGrad(y=y, dy=dy),
    "relu": lambda dy, y: tf.raw_ops.ReluGrad(gradients=dy, features=y),
    "gelu": _gelu_gradient,
    "gelu_exact": _gelu_exact_gradient,
    "silu": _silu_gradient,
    "softplus": lambda dy, x: tf.raw_ops.SoftplusGrad(gradients=dy, features=x),
    "elu": lambda dy, y: tf.raw_ops.EluGrad(gradients=dy, outputs=y),
    "selu": _selu_gradient,
    "reciprocal": lambda dy, y: -tf.raw_ops.MulNoNan(x=tf.square(y), y=dy),
    "digamma": through_float32(
        lambda dy, x: tf.raw_ops.MulNoNan(x=tf.math.polygamma(tf.ones_like(x), x), y=dy)
    ),
    "maximum": functools.partial(extreme_gradients, "maximum"),
    "minimum": functools.partial(extreme_gradients, "minimum"),
    "logaddexp": logaddexp_gradients,
    "pow": pow_gradients,
}
