"""Slices that begin where values say, and whose size is known: `x[:, i]`, `x[i : i + 4]`.

Such a slice becomes a node "MovingSlice" of the tensor and of the indices where it begins. Its
attribute "index" is what Python would write between the brackets, with `Moving` for computed
bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from meshtf.tensorflow_import.graph.program import Node, Value

# What an entry of a strided slice may be, beside "begin:end:stride".
_MASKS = ("begin", "ellipsis", "end", "new_axis", "shrink_axis")


class Moving(NamedTuple):
    """Entries of an axis that a value chooses.

    Attributes:
        operand: Which operand of the node says where they begin.
        size: How many they are; None: one, and the axis is dropped.
    """

    operand: int
    size: int | None


def index_of(node: Node, bounds: Sequence[Sequence[Any]]) -> list[Any]:
    """Returns the index of a strided slice as Python writes it, "..." written out.

    Args:
        node: The node.
        bounds: Begins, ends and strides.
    """
    index: list[Any] = []
    for k, (begin, end, stride) in enumerate(zip(*bounds)):
        masks = {name for name in _MASKS if node.attributes[f"{name}_mask"] >> k & 1}
        if "ellipsis" in masks:
            index.append(...)
        elif "new_axis" in masks:
            index.append(None)
        elif "shrink_axis" in masks:
            index.append(begin)
        else:
            first = None if "begin" in masks else begin
            index.append(slice(first, None if "end" in masks else end, stride))
    if ... not in index:
        index.append(...)
    axes = sum(item is not None for item in index) - 1
    at = index.index(...)
    index[at : at + 1] = [slice(None)] * (len(node.inputs[0].shape) - axes)
    return index


def as_moving_slice(node: Node, nodes: Sequence[Node]) -> Node | None:
    """Returns a strided slice as a "MovingSlice"; None, if its bounds are numbers, or if they do
    not tell its size.

    Args:
        node: A "StridedSlice".
        nodes: Those before it.
    """
    bounds: list[Any] = [_entries(value, nodes) for value in node.inputs[1:4]]
    if None in bounds:
        return None
    source, path = node.inputs[0], node.path
    operands, index = [source], index_of(node, bounds)
    for k, item in enumerate(index):
        size = None
        if isinstance(item, slice):
            begin, end, stride = item.start, item.stop, item.step
            if not any(isinstance(bound, Value) for bound in (begin, end, stride)):
                continue
            size = _size(begin, end, nodes) if stride == 1 else None
            if size is None:
                return None
            item = begin
        if isinstance(item, Value):
            index[k] = Moving(len(operands), size)
            operands.append(item)
    if len(operands) == 1:
        return None
    output = Value(_shape(source, index), source.dtype, path)
    return Node("MovingSlice", operands, [output], {"index": index}, path)


def _entries(value: Value, nodes: Sequence[Node]) -> list[Any] | None:
    """Returns the entries of a vector that is known, or packed of scalars: numbers, and values
    that are computed.
    """
    if value.constant is not None:
        return [int(x) for x in value.constant]
    for node in reversed(nodes):
        if node.outputs and node.outputs[0] is value:
            return [_as_bound(v) for v in node.inputs] if node.kind == "Pack" else None
    return None


def _as_bound(value: Value) -> Any:
    return value if value.constant is None else int(value.constant)


def _shape(source: Value, index: Sequence[Any]) -> tuple[int, ...]:
    """Returns the sizes of a slice."""
    sizes = iter(source.shape)
    shape: list[int] = []
    for item in index:
        size = 1 if item is None else next(sizes)
        if item is None:
            shape.append(1)
        elif isinstance(item, slice):
            shape.append(len(range(size)[item]))
        elif isinstance(item, Moving) and item.size is not None:
            shape.append(item.size)
    return tuple(shape)


def _size(begin: Any, end: Any, nodes: Sequence[Node]) -> int | None:
    """Returns how far an end is from a begin; None if that depends on values."""
    base, offset = _offset(begin, nodes)
    end_base, end_offset = _offset(end, nodes)
    if base is not end_base or end_offset <= offset:
        return None
    return end_offset - offset


def _offset(bound: Any, nodes: Sequence[Node]) -> tuple[Value | None, int]:
    """Returns a bound as the sum of a value (None: of none) and a number."""
    if not isinstance(bound, Value):
        return None, int(bound or 0)
    for node in reversed(nodes):
        if node.outputs and node.outputs[0] is bound and len(node.inputs) == 2:
            first, second = map(_as_bound, node.inputs)
            if node.kind == "AddV2" and isinstance(first, int):
                first, second = second, first
            if node.kind in ("AddV2", "Sub") and isinstance(second, int):
                base, offset = _offset(first, nodes)
                return base, offset + (second if node.kind == "AddV2" else -second)
    return bound, 0
