"""Python operators on tensors and variables, and the ops that gradients call.

`graph` must not import `ops`, yet `x + y` calls `add`. So `meshtf.ops` registers its
functions in a table:

    OPERATORS["add"](x, y)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OPERATORS: dict[str, Callable[..., Any]] = {}


class Operators:
    """Base of tensors and variables: `x + y`, `2 * x`, `x < y`, `-x`."""

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        return OPERATORS["add"](self, other)

    def __radd__(self, other: Any) -> Any:
        return OPERATORS["add"](other, self)

    def __sub__(self, other: Any) -> Any:
        return OPERATORS["subtract"](self, other)

    def __rsub__(self, other: Any) -> Any:
        return OPERATORS["subtract"](other, self)

    def __mul__(self, other: Any) -> Any:
        return OPERATORS["multiply"](self, other)

    def __rmul__(self, other: Any) -> Any:
        return OPERATORS["multiply"](other, self)

    def __truediv__(self, other: Any) -> Any:
        return OPERATORS["divide"](self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return OPERATORS["divide"](other, self)

    def __floordiv__(self, other: Any) -> Any:
        return OPERATORS["floordiv"](self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return OPERATORS["floordiv"](other, self)

    def __mod__(self, other: Any) -> Any:
        return OPERATORS["floormod"](self, other)

    def __rmod__(self, other: Any) -> Any:
        return OPERATORS["floormod"](other, self)

    def __pow__(self, other: Any) -> Any:
        return OPERATORS["pow"](self, other)

    def __rpow__(self, other: Any) -> Any:
        return OPERATORS["pow"](other, self)

    def __and__(self, other: Any) -> Any:
        return OPERATORS["logical_and"](self, other)

    def __rand__(self, other: Any) -> Any:
        return OPERATORS["logical_and"](other, self)

    def __or__(self, other: Any) -> Any:
        return OPERATORS["logical_or"](self, other)

    def __ror__(self, other: Any) -> Any:
        return OPERATORS["logical_or"](other, self)

    def __xor__(self, other: Any) -> Any:
        return OPERATORS["logical_xor"](self, other)

    def __rxor__(self, other: Any) -> Any:
        return OPERATORS["logical_xor"](other, self)

    def __lt__(self, other: Any) -> Any:
        return OPERATORS["less"](self, other)

    def __le__(self, other: Any) -> Any:
        return OPERATORS["less_equal"](self, other)

    def __gt__(self, other: Any) -> Any:
        return OPERATORS["greater"](self, other)

    def __ge__(self, other: Any) -> Any:
        return OPERATORS["greater_equal"](self, other)

    def __neg__(self) -> Any:
        return OPERATORS["negative"](self)

    def __abs__(self) -> Any:
        return OPERATORS["abs"](self)

    def __invert__(self) -> Any:
        return OPERATORS["logical_not"](self)
