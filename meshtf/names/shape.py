"""A shape: an ordered tuple of dimensions with distinct names.

>>> from meshtf.names import Shape
>>> x = Shape("batch:8;d_model:512")
>>> x["d_model"], x.names, x.size
(512, ('batch', 'd_model'), 4096)
>>> x.without("batch") + Shape("d_ff:2048")
[d_model:512 d_ff:2048]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from meshtf.errors import ArgumentError, ShapeError, explain_error
from meshtf.names.arguments import (
    as_dim,
    as_int,
    as_mapping,
    as_sequence,
    described,
    refuse,
)
from meshtf.names.dimension import Dimension
from meshtf.names.parse import parse_pairs
from meshtf.names.source import Source

_NAMES = 'names of dimensions, such as ["d"]'


class Shape:
    """An immutable, hashable tuple of dimensions.

    Args:
      dims: a string such as "batch:8;d_model:512", dimensions, or pairs of name and size.

    Raises:
      ShapeError: a name occurs twice, or a size is not a non-negative integer.
      ParseError: a string cannot be read.
      ArgumentError: `dims` is of another type.
    """

    __slots__ = ("_dims", "_sizes", "_items", "_hash")

    def __init__(self, dims: ShapeLike = ()) -> None:
        self._dims: tuple[Dimension, ...] = _dimensions(dims)
        self._sizes = {dim.name: dim.size for dim in self._dims}
        # Names and sizes, which are compared and hashed faster than dimensions.
        self._items = tuple(self._sizes.items())
        self._hash = hash(self._items)
        if len(self._sizes) != len(self._dims):
            names = [dim.name for dim in self._dims]
            repeated = next(name for name in names if names.count(name) > 1)
            raise ShapeError(
                f"the name {repeated!r} occurs twice in {self!r}: within one tensor a "
                "name means one dimension. Rename one of them."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the dimensions, in order."""
        return tuple(self._sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the dimensions, in order."""
        return tuple(self._sizes.values())

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self._sizes.values())

    def __getitem__(self, name: str) -> int:
        try:
            return self._sizes[name]
        except (KeyError, TypeError):
            as_dim("name", name, self)  # raises ArgumentError for what is no name
            raise ShapeError(f"there is no dimension {name!r} in {self!r}.") from None

    def get(self, name: str, default: int = 1) -> int:
        """Returns the size of dimension `name`; `default` if the shape lacks it."""
        return self._sizes.get(as_dim("name", name, self), as_int("default", default))

    def index(self, name: str) -> int:
        """Returns the index of dimension `name`."""
        self[name]  # raises ShapeError if it is missing
        return self.names.index(name)

    def dim(self, name: str) -> Dimension:
        """Returns the dimension called `name`."""
        return Dimension(name, self[name])

    def without(self, *names: str) -> Shape:
        """Returns the shape without these dimensions; names that it lacks are ignored."""
        for name in names:
            as_dim("names", name, self)  # raises ArgumentError for what is no name
        return Shape(dim for dim in self._dims if dim.name not in names)

    def only(self, names: Iterable[str]) -> Shape:
        """Returns the dimensions with these names, in this shape's order."""
        names = as_sequence("names", names, _NAMES)
        remaining = {as_dim("names", name, self) for name in names}
        return Shape(dim for dim in self._dims if dim.name in remaining)

    def rename(self, names: Mapping[str, str]) -> Shape:
        """Returns the shape with other names; `names` maps old names to new names."""
        names = as_mapping("names", names, 'new names by old ones, such as {"d": "e"}')
        return Shape(
            Dimension(names.get(dim.name, dim.name), dim.size) for dim in self._dims
        )

    def resize(self, name: str, size: int) -> Shape:
        """Returns the shape with another size of dimension `name`."""
        self[name]  # raises ShapeError if it is missing
        return Shape(
            Dimension(dim.name, size if dim.name == name else dim.size)
            for dim in self._dims
        )

    def union(self, *shapes: Shape) -> Shape:
        """Returns the shape of a broadcast: the dimensions of this shape, followed by those
        that only other shapes have.

        If another shape has all dimensions of this shape in the same order, the result has
        the order of the other shape: "b" and "a;b" give "a;b".
        """
        union = self
        for shape in shapes:
            if not isinstance(shape, Shape):
                refuse("shapes", shape, "shapes")
            shared_names = tuple(name for name in shape.names if name in union._sizes)
            if shared_names == union.names:
                leading, trailing = shape, union
            else:
                leading, trailing = union, shape
            added_dims = [dim for dim in trailing if dim.name not in leading._sizes]
            union = Shape([*leading, *added_dims])
        return union

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._sizes

    def __iter__(self) -> Iterator[Dimension]:
        return iter(self._dims)

    def __len__(self) -> int:
        return len(self._dims)

    def __add__(self, other: ShapeLike) -> Shape:
        return Shape([*self._dims, *Shape(other)])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and self._items == other._items

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return "[" + " ".join(map(repr, self._dims)) + "]"


ShapeLike: TypeAlias = (
    Shape | str | Dimension | Iterable[Dimension] | Iterable[tuple[str, int]]
)


def _dimensions(dims: ShapeLike) -> tuple[Dimension, ...]:
    """Returns the dimensions that a user describes. Raises ShapeError, ParseError,
    ArgumentError.
    """
    if isinstance(dims, Shape):
        return dims._dims
    if isinstance(dims, Dimension):
        return (dims,)
    if isinstance(dims, str):
        pairs = parse_pairs(dims, kind="shape")
        return tuple(_dimension(name, size, dims) for name, size in pairs)
    try:
        return tuple(
            dim if isinstance(dim, Dimension) else _from_pair(dim) for dim in dims
        )
    except ShapeError:
        raise
    except (TypeError, ValueError):
        raise ArgumentError(
            explain_error(
                f"a shape is not made of {described(dims)}.",
                source=Source.of_caller(),
                way_out='Write it as "batch:8;d_model:512", as dimensions, or as pairs '
                "of name and size.",
            )
        ) from None


def _from_pair(pair: Any) -> Dimension:
    """Returns the dimension of a pair of name and size."""
    name, size = pair
    return Dimension(name, size)


def _dimension(name: str, size: str, text: str) -> Dimension:
    """Returns a dimension in a user's text. Raises ShapeError."""
    if not size.isdigit():
        raise ShapeError(
            f"the size of {name!r} must be an integer, not {size!r}, in {text!r}."
        )
    return Dimension(name, int(size))
