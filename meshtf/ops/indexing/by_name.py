"""Indexing by name: the entries of a dimension, as in `x["length", 0]`.

    x["length", 0]                        # [batch, length] -> [batch]
    x["length", 2:8]                      # length:6
    x[{"batch": 0, "length": ids}]        # [batch, length], [k] -> [k]

An integer or a tensor of integers becomes a `gather`. A slice becomes an `mtf.slice` or, with
a step, a gather of constant indices. So any layout of x is allowed, and the result must fit
the layout like any other tensor: where `length` is sharded, a slice of it is sharded too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from meshtf.errors import ArgumentError, ShapeError, explain_error
from meshtf.graph import Operators, Tensor, register_operator
from meshtf.graph.arguments import as_tensor
from meshtf.names import Dimension, Source
from meshtf.names.arguments import as_dim, as_int, refuse
from meshtf.ops.common.checks import require_dim_of_caller
from meshtf.ops.indexing.gather import gather, gather_along, gather_with_bounds
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.shapes.reshape import rename, transpose
from meshtf.ops.shapes.slice import slice as slice_
from meshtf.ops.variables.fill import full

_INDEX_TYPES = "an integer, a slice or a tensor of integers"  # for error messages

DimIndex: TypeAlias = int | slice | Tensor  # an index into one dimension


def index_by_name(x: Any, index: Any) -> Tensor:
    """Returns x[index], entries of x [batch, length, ...].

    Args:
      x: a tensor or variable.
      index: the name of a dimension and its index, or a mapping of indices by name.
    """
    x = as_tensor("x", x)
    tensor_indices = {}
    constant_indices = {}
    for dim, raw_index in _indices_by_name(x, index):
        dim_index = _as_dim_index(x, dim, raw_index)
        if isinstance(dim_index, Tensor):
            tensor_indices[dim] = dim_index
        else:
            constant_indices[dim] = dim_index
    for dim, constant_index in constant_indices.items():
        if isinstance(constant_index, slice):
            x = _entries_of_slice(x, dim, constant_index)
        else:
            ids = full(x.mesh, shape="", value=constant_index, dtype="int32")
            x = gather_with_bounds(x, ids, dim, out_of_range="trusted")
    # Tensors are last, since they may have dimensions that integers have removed from x.
    for dim, ids in tensor_indices.items():
        x = _entries_at(x, dim, ids)
    return x


def _indices_by_name(x: Tensor, index: Any) -> list[tuple[str, Any]]:
    """Returns the argument of `x[index]` as pairs: the name of a dimension, and its index.

    Raises:
      ArgumentError: `index` is neither a pair nor a mapping with names of dimensions.
    """
    if isinstance(index, Mapping):
        return [(as_dim("index", dim, x.shape), i) for dim, i in index.items()]
    if isinstance(index, tuple) and len(index) == 2:
        dim, dim_index = index
        if isinstance(dim, (str, Dimension)):
            return [(as_dim("index", dim), dim_index)]
    if isinstance(index, str):
        headline = f'x["{index}"] names a dimension, and no entry of it.'
        way_out = f'Its size is x.shape["{index}"], an entry is x["{index}", 0].'
    else:
        headline = "a tensor is indexed by the names of dimensions, not by their order."
        way_out = _suggest_names(x, index)
    raise ArgumentError(
        explain_error(
            headline,
            tensor=repr(x.shape),
            index=repr(index),
            source=Source.of_caller(),
            way_out=way_out,
        )
    )


def _suggest_names(x: Tensor, index: Any) -> str:
    """Returns a sentence that says how to write `x[0, 2:8]`, an index without names."""
    positional = index if isinstance(index, tuple) else (index,)
    if any(i is None or i is Ellipsis for i in positional):
        # It is not known which dimension each index belongs to.
        positional = ()
    texts = {}  # by the name of the dimension, what to write as its index
    for name, dim_index in zip(x.shape.names, positional):
        if isinstance(dim_index, int):
            texts[name] = str(dim_index)
        elif isinstance(dim_index, slice) and dim_index != slice(None):
            texts[name] = "..."
    if len(texts) == 1:
        ((name, text),) = texts.items()
        return f'Write x["{name}", {text}].'
    if texts:
        pairs = ", ".join(f'"{name}": {text}' for name, text in texts.items())
        return f"Write x[{{{pairs}}}]."
    return 'Write x["length", 0], x["length", 0:8] or x[{"batch": 0, "length": ids}].'


def _as_dim_index(x: Tensor, dim: str, index: Any) -> DimIndex:
    """Returns an index of a dimension of x: an integer that is not negative, a slice of
    integers, or a tensor.

    Raises:
      ArgumentError: the index is of another type.
      ShapeError: x lacks the dimension, or the dimension lacks the entry.
    """
    require_dim_of_caller(x.shape, dim)
    size = x.shape[dim]
    if isinstance(index, Operators):
        return as_tensor("index", index)
    if isinstance(index, slice):
        for bound in (index.start, index.stop, index.step):
            if bound is not None:
                as_int("index", bound)  # raises for other types
        return index
    if isinstance(index, (bool, str, float)) or getattr(index, "shape", ()) != ():
        refuse(
            f"index of {dim}",
            index,
            takes=_INDEX_TYPES,
            way_out=_suggest_type(index),
        )
    integer = as_int(f"index of {dim}", index)
    if not -size <= integer < size:
        raise ShapeError(
            explain_error(
                f"index {integer} is out of range.",
                dimension=repr(x.shape.dim(dim)),
                source=Source.of_caller(),
                way_out=f"Indices are from {-size} to {size - 1}.",
            )
        )
    return integer % size


def _suggest_type(index: Any) -> str:
    """Returns a sentence that says what to write in place of an index of a wrong type, or
    "" if there is no advice.
    """
    if isinstance(index, bool) or str(getattr(index, "dtype", "")) == "bool":
        return "A mask chooses elements in mtf.where(mask, x, 0.0)."
    if hasattr(index, "dtype"):
        return "Name the dimensions of an array first: see mtf.Tensor."
    return ""


def _entries_of_slice(x: Tensor, dim: str, index: slice) -> Tensor:
    """Returns x with the entries of a dimension that a slice selects.

    Raises:
      ShapeError: the slice selects no entries.
    """
    entries = range(*index.indices(x.shape[dim]))
    if not entries:
        raise ShapeError(
            explain_error(
                "a slice has no entries.",
                dimension=repr(x.shape.dim(dim)),
                slice=f"{index.start}:{index.stop}:{index.step}".replace("None", ""),
                source=Source.of_caller(),
            )
        )
    if entries.step == 1:
        return slice_(x, dim, begin=entries.start, size=len(entries))
    # A temporary name, since indices cannot have the dimension that they index. Names that
    # begin with a dot are internal, and no layout shards them.
    slice_dim = Dimension("." + dim, len(entries))
    steps = index_range(x.mesh, slice_dim)
    ids = steps * entries.step + entries.start
    return gather_along(x, dim, ids, dim)


def _entries_at(x: Tensor, dim: str, ids: Tensor) -> Tensor:
    """Returns the entries of x at the indices `ids` of a dimension, with the dimensions of
    ids in place of that dimension.
    """
    if dim in ids.shape:
        # Indices of `gather` cannot have the dimension that they index.
        renamed_dim = "." + dim
        y = gather(x, rename(ids, {dim: renamed_dim}), dim)
        y = rename(y, {renamed_dim: dim})
    else:
        y = gather(x, ids, dim)
    new_names = [name for name in ids.shape.names if name == dim or name not in x.shape]
    axis = x.shape.index(dim)
    names_before = x.shape.names[:axis]
    names_after = x.shape.names[axis + 1 :]
    return transpose(y, [*names_before, *new_names, *names_after])


# `Operators.__getitem__` looks the function up by this name, since modules of `meshtf.graph`
# cannot import ops.
register_operator("index_by_name", index_by_name)
