"""Python operators, indexing and methods of tensors and variables.

    OPERATORS["add"](x, y)                # what `x + y` calls

`x + y` calls the function `add` of `meshtf.ops`, but `meshtf.graph` must not import
`meshtf.ops`. So `meshtf.ops` registers its functions in the table `OPERATORS`. Gradients use
the table as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, Union

import numpy as np

from meshtf.errors import ArgumentError, explain_error
from meshtf.names import Dimension, Names, Shape, Source
from meshtf.names.calls import explain_wrong_calls
from meshtf.names.other_libraries import missing_attribute

# Name of a function -> the function; filled when `meshtf.ops` is imported.
OPERATORS: dict[str, Callable[..., Any]] = {}


def register_operator(name: str, function: Callable[..., Any]) -> None:
    """Sets the function that an operator or method of tensors calls.

    Args:
      name: the key in `OPERATORS`, such as "add" for `x + y`.
      function: the function; it gets the operands.
    """
    OPERATORS[name] = function


# The type that an operator returns: `Tensor`. It is a parameter here, since the module of
# `Tensor` imports this one.
T_co = TypeVar("T_co", covariant=True)

Operand: TypeAlias = Union["Operators[Any]", complex, np.generic]
Index: TypeAlias = Union[int, slice, "Operators[Any]"]
IndexByName: TypeAlias = tuple[str | Dimension, Index] | Mapping[str, Index]


class Operators(Generic[T_co]):
    """Base of tensors and variables: defines `x + y`, `2 * x`, `x < y`, `-x`,
    `x["length", 0]`, `x.sum("length")` and more.
    """

    __slots__ = ()

    @property
    def shape(self) -> Shape:
        """The named shape."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def __getitem__(self, index: IndexByName) -> T_co:
        """Returns elements at indices of named dimensions.

            x["length", 0]                        # the result lacks `length`
            x["length", 2:8]                      # the result has length:6
            x[{"batch": 0, "length": ids}]        # [*ids, ...]: the elements at `ids`

        Args:
          index: (name of a dimension, index), or a dict from names to indices. An integer
            removes the dimension. A slice keeps the dimension; start, stop and step mean
            the same as in Python. Both may be negative. A tensor of non-negative integers
            replaces the dimension by its own dimensions, like `mtf.gather`; one of them may
            have the name of the replaced dimension.

        Raises:
          ArgumentError: the dimensions are not named, or an index is of another type.
          ShapeError: there is no such dimension, or an integer is out of range.
        """
        return OPERATORS["index_by_name"](self, index)

    @explain_wrong_calls
    def sum(self, dims: Names | None = None) -> T_co:
        """Returns the sum over `dims`, by default all: `mtf.reduce_sum`."""
        return OPERATORS["reduce_sum"](self, dims)

    @explain_wrong_calls
    def mean(self, dims: Names | None = None) -> T_co:
        """Returns the mean over `dims`, by default all: `mtf.reduce_mean`."""
        return OPERATORS["reduce_mean"](self, dims)

    @explain_wrong_calls
    def max(self, dims: Names | None = None) -> T_co:
        """Returns the maximum over `dims`, by default all: `mtf.reduce_max`."""
        return OPERATORS["reduce_max"](self, dims)

    @explain_wrong_calls
    def min(self, dims: Names | None = None) -> T_co:
        """Returns the minimum over `dims`, by default all: `mtf.reduce_min`."""
        return OPERATORS["reduce_min"](self, dims)

    @explain_wrong_calls
    def astype(self, dtype: object) -> T_co:
        """Returns the tensor with another dtype, such as "bfloat16": `mtf.cast`."""
        return OPERATORS["cast"](self, dtype)

    def __add__(self, other: Operand) -> T_co:
        return OPERATORS["add"](self, other)

    def __radd__(self, other: Operand) -> T_co:
        return OPERATORS["add"](other, self)

    def __sub__(self, other: Operand) -> T_co:
        return OPERATORS["subtract"](self, other)

    def __rsub__(self, other: Operand) -> T_co:
        return OPERATORS["subtract"](other, self)

    def __mul__(self, other: Operand) -> T_co:
        return OPERATORS["multiply"](self, other)

    def __rmul__(self, other: Operand) -> T_co:
        return OPERATORS["multiply"](other, self)

    def __truediv__(self, other: Operand) -> T_co:
        return OPERATORS["divide"](self, other)

    def __rtruediv__(self, other: Operand) -> T_co:
        return OPERATORS["divide"](other, self)

    def __floordiv__(self, other: Operand) -> T_co:
        return OPERATORS["floordiv"](self, other)

    def __rfloordiv__(self, other: Operand) -> T_co:
        return OPERATORS["floordiv"](other, self)

    def __mod__(self, other: Operand) -> T_co:
        return OPERATORS["floormod"](self, other)

    def __rmod__(self, other: Operand) -> T_co:
        return OPERATORS["floormod"](other, self)

    def __pow__(self, other: Operand) -> T_co:
        return OPERATORS["pow"](self, other)

    def __rpow__(self, other: Operand) -> T_co:
        return OPERATORS["pow"](other, self)

    def __and__(self, other: Operand) -> T_co:
        return OPERATORS["logical_and"](self, other)

    def __rand__(self, other: Operand) -> T_co:
        return OPERATORS["logical_and"](other, self)

    def __or__(self, other: Operand) -> T_co:
        return OPERATORS["logical_or"](self, other)

    def __ror__(self, other: Operand) -> T_co:
        return OPERATORS["logical_or"](other, self)

    def __xor__(self, other: Operand) -> T_co:
        return OPERATORS["logical_xor"](self, other)

    def __rxor__(self, other: Operand) -> T_co:
        return OPERATORS["logical_xor"](other, self)

    def __lt__(self, other: Operand) -> T_co:
        return OPERATORS["less"](self, other)

    def __le__(self, other: Operand) -> T_co:
        return OPERATORS["less_equal"](self, other)

    def __gt__(self, other: Operand) -> T_co:
        return OPERATORS["greater"](self, other)

    def __ge__(self, other: Operand) -> T_co:
        return OPERATORS["greater_equal"](self, other)

    def __neg__(self) -> T_co:
        return OPERATORS["negative"](self)

    def __abs__(self) -> T_co:
        return OPERATORS["abs"](self)

    def __invert__(self) -> T_co:
        return OPERATORS["logical_not"](self)

    # These raise errors with a way out; a type checker should not know them.
    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if name.startswith("_"):  # such as those that NumPy and copy look for
                raise AttributeError(name)
            error = None
            kind = type(self).__name__
            spec = _attribute_of(self, "spec")
            if spec is not None:
                error = missing_attribute(name, spec.shape, kind == "Variable")
            if error is None:
                error = AttributeError(f"{kind!r} object has no attribute {name!r}")
            # Python suggests similar names.
            error.name = name
            error.obj = self
            raise error

        def __matmul__(self, other):
            _refuse_matmul(self, other)

        def __rmatmul__(self, other):
            _refuse_matmul(other, self)


def _attribute_of(x: Any, name: str) -> Any:
    """Returns an attribute without `__getattr__`; None: it is not set yet."""
    try:
        return object.__getattribute__(x, name)
    except AttributeError:
        return None


def _refuse_matmul(x: Any, y: Any) -> None:
    """Raises ArgumentError: `x @ y` does not say which dimension is summed."""
    raise ArgumentError(
        explain_error(
            "x @ y does not say which dimension is summed.",
            x=repr(getattr(x, "shape", x)),
            y=repr(getattr(y, "shape", y)),
            source=Source.of_caller(),
            way_out='Name the dimensions of the result: mtf.einsum([x, y], "batch;d_ff"); or '
            "write mtf.matmul(x, y), which sums over the one name that both have.",
        )
    )
