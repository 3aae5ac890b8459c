"""Functions of two tensors that broadcast by names, or of a tensor and a number.

x[batch d] + b[d] -> [batch d]        # the sizes of d must be equal
mtf.maximum(x, 0.0), x < y            # Python's operators call these functions
mtf.outer(x, y, mtf.less)             # all pairs; x[length] < y[memory] is an error
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshtf.graph import OPERATORS, Tensor
from meshtf.names.arguments import as_callable
from meshtf.ops.common.broadcasting import (
    allow_outer_broadcast,
    is_scalar,
)
from meshtf.ops.elementwise.complex import as_tensors_of_one_dtype
from meshtf.ops.elementwise.scalar_op import apply_binary
from meshtf.ops.elementwise.where_cast_clip import clip


def add(x: Any, y: Any) -> Tensor:
    """Returns x + y, broadcast by names."""
    return apply_binary("add", x, y)


def subtract(x: Any, y: Any) -> Tensor:
    """Returns x - y, broadcast by names."""
    return apply_binary("subtract", x, y)


def multiply(x: Any, y: Any) -> Tensor:
    """Returns x * y, broadcast by names."""
    return apply_binary("multiply", x, y)


def divide(x: Any, y: Any) -> Tensor:
    """Returns x / y of floats, broadcast by names."""
    return apply_binary("divide", x, y)


def floordiv(x: Any, y: Any) -> Tensor:
    """Returns x / y rounded down, broadcast by names."""
    return apply_binary("floordiv", x, y)


def floormod(x: Any, y: Any) -> Tensor:
    """Returns x modulo y with the sign of y, broadcast by names."""
    return apply_binary("floormod", x, y)


def pow(x: Any, y: Any) -> Tensor:
    """Returns x to the power y, broadcast by names."""
    return apply_binary("pow", x, y)


def divide_no_nan(x: Any, y: Any) -> Tensor:
    """Returns x / y of floats, and 0 where y is 0, broadcast by names."""
    # A number becomes a tensor: `Scalar` computes neither this nor the next two functions.
    return apply_binary("divide_no_nan", *as_tensors_of_one_dtype(x=x, y=y))


def atan2(y: Any, x: Any) -> Tensor:
    """Returns the angle of the point (x, y), between -pi and pi, broadcast by names."""
    return apply_binary("atan2", *as_tensors_of_one_dtype(x=y, y=x))


def logaddexp(x: Any, y: Any) -> Tensor:
    """Returns log(exp(x) + exp(y)) without overflow, broadcast by names."""
    return apply_binary("logaddexp", *as_tensors_of_one_dtype(x=x, y=y))


def outer(
    x: Tensor, y: Tensor, function: Callable[[Any, Any], Tensor] = multiply
) -> Tensor:
    """Returns a function of all pairs of elements of x and y: x [length] and y [memory] give
    [length, memory].

    Names that both have are batch dimensions: [batch, length] and [batch, memory] give
    [batch, length, memory].

        distance = mtf.outer(positions, memory_positions, mtf.subtract)

    Args:
      x: a tensor.
      y: a tensor.
      function: a function of two tensors that broadcast by names, such as mtf.subtract
        or mtf.equal.

    Raises:
      ShapeError: a name that both have has two sizes.
    """
    function = as_callable("function", function)
    with allow_outer_broadcast():
        return function(x, y)


def maximum(x: Any, y: Any) -> Tensor:
    """Returns the greater of x and y, broadcast by names; equal elements share the
    gradient equally.
    """
    if is_scalar(x):
        return clip(y, low=x)
    if is_scalar(y):
        return clip(x, low=y)
    return apply_binary("maximum", x, y)


def minimum(x: Any, y: Any) -> Tensor:
    """Returns the lesser of x and y, broadcast by names; equal elements share the
    gradient equally.
    """
    if is_scalar(x):
        return clip(y, high=x)
    if is_scalar(y):
        return clip(x, high=y)
    return apply_binary("minimum", x, y)


def squared_difference(x: Any, y: Any) -> Tensor:
    """Returns (x - y)**2, broadcast by names."""
    return apply_binary("squared_difference", x, y)


def less(x: Any, y: Any) -> Tensor:
    """Returns x < y as bool, broadcast by names."""
    return apply_binary("less", x, y)


def less_equal(x: Any, y: Any) -> Tensor:
    """Returns x <= y as bool, broadcast by names."""
    return apply_binary("less_equal", x, y)


def greater(x: Any, y: Any) -> Tensor:
    """Returns x > y as bool, broadcast by names."""
    return apply_binary("greater", x, y)


def greater_equal(x: Any, y: Any) -> Tensor:
    """Returns x >= y as bool, broadcast by names."""
    return apply_binary("greater_equal", x, y)


def equal(x: Any, y: Any) -> Tensor:
    """Returns x == y as bool, broadcast by names."""
    return apply_binary("equal", x, y)


def not_equal(x: Any, y: Any) -> Tensor:
    """Returns x != y as bool, broadcast by names."""
    return apply_binary("not_equal", x, y)


def logical_and(x: Any, y: Any) -> Tensor:
    """Returns whether both booleans are true, broadcast by names."""
    return apply_binary("logical_and", x, y)


def logical_or(x: Any, y: Any) -> Tensor:
    """Returns whether at least one of two booleans is true, broadcast by names."""
    return apply_binary("logical_or", x, y)


def logical_xor(x: Any, y: Any) -> Tensor:
    """Returns whether exactly one of two booleans is true, broadcast by names."""
    return apply_binary("logical_xor", x, y)


_ARITHMETIC = (add, subtract, multiply, divide, floordiv, floormod, pow)
_COMPARISONS = (less, less_equal, greater, greater_equal, equal, not_equal)
_LOGICAL = (logical_and, logical_or, logical_xor)
# Python's operators of `meshtf.graph.Operators` call functions by this table.
for _function in (*_ARITHMETIC, *_COMPARISONS, *_LOGICAL):
    OPERATORS[_function.__name__] = _function
