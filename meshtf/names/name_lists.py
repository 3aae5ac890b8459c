"""Names of dimensions as callers give them: "a;b", with sizes or without, shapes, and
lists.

>>> from meshtf.names import Shape, names_of
>>> names_of("batch; d_model:512", Shape("d_model:512;batch:8"))
('batch', 'd_model')

A size that stands with a name is a claim about the tensor: one that does not hold is an
error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from meshtf.errors import ShapeError, explain_error
from meshtf.names.arguments import as_dim, as_sequence
from meshtf.names.dimension import Dimension
from meshtf.names.parse import parse_pairs
from meshtf.names.shape import Shape

_NAMES = 'names of dimensions, such as "batch;d_model"'
Names: TypeAlias = str | Shape | Dimension | Iterable[str | Dimension]


def names_of(dims: Names, *shapes: Shape, argument: str = "dims") -> tuple[str, ...]:
    """Returns the names in "a;b", in a shape, or in a list of names or dimensions.

    Args:
      dims: what the caller gave.
      shapes: those of the tensors that the names are about.
      argument: the name of the caller's argument.

    Raises:
      ArgumentError: these are no names.
      ShapeError: a name comes with another size than in one of the shapes, or, in a
        string, with a size where there are no shapes to hold it against.
      ParseError: a string cannot be read.
    """
    if isinstance(dims, str):
        pairs = [
            (name, _size(name, size, dims))
            for name, size in parse_pairs(dims, "shape", False)
        ]
        sized = [name for name, size in pairs if size is not None]
        if sized and not shapes:
            raise ShapeError(
                "names alone are wanted here, without sizes: "
                f"{';'.join(name for name, _ in pairs)!r} instead of {dims!r}."
            )
    else:
        given = (
            (dims,)
            if isinstance(dims, Dimension)
            else as_sequence(argument, dims, _NAMES)
        )
        pairs = [
            (d.name, d.size)
            if isinstance(d, Dimension)
            else (as_dim(argument, d), None)
            for d in given
        ]
    for name, size in pairs:
        check_size(name, size, dims, *shapes)
    return tuple(name for name, _ in pairs)


def name_of(dim: str, size: int) -> str:
    """Returns the name in "d" or "d:6", of a dimension of this size. Raises
    ShapeError.
    """
    name = dim.partition(":")[0].strip()
    return names_of(dim, Shape([(name, size)]))[0] if name != dim else dim


def check_size(name: str, size: int | None, dims: object, *shapes: Shape) -> None:
    """Refuses a given size of `name` that a shape contradicts. Raises ShapeError."""
    for shape in shapes if size is not None else ():
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
