"""Checks of shapes and data types that several families of ops share.

x, dim = tensor_along(x, dim)          # the arguments of mtf.sort(x, "length"), checked
require_dim(x.shape, "length")         # in an op: ShapeError if x lacks the dimension
require_dim_of_caller(x.shape, "length")     # the same in a function or layer
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meshtf.errors import DTypeError, ShapeError, explain_error, near_misses
from meshtf.graph import Source, Spec, Tensor
from meshtf.graph.arguments import as_tensor
from meshtf.names import Dimension, Shape, ShapeLike, is_complex, is_floating
from meshtf.names.arguments import as_dim


def require_floating(x: Spec, function: str) -> None:
    """Raises DTypeError if x is not of a floating type.

    Args:
      x: the spec of an input.
      function: the name of the function that takes it, for the error.
    """
    require_order(x.dtype, function)
    if not is_floating(x.dtype):
        raise DTypeError(
            explain_error(
                f"{function} does not take {x.dtype}.",
                way_out='Convert it first: mtf.cast(x, "float32").',
            )
        )


def same_dtype(*xs: Spec) -> str:
    """Returns the data type of all xs. Raises DTypeError if they differ."""
    for x in xs:
        if x.dtype != xs[0].dtype:
            raise DTypeError(
                explain_error(
                    f"the data types {xs[0].dtype} and {x.dtype} do not mix.",
                    way_out=f"Convert one of them, as in mtf.cast(x, {xs[0].dtype!r}).",
                )
            )
    return xs[0].dtype


def require_order(dtype: str, function: str) -> None:
    """Raises DTypeError if a data type is complex.

    Args:
      dtype: the data type of an input.
      function: the name of a function that only takes numbers with an order.
    """
    if is_complex(dtype):
        raise DTypeError(
            explain_error(
                f"{function} does not take {dtype}: complex numbers have no order.",
                way_out="Use real numbers: abs(x), mtf.math.real(x) or mtf.math.imag(x).",
            )
        )


def single_dim(dim: ShapeLike) -> Dimension:
    """Returns the dimension that a string such as "batch:16" describes.

    Raises:
      ShapeError: the string describes no dimension, or several.
    """
    dims = tuple(Shape(dim))
    if len(dims) != 1:
        raise ShapeError(f'one dimension is expected, such as "batch:16", not {dim!r}.')
    return dims[0]


def require_dim(shape: Shape, *names: str) -> None:
    """Raises ShapeError if `shape` lacks one of the names."""
    for name in names:
        as_dim("dim", name, shape)  # raises ArgumentError for what is no name
        if name not in shape:
            raise ShapeError(_absence_message(name, shape))


def require_dim_of_caller(shape: Shape, *names: str) -> None:
    """Raises ShapeError if `shape` lacks one of the names, with the user's line.

    It is for functions and layers. Within an op use `require_dim`: `apply` adds the line and
    the inputs to its error.
    """
    for name in names:
        as_dim("dim", name, shape)
        if name not in shape:
            way_out = "Name one of its dimensions."
            if shape.names:
                way_out = (
                    "Name one of its dimensions, or rename one first: "
                    f'mtf.rename(x, "{shape.names[-1]}", "{name}").'
                )
            raise ShapeError(
                explain_error(
                    _absence_message(name, shape),
                    way_out=way_out,
                    source=Source.of_caller(),
                )
            )


def _absence_message(name: str, shape: Shape) -> str:
    """Returns the message of the error for a dimension that a shape lacks."""
    name_without_size, _, _ = name.partition(":")  # of "batch:16", "batch"
    suggestion = did_you_mean(name_without_size, shape.names)
    return f'there is no dimension "{name}" in {shape!r}.{suggestion}'


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Returns the names that an unknown name may stand for, as a sentence after a space; ""
    if there are none.
    """
    close = near_misses(name, names)
    return f" Did you mean {close}?" if close else ""


def tensor_along(
    x: Any, dim: Any, name: str = "x", dim_name: str = "dim"
) -> tuple[Tensor, str]:
    """Returns the arguments `x` and `dim` of a public function as a tensor [..., dim, ...]
    and the name of one of its dimensions.

    Args:
      x: a tensor or variable.
      dim: the name of one of its dimensions, or a `Dimension`.
      name: the name of the argument `x` in errors.
      dim_name: the name of the argument `dim` in errors.

    Raises:
      ArgumentError: x is no tensor, or `dim` neither a name nor a dimension.
      ShapeError: x has no such dimension, or another size of it.
    """
    x = as_tensor(name, x)
    checked_dim = as_dim(dim_name, dim, x.shape)
    if checked_dim not in x.shape:
        message = _absence_message(checked_dim, x.shape)
        raise ShapeError(explain_error(message, source=Source.of_caller()))
    if isinstance(dim, Dimension) and x.shape[checked_dim] != dim.size:
        raise ShapeError(
            explain_error(
                f"there is no dimension {dim!r} in {x.shape!r}.",
                source=Source.of_caller(),
                way_out=f'Give its size in the tensor, or only its name: "{checked_dim}".',
            )
        )
    return x, checked_dim
