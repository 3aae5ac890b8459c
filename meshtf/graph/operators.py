"""Python operators, indexing and methods of tensors and variables.

    OPERATORS["add"](x, y)                # what `x + y` calls

`x + y` calls the function `add` of `meshtf.ops`, but `meshtf.graph` must not import
`meshtf.ops`. So `meshtf.ops` registers its functions in the table `OPERATORS`. Gradients use
the table as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, Union

import numpy as np

from meshtf.errors import ArgumentError, CheckpointError, PlanError, explain_error
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

    def numpy(self) -> Any:
        """Returns the global value as a NumPy array."""
        raise NotImplementedError

    def __float__(self) -> float:
        check_scalar(self, "float(x)", "Reduce it first, as in float(x.mean())")
        return float(np.asarray(self).item())

    def __int__(self) -> int:
        check_scalar(self, "int(x)", "Reduce it first, as in int(x.max())")
        return int(np.asarray(self).item())

    def __round__(self, digits: int | None = None) -> float:
        return round(float(self), digits)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self.numpy(), dtype)

    def __array_function__(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Returns what a function of NumPy computes from the global values, as in
        `np.mean(loss)`. Raises ArgumentError if it is told an axis.
        """
        if func in _PROPERTIES and len(args) == 1 and not kwargs:
            return _PROPERTIES[func](args[0])
        axis = _axis_in(func, args, kwargs)
        if axis is not None:
            _refuse_axis(self, func.__name__, axis)
        args, kwargs = _with_arrays((args, kwargs))
        return func(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises CheckpointError: shards on devices are not pickled."""
        kind = type(self).__name__.lower()
        raise not_pickled(f"a {kind}", f"{self!r}".partition("\n")[0])

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

        @property
        def _id(self):
            # `tf.GradientTape.gradient` reads it, of its targets and sources.
            raise PlanError(
                explain_error(
                    "tf.GradientTape does not see named ops, so it has no gradients of "
                    "meshtf's tensors and variables.",
                    **{type(self).__name__.lower(): repr(self.shape)},
                    source=line_of_caller(),
                    way_out="Write mtf.gradients([loss], variables), outside of the tape or "
                    "in a mtf.function.",
                )
            )

        @property
        def T(self):
            raise AttributeError(
                explain_error(
                    "a tensor has no T: operations find dimensions by name, in any order.",
                    tensor=repr(self.shape),
                    source=Source.of_caller(),
                    way_out='For an array in another order write mtf.transpose(x, "d;batch").',
                )
            )

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


def line_of_caller() -> str:
    """Returns the user's line, without the name of the method that Python or a library has
    called.
    """
    return str(Source.of_caller()).partition(", ")[2]


def not_pickled(kind: str, description: str) -> CheckpointError:
    """Returns the error for an object that pickle, or what is built on it, should write.

    Args:
      kind: what the object is, such as "a tensor".
      description: the name of the object, or its shape.
    """
    return CheckpointError(
        explain_error(
            f"{kind} is not pickled: its value is in shards on devices of this process.",
            object=description,
            source=line_of_caller(),
            way_out="Write variables by mtf.checkpoints.save(directory, step, {v.name: v "
            "...}), and pass x.numpy() to other processes; copy.deepcopy copies in this "
            "one.",
        )
    )


# Functions of NumPy that need no value, so they take recorded tensors as well.
_PROPERTIES: dict[Any, Callable[[Any], Any]] = {
    np.ndim: lambda x: x.ndim,
    np.shape: lambda x: x.shape.sizes,
    np.size: lambda x: x.shape.size,
}


def _axis_in(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the argument `axis` of a call of a NumPy function; None: there is none."""
    try:
        arguments = inspect.signature(func).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # it is written in C, or the call is wrong
        arguments = kwargs
    return arguments.get("axis")


def _with_arrays(x: Any) -> Any:
    """Returns arguments of a NumPy function, with an array for each tensor and variable."""
    if isinstance(x, Operators):
        return np.asarray(x)
    if isinstance(x, (tuple, list)) and not hasattr(x, "_fields"):
        return type(x)(map(_with_arrays, x))
    if isinstance(x, dict):
        return {key: _with_arrays(value) for key, value in x.items()}
    return x


# How a function of NumPy is written with names; the key is its name.
_NAMED_FUNCTIONS = {
    "amax": 'x.max("batch")',
    "amin": 'x.min("batch")',
    "concatenate": 'mtf.concat([x, y], "batch")',
    "stack": 'mtf.stack([x, y], "batch")',
    **{name: f'x.{name}("batch")' for name in ("sum", "mean", "max", "min")},
    **{
        name: f'mtf.{name}(x, "batch")'
        for name in ("argmax", "argmin", "argsort", "sort", "cumsum", "cumprod", "flip")
    },
}


def _refuse_axis(x: Any, function: str, axis: Any) -> None:
    """Raises ArgumentError: an axis is no name of a dimension."""
    unknown = "an op of meshtf with the name of the dimension"
    named = _NAMED_FUNCTIONS.get(function, unknown)
    raise ArgumentError(
        explain_error(
            f"np.{function} is told axis={axis}, and the dimensions of a tensor have names.",
            tensor=repr(x.shape),
            source=line_of_caller(),
            way_out=f"Write {named}; or np.{function}(x.numpy(), axis={axis}) for the "
            "array in the order of x.shape.",
        )
    )


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


def check_scalar(x: Operators[Any], expression: str, way_out: str) -> None:
    """Raises ArgumentError if a tensor of several elements is used as a Python scalar."""
    if x.shape.size == 1:
        return
    raise ArgumentError(
        explain_error(
            f"{expression} takes a tensor of one element.",
            tensor=repr(x.shape),
            source=Source.of_caller(),
            way_out=f"{way_out}.",
        )
    )
