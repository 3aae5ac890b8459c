"""Lists of dimension names, as arguments take them: "a;b", with or without sizes,
shapes, and sequences.

>>> from meshtf.names import Shape, names_of
>>> names_of("batch; d_model:512", Shape("d_model:512;batch:8"))
('batch', 'd_model')

A size that comes with a name is checked against the tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from meshtf.errors import ShapeError, explain_error
from meshtf.names.arguments import as_dim, as_sequence
from meshtf.names.dimension import Dimension
from meshtf.names.parse import parse_pairs
from meshtf.names.shape import Shape

_NAMES = 'names of dimensions, such as "batch;d_model"'
Names: TypeAlias = str | Shape | Dimension | Iterable[str | Dimension]


def names_of(dims: Names, *shapes: Shape, argument: str = "dims") -> tuple[str, ...]:
    """Returns the names in "a;b", in a shape, or in a sequence of names or dimensions.

    Args:
      dims: the value of the caller's argument.
      shapes: of the tensors to which the names refer.
      argument: the name of the caller's argument.

    Raises:
      ArgumentError: `dims` is none of these.
      ShapeError: a name comes with a size that differs from one of the shapes, or, in a
        string, with a size although there are no shapes.
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
        pairs = [_name_and_size(argument, dim) for dim in _sequence(argument, dims)]
    for name, size in pairs:
        check_size(name, size, dims, *shapes)
    return tuple(name for name, _ in pairs)


def _sequence(
    argument: str, dims: Dimension | Iterable[str | Dimension]
) -> Sequence[str | Dimension]:
    if isinstance(dims, Dimension):
        return (dims,)
    return as_sequence(argument, dims, _NAMES)


def _name_and_size(argument: str, dim: str | Dimension) -> tuple[str, int | None]:
    if isinstance(dim, Dimension):
        return dim.name, dim.size
    return as_dim(argument, dim), None


def name_of(dim: str, size: int) -> str:
    """Returns the name in "d" or "d:6", of a dimension of this size. Raises
    ShapeError.
    """
    name = dim.partition(":")[0].strip()
    return names_of(dim, Shape([(name, size)]))[0] if name != dim else dim


def check_size(name: str, size: int | None, dims: object, *shapes: Shape) -> None:
    """Raises ShapeError if a shape has another size of `name`; None: any size."""
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
    if size and not size.isdigit():
        raise ShapeError(
            f"the size of {name!r} must be an integer, not {size!r}, in {text!r}."
        )
    return int(size) if size else None
