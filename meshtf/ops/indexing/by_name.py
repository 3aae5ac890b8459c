"""Indexing by name: entries of dimensions, as `x["length", 0]`.

    x["length", 0]                        # [batch, length] -> [batch]
    x["length", 2:8]                      # length:6
    x[{"batch": 0, "length": ids}]        # [batch, length], [k] -> [k]

An integer and a tensor of integers are `gather`, a slice is `slice` or, with a step, a
gather of constant indices. So each layout of x is legal, and the result must fit the
layout like any other tensor: where `length` is sharded, so is the slice of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from meshtf.errors import ArgumentError, ShapeError, explain_error
from meshtf.graph import OPERATORS, Operators, Tensor
from meshtf.graph.arguments import as_tensor
from meshtf.names import Dimension, Source
from meshtf.names.arguments import as_dim, as_int, refuse
from meshtf.ops.common.checks import require_dim
from meshtf.ops.elementwise.arithmetic import add, multiply
from meshtf.ops.indexing.gather import gather, gather_with_bounds
from meshtf.ops.indexing.gather import range as range_
from meshtf.ops.shapes.reshape import rename, transpose
from meshtf.ops.shapes.slice import slice as slice_
from meshtf.ops.variables.fill import full

_TAKES = "an integer, a slice or a tensor of integers"

Checked: TypeAlias = int | slice | Tensor


def index_by_name(x: Any, index: Any) -> Tensor:
    """Returns entries of x [batch, length, ...]: see `Operators.__getitem__`."""
    x = as_tensor("x", x)
    indices = {dim: _checked(x, dim, i) for dim, i in _indices_by_name(x, index)}
    tensors = {}
    # Tensors come last: their dimensions may have the names of those that integers remove.
    for dim, i in indices.items():
        if isinstance(i, Tensor):
            tensors[dim] = i
        elif isinstance(i, slice):
            x = _entries_of_slice(x, dim, i)
        else:
            x = gather_with_bounds(x, full(x.mesh, "", i, "int32"), dim, "trusted")
    for dim, ids in tensors.items():
        x = _entries_at(x, dim, ids)
    return x


def _indices_by_name(x: Tensor, index: Any) -> list[tuple[str, Any]]:
    """Returns pairs of the name of a dimension and an index. Raises ArgumentError."""
    if isinstance(index, Mapping):
        return [(as_dim("index", dim, x.shape), i) for dim, i in index.items()]
    if isinstance(index, tuple) and len(index) == 2:
        dim, i = index
        if isinstance(dim, (str, Dimension)):
            return [(as_dim("index", dim), i)]
    if isinstance(index, str):
        headline = f'x["{index}"] names a dimension, and no entry of it.'
        way_out = f'Its size is x.shape["{index}"], an entry is x["{index}", 0].'
    else:
        headline = "a tensor is indexed by the names of dimensions, not by their order."
        way_out = _by_names(x, index)
    raise ArgumentError(
        explain_error(
            headline,
            tensor=repr(x.shape),
            index=repr(index),
            **{"from": Source.of_caller()},
            way_out=way_out,
        )
    )


def _by_names(x: Tensor, index: Any) -> str:
    """Returns a sentence that says what to write in place of an index by position."""
    positional = index if isinstance(index, tuple) else (index,)
    indices = [i for i in positional if i is not None and i is not Ellipsis]
    pairs = []
    for name, i in zip(x.shape.names, indices):
        if isinstance(i, int):
            pairs.append(f'"{name}": {i}')
        elif i != slice(None):
            pairs.append(f'"{name}": ...')
    if len(pairs) == 1:
        return f"Write x[{pairs[0].replace(': ', ', ', 1)}]."
    if pairs:
        return "Write x[{" + ", ".join(pairs) + "}]."
    return 'Write x["length", 0], x["length", 0:8] or x[{"batch": 0, "length": ids}].'


def _checked(x: Tensor, dim: str, index: Any) -> Checked:
    """Returns an index of a dimension of x: an integer from 0 on, a slice with such a
    start, or a tensor.

    Raises:
      ArgumentError: it is of another type.
      ShapeError: x lacks the dimension, or the dimension lacks the entry.
    """
    require_dim(x.shape, dim)
    size = x.shape[dim]
    if isinstance(index, Operators):
        return as_tensor("index", index)
    if isinstance(index, slice):
        for bound in (index.start, index.stop, index.step):
            if bound is not None:
                as_int("index", bound)
        return index
    if isinstance(index, (bool, str, float)) or getattr(index, "shape", ()) != ():
        refuse(f"index of {dim}", index, _TAKES, _way_out(index))
    integer = as_int(f"index of {dim}", index)
    if not -size <= integer < size:
        raise ShapeError(
            explain_error(
                f"index {integer} is out of range.",
                dimension=repr(x.shape.dim(dim)),
                **{"from": Source.of_caller()},
                way_out=f"Indices are from {-size} to {size - 1}.",
            )
        )
    return integer % size


def _way_out(index: Any) -> str:
    """Returns a sentence that says what to write in place of an index of a wrong type."""
    if isinstance(index, bool) or str(getattr(index, "dtype", "")) == "bool":
        return "A mask chooses elements in mtf.where(mask, x, 0.0)."
    if hasattr(index, "dtype"):
        return "Name the dimensions of an array first: see mtf.Tensor."
    return ""


def _entries_of_slice(x: Tensor, dim: str, index: slice) -> Tensor:
    """Returns the entries of a slice of a dimension. Raises ShapeError if there are none."""
    entries = range(*index.indices(x.shape[dim]))
    if not entries:
        raise ShapeError(
            explain_error(
                "a slice has no entries.",
                dimension=repr(x.shape.dim(dim)),
                slice=f"{index.start}:{index.stop}:{index.step}".replace("None", ""),
                **{"from": Source.of_caller()},
            )
        )
    if entries.step == 1:
        return slice_(x, dim, entries.start, len(entries))
    slice_dim = Dimension("." + dim, len(entries))  # no layout shards a name with a dot
    counts = range_(x.mesh, slice_dim)
    ids = add(multiply(counts, entries.step), entries.start)
    y = rename(gather_with_bounds(x, ids, dim, "trusted"), {slice_dim.name: dim})
    return transpose(y, x.shape.names)


def _entries_at(x: Tensor, dim: str, ids: Tensor) -> Tensor:
    """Returns the entries of a dimension that a tensor points to, with the dimensions of
    the tensor in its place.
    """
    new_name = {dim: "." + dim}  # indices of `gather` cannot have the dimension itself
    y = gather(x, rename(ids, new_name) if dim in ids.shape else ids, dim)
    names: list[str] = []
    for name in x.shape.names:
        if name == dim:
            names += [n for n in ids.shape.names if n == dim or n not in x.shape]
        else:
            names.append(name)
    if dim in ids.shape:
        y = rename(y, {"." + dim: dim})
    return transpose(y, names)


OPERATORS["index_by_name"] = index_by_name
