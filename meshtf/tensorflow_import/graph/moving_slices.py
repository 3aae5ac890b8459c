"""Slices that begin where values say, and whose size is known: `x[:, i]`, `x[i : i + 4]`.

Such a slice is read as one of the axes whose bounds are numbers, and a gather for each other axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from meshtf.tensorflow_import.graph.infer import infer_shapes
from meshtf.tensorflow_import.graph.program import Node, Value
from meshtf.tensorflow_import.graph.raw_ops import definition_of

_MASKS = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")


class _Moving(NamedTuple):
    """An axis of the result whose entries values choose: where they begin, and how many they
    are (None: one, and the axis is dropped).
    """

    axis: int
    begin: Value
    size: int | None


def as_gathers(node: Node, nodes: Sequence[Node]) -> list[Node] | None:
    """Returns nodes that compute a strided slice; None, if its bounds are numbers, or if they do
    not tell its size.

    Args:
        node: A "StridedSlice".
        nodes: Those before it.
    """
    if all(v.constant is not None for v in node.inputs[1:3]):
        return None
    begins, ends, strides = (_entries(value, nodes) for value in node.inputs[1:4])
    if begins is None or ends is None or strides is None:
        return None
    masks = {name: int(node.attributes[f"{name}_mask"]) for name in _MASKS}
    moving: list[_Moving] = []
    axis = 0
    fixed: list[list[int]] = [[], [], []]
    for k, entries in enumerate(zip(begins, ends, strides)):
        bit = 1 << k
        is_number = _is_number(entries, masks, bit)
        for column, entry in zip(fixed, entries):
            column.append(int(entry.constant) if is_number else 1)
        if not is_number:
            size = _size(entries, nodes) if not masks["shrink_axis"] & bit else None
            if size is None and not masks["shrink_axis"] & bit:
                return None
            moving.append(_Moving(axis, entries[0], size))
            masks = masks | {
                "begin": masks["begin"] | bit,
                "end": masks["end"] | bit,
                "shrink_axis": masks["shrink_axis"] & ~bit,
            }
        axis += _width(node, masks, bit, len(begins))
    return _nodes(node, fixed, masks, moving)


def _entries(value: Value, nodes: Sequence[Node]) -> list[Value] | None:
    """Returns the entries of a vector that is known, or packed of scalars; else None."""
    if value.constant is not None:
        return [Value((), value.dtype, constant=x) for x in value.constant]
    for node in reversed(nodes):
        if node.outputs and node.outputs[0] is value:
            return list(node.inputs) if node.kind == "Pack" else None
    return None


def _is_number(entries: Sequence[Value], masks: dict[str, int], bit: int) -> bool:
    """Whether the bounds of an axis are numbers, or do not matter."""
    if masks["ellipsis"] & bit:
        return True
    return all(value.constant is not None for value in entries)


def _size(entries: Sequence[Value], nodes: Sequence[Node]) -> int | None:
    """Returns how far an end is from a begin; None if that depends on values."""
    begin, end, stride = entries
    if stride.constant != 1:
        return None
    (base, offset), (end_base, end_offset) = _offset(begin, nodes), _offset(end, nodes)
    return end_offset - offset if base is end_base and end_offset > offset else None


def _offset(value: Value, nodes: Sequence[Node]) -> tuple[Value | None, int]:
    """Returns a value as the sum of another one (None: of none) and a number."""
    if value.constant is not None:
        return None, int(value.constant)
    for node in reversed(nodes):
        if node.outputs and node.outputs[0] is value and len(node.inputs) == 2:
            first, second = node.inputs
            if node.kind == "AddV2" and first.constant is not None:
                first, second = second, first
            if node.kind in ("AddV2", "Sub") and second.constant is not None:
                base, offset = _offset(first, nodes)
                step = int(second.constant)
                return base, offset + (step if node.kind == "AddV2" else -step)
    return value, 0


def _width(node: Node, masks: dict[str, int], bit: int, count: int) -> int:
    """Returns how many axes of the result an entry of the bounds stands for."""
    if masks["ellipsis"] & bit:
        new = (masks["new_axis"] & (1 << count) - 1).bit_count()
        return len(node.inputs[0].shape) - (count - 1 - new)
    return 0 if masks["shrink_axis"] & bit else 1


def _nodes(
    node: Node,
    fixed: Sequence[Sequence[int]],
    masks: dict[str, int],
    moving: Sequence[_Moving],
) -> list[Node]:
    """Returns the slice of the other axes, and the gathers."""
    path, source = node.path, node.inputs[0]
    bounds = [
        Value((len(x),), tf.int32, path, constant=np.asarray(x, np.int32))
        for x in fixed
    ]
    values = {f"{name}_mask": mask for name, mask in masks.items()}
    raw = {name: tf.compat.v1.AttrValue(i=mask) for name, mask in values.items()}
    index = tf.compat.v1.AttrValue(type=tf.int32.as_datatype_enum)
    section = Node(
        node.kind,
        [source, *bounds],
        [Value(None, source.dtype, path)],
        node.attributes | values | {"Index": tf.int32},
        path,
        node.definition,
        node.raw_attributes | raw | {"Index": index},
    )
    infer_shapes(section)
    nodes, result = [section], section.outputs[0]
    for axis, begin, size in reversed(moving):
        if size is None:
            index_nodes = _from_the_end(begin, result.shape[axis], path)
        else:
            offsets = Value((size,), begin.dtype, path)
            offsets.constant = np.arange(size, dtype=begin.dtype.as_numpy_dtype)
            index_nodes = [_binary("AddV2", begin, offsets, path)]
        indices = index_nodes[-1].outputs[0]
        shape = (*result.shape[:axis], *indices.shape, *result.shape[axis + 1 :])
        rows = Value(shape, source.dtype, path)
        axis_value = Value((), tf.int32, path, constant=np.int32(axis))
        operands = [result, indices, axis_value]
        definition = definition_of("GatherV2")
        gather = Node("GatherV2", operands, [rows], {"batch_dims": 0}, path, definition)
        nodes += [*index_nodes, gather]
        result = rows
    return nodes


def _from_the_end(index: Value, size: int, path: str) -> list[Node]:
    """Returns nodes of an index that counts from the end if it is negative."""
    zero, total = (
        Value((), index.dtype, path, constant=index.dtype.as_numpy_dtype(count))
        for count in (0, size)
    )
    is_negative = _binary("Less", index, zero, path, tf.bool)
    from_end = _binary("AddV2", index, total, path)
    operands = [is_negative.outputs[0], from_end.outputs[0], index]
    output = Value((), index.dtype, path)
    definition = definition_of("SelectV2")
    select = Node("SelectV2", operands, [output], {}, path, definition)
    return [is_negative, from_end, select]


def _binary(
    kind: str, first: Value, second: Value, path: str, dtype: tf.DType | None = None
) -> Node:
    output = Value(second.shape, dtype or first.dtype, path)
    return Node(kind, [first, second], [output], {}, path, definition_of(kind))
