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
    tensors = {}
    constants = {}
    for dim, index_of_dim in _indices_by_name(x, index):
        checked = _checked(x, dim, index_of_dim)
        if isinstance(checked, Tensor):
            tensors[dim] = checked
        else:
            constants[dim] = checked
    for dim, constant in constants.items():
        if isinstance(constant, slice):
            x = _entries_of_slice(x, dim, constant)
        else:
            ids = full(x.mesh, "", constant, "int32")
            x = gather_with_bounds(x, ids, dim, "trusted")
    # Last, since they may have dimensions that integers have removed.
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
    if any(i is None or i is Ellipsis for i in positional):
        positional = ()
    texts = {}
    for name, index_of_dim in zip(x.shape.names, positional):
        if isinstance(index_of_dim, int):
            texts[name] = str(index_of_dim)
        elif isinstance(index_of_dim, slice) and index_of_dim != slice(None):
            texts[name] = "..."
    if len(texts) == 1:
        ((name, text),) = texts.items()
        return f'Write x["{name}", {text}].'
    if texts:
        pairs = ", ".join(f'"{name}": {text}' for name, text in texts.items())
        return f"Write x[{{{pairs}}}]."
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
    if dim not in ids.shape:
        y = gather(x, ids, dim)
    else:  # indices of `gather` cannot have the dimension itself
        inner_dim = "." + dim
        y = gather(x, rename(ids, {dim: inner_dim}), dim)
        y = rename(y, {inner_dim: dim})
    new_names = [n for n in ids.shape.names if n == dim or n not in x.shape]
    position = x.shape.index(dim)
    outer_names = x.shape.names[:position]
    inner_names = x.shape.names[position + 1 :]
    return transpose(y, [*outer_names, *new_names, *inner_names])


OPERATORS["index_by_name"] = index_by_name
