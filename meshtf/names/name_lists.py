"""Lists of dimension names as arguments of functions: strings such as "batch;d_model" or
"batch:8;d_model:512", shapes, and sequences of names or dimensions.

>>> from meshtf.names import Shape, names_of
>>> names_of("batch; d_model:512", Shape("d_model:512;batch:8"))
('batch', 'd_model')

If a name has a size, the size is checked against the tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from meshtf.errors import ShapeError, explain_error
from meshtf.names.arguments import as_dim, as_sequence, not_indices, refuse
from meshtf.names.dimension import Dimension
from meshtf.names.parse import parse_pairs
from meshtf.names.shape import Shape

_NAMES = 'names of dimensions, such as "batch;d_model"'
Names: TypeAlias = str | Shape | Dimension | Iterable[str | Dimension]


def names_of(dims: Names, *shapes: Shape, argument: str = "dims") -> tuple[str, ...]:
    """Returns the names in "a;b", in a shape, or in a sequence of names or dimensions.

    Args:
      dims: the value of the caller's argument.
      *shapes: the shapes of the tensors that the names refer to.
      argument: the name of the caller's argument, for errors.

    Raises:
      ArgumentError: `dims` is of another type.
      ShapeError: the size of a name differs from the size in a shape; or a string has sizes,
        but there are no shapes to compare them with.
      ParseError: a string cannot be read.
    """
    if isinstance(dims, str):
        pairs = [
            (name, _size(name, size, dims))
            for name, size in parse_pairs(dims, kind="shape", values=False)
        ]
        if not shapes and any(size is not None for _, size in pairs):
            names = ";".join(name for name, _ in pairs)
            raise ShapeError(
                f"names alone are taken, without sizes: {names!r} instead of {dims!r}."
            )
    else:
        shape = shapes[0] if shapes else ""
        sequence = _sequence(argument, dims, shape)
        pairs = [_name_and_size(argument, dim, shape) for dim in sequence]
    for name, size in pairs:
        check_size(name, size, dims, *shapes)
    return tuple(name for name, _ in pairs)


def _sequence(
    argument: str, dims: Dimension | Iterable[str | Dimension], shape: Shape | str
) -> Sequence[str | Dimension]:
    """Returns one dimension or several as a sequence. Raises ArgumentError; then `shape` is
    shown, if it is that of a tensor.
    """
    if isinstance(dims, Dimension):
        return (dims,)
    if isinstance(dims, int):
        way_out = not_indices(shape) if shape else ""
        refuse(argument, dims, _NAMES, way_out)
    return as_sequence(argument, dims, _NAMES)


def _name_and_size(
    argument: str, dim: str | Dimension, shape: Shape | str
) -> tuple[str, int | None]:
    """Returns the name of a dimension, and the size; None: only a name was passed."""
    if isinstance(dim, Dimension):
        return dim.name, dim.size
    return as_dim(argument, dim, shape), None


def name_of(dim: str, size: int) -> str:
    """Returns the name in "d" or "d:6".

    Args:
      dim: the name of a dimension, with or without a size.
      size: the size of the dimension.

    Raises:
      ShapeError: `dim` has another size.
    """
    name = dim.partition(":")[0].strip()
    if name == dim:
        return dim
    (checked_name,) = names_of(dim, Shape([(name, size)]))
    return checked_name


def check_size(name: str, size: int | None, dims: object, *shapes: Shape) -> None:
    """Raises ShapeError if a shape has dimension `name` with another size.

    Args:
      name: the name of the dimension.
      size: the expected size; None: any size.
      dims: the user's argument, for the error.
      *shapes: the shapes to compare with.
    """
    if size is None:
        return
    for shape in shapes:
        if name in shape and shape[name] != size:
            raise ShapeError(
                explain_error(
                    f'dimension "{name}" has the size {shape[name]}, not {size}.',
                    given=repr(dims),
                    tensor=repr(shape),
                    way_out=f'Write the name alone, "{name}", or its true size.',
                )
            )


def _size(name: str, size: str, text: str) -> int | None:
    """Returns the size of dimension `name` in a user's text; None: it has no size there."""
    if size and not size.isdigit():
        raise ShapeError(
            f"the size of {name!r} must be an integer, not {size!r}, in {text!r}."
        )
    return int(size) if size else None
