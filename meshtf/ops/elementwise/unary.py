"""Functions of one tensor, element by element.

    mtf.exp(x), mtf.tanh(x), mtf.is_nan(x)
    abs(x), -x, ~x                Python's operators call these functions

At singular points a cotangent of zero stays zero: the gradient of mtf.where(x > 0,
mtf.log(x), 0.0) at x = 0 is 0, not 0 * inf = NaN.

Each function applies the op `Unary` with the name of the function, which is an entry of the
table in `unary_op`.
"""

from __future__ import annotations

from typing import Any

from meshtf.graph import OPERATORS, Tensor, apply
from meshtf.ops.elementwise.arithmetic import atan2
from meshtf.ops.elementwise.complex import imag, real
from meshtf.ops.elementwise.unary_op import Unary


def exp(x: Any) -> Tensor:
    """Returns e to the power x, elementwise."""
    return apply(Unary("exp"), x)


def expm1(x: Any) -> Tensor:
    """Returns exp(x) - 1, elementwise, accurate for small x."""
    return apply(Unary("expm1"), x)


def log(x: Any) -> Tensor:
    """Returns the natural logarithm, elementwise."""
    return apply(Unary("log"), x)


def log1p(x: Any) -> Tensor:
    """Returns log(1 + x), elementwise, accurate for small x."""
    return apply(Unary("log1p"), x)


def sqrt(x: Any) -> Tensor:
    """Returns the square root, elementwise."""
    return apply(Unary("sqrt"), x)


def rsqrt(x: Any) -> Tensor:
    """Returns 1 / sqrt(x), elementwise."""
    return apply(Unary("rsqrt"), x)


def square(x: Any) -> Tensor:
    """Returns x * x, elementwise."""
    return apply(Unary("square"), x)


def tanh(x: Any) -> Tensor:
    """Returns the hyperbolic tangent, elementwise."""
    return apply(Unary("tanh"), x)


def sigmoid(x: Any) -> Tensor:
    """Returns 1 / (1 + exp(-x)), elementwise."""
    return apply(Unary("sigmoid"), x)


def softplus(x: Any) -> Tensor:
    """Returns log(1 + exp(x)), elementwise."""
    return apply(Unary("softplus"), x)


def erf(x: Any) -> Tensor:
    """Returns the error function, elementwise."""
    return apply(Unary("erf"), x)


def erfinv(x: Any) -> Tensor:
    """Returns the number whose error function is x, elementwise."""
    return apply(Unary("erfinv"), x)


def lgamma(x: Any) -> Tensor:
    """Returns the logarithm of the absolute value of the gamma function, elementwise."""
    return apply(Unary("lgamma"), x)


def digamma(x: Any) -> Tensor:
    """Returns the derivative of the logarithm of the gamma function, elementwise."""
    return apply(Unary("digamma"), x)


def sin(x: Any) -> Tensor:
    """Returns the sine, elementwise."""
    return apply(Unary("sin"), x)


def cos(x: Any) -> Tensor:
    """Returns the cosine, elementwise."""
    return apply(Unary("cos"), x)


def tan(x: Any) -> Tensor:
    """Returns the tangent, elementwise."""
    return apply(Unary("tan"), x)


def asin(x: Any) -> Tensor:
    """Returns the angle whose sine is x, elementwise."""
    return apply(Unary("asin"), x)


def acos(x: Any) -> Tensor:
    """Returns the angle whose cosine is x, elementwise."""
    return apply(Unary("acos"), x)


def atan(x: Any) -> Tensor:
    """Returns the angle whose tangent is x, elementwise."""
    return apply(Unary("atan"), x)


def sinh(x: Any) -> Tensor:
    """Returns the hyperbolic sine, elementwise."""
    return apply(Unary("sinh"), x)


def cosh(x: Any) -> Tensor:
    """Returns the hyperbolic cosine, elementwise."""
    return apply(Unary("cosh"), x)


def angle(x: Any) -> Tensor:
    """Returns the angle of complex numbers, between -pi and pi, elementwise."""
    return atan2(imag(x), real(x))


def abs(x: Any) -> Tensor:
    """Returns the absolute value, elementwise; for complex numbers the modulus, as floats."""
    return apply(Unary("abs"), x)


def negative(x: Any) -> Tensor:
    """Returns -x, elementwise."""
    return apply(Unary("negative"), x)


def sign(x: Any) -> Tensor:
    """Returns the sign of x, -1, 0 or 1, elementwise; it has no gradient."""
    return apply(Unary("sign"), x)


def reciprocal(x: Any) -> Tensor:
    """Returns 1 / x, elementwise."""
    return apply(Unary("reciprocal"), x)


def floor(x: Any) -> Tensor:
    """Returns x rounded down, elementwise; it has no gradient."""
    return apply(Unary("floor"), x)


def ceil(x: Any) -> Tensor:
    """Returns x rounded up, elementwise; it has no gradient."""
    return apply(Unary("ceil"), x)


def round(x: Any) -> Tensor:
    """Returns x rounded to the nearest integer, elementwise: 0.5 to 0, 1.5 to 2. It has no
    gradient.
    """
    return apply(Unary("round"), x)


def is_finite(x: Any) -> Tensor:
    """Returns whether x is neither infinite nor NaN, elementwise."""
    return apply(Unary("is_finite"), x)


def is_nan(x: Any) -> Tensor:
    """Returns whether x is not a number, elementwise."""
    return apply(Unary("is_nan"), x)


def logical_not(x: Any) -> Tensor:
    """Returns whether x is False, elementwise."""
    return apply(Unary("logical_not"), x)


# Python's operators abs(x), -x and ~x call functions by this table.
for _function in (abs, negative, logical_not):
    OPERATORS[_function.__name__] = _function
