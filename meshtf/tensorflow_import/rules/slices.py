"""Slices, padding, and what cuts or joins tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import meshtf as mtf
from meshtf.tensorflow_import.dimensions.analysis import Analysis, NoRule
from meshtf.tensorflow_import.dimensions.atoms import Axes, Axis, flat
from meshtf.tensorflow_import.graph.program import Node, Value
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.shapes import constant
from meshtf.tensorflow_import.rules.table import rule


class _Part(NamedTuple):
    """What a slice takes of an axis of its operand (None: a new axis of size 1)."""

    axis: int | None
    begin: int
    size: int
    drops: bool  # the axis is not in the result


@rule("Slice", "StridedSlice")
class Slice:
    """A part of each axis."""

    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        axes, result = analysis.of(node.inputs[0]), []
        for part in _parts(node):
            if part.axis is None:
                result.append(())
            elif not part.drops:
                result.append(_part_of(analysis, axes[part.axis], part.size))
        analysis.set(node.outputs[0], result)

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        source = node.inputs[0]
        x, axes, results = lowering.tensor(source), lowering.axes(source), []
        for part in _parts(node):
            if part.axis is not None:
                x = _slice(lowering, x, axes[part.axis], part, source)
                if not part.drops:
                    results.append(axes[part.axis])
            else:
                results.append(())
        return _renamed(lowering, x, results, node.outputs[0])


@rule("MirrorPad", "Pad", "PadV2")
class Pad:
    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        output = node.outputs[0]
        axes = analysis.of(node.inputs[0])
        analysis.set(
            output, [analysis.resized(a, size) for a, size in zip(axes, output.shape)]
        )

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        if node.kind == "MirrorPad":
            raise NoRule("MirrorPad")
        source, value = node.inputs[0], 0.0
        if node.kind == "PadV2":
            value = float(constant(node, 2))
        x, axes = lowering.tensor(source), lowering.axes(source)
        for k, (before, after) in enumerate(constant(node, 1)):
            if before or after:
                if not axes[k]:
                    raise NoRule("padding of a dimension of size 1")
                name = lowering.name(axes[k], "padding")
                x = mtf.pad(x, name, int(before), int(after), value)
        return _renamed(lowering, x, axes, node.outputs[0])


@rule("ConcatV2")
class Concat:
    """Equal parts are a stack, whose dimension is the outer one."""

    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        *values, _ = node.inputs
        axis, output = Concat.axis(node), node.outputs[0]
        axes = analysis.of(values[0])
        parts = [analysis.of(v)[axis] for v in values]
        if parts[0] and all(part == parts[0] for part in parts):
            outer = analysis.halves.get(parts[0]) or analysis.new(len(values))
            joined = (*outer, *parts[0])
        else:
            like = next((part for part in parts if part), ())
            joined = analysis.new(output.shape[axis], like)
        analysis.set(output, [*axes[:axis], joined, *axes[axis + 1 :]])
        for value in values[1:]:
            others = analysis.of(value)
            others[axis] = ()
            analysis.unify_all(analysis.of(output), others)

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        *values, _ = node.inputs
        axis = Concat.axis(node)
        axes: list[Any] = list(lowering.axes(node.outputs[0]))
        joined = lowering.names(axes[axis])
        axes[axis] = None
        tensors = [lowering.aligned(v, axes) for v in values]
        tensors = [
            x if hasattr(x, "shape") else lowering.tensor(v)
            for x, v in zip(tensors, values)
        ]
        parts = [lowering.names(lowering.axes(v)[axis]) for v in values]
        if len(joined) == len(parts[0]) + 1 and all(p == parts[0] for p in parts):
            return mtf.stack(tensors, joined[0])
        if len(joined) != 1:
            raise NoRule("a concatenation into a merged dimension")
        (name,) = joined
        other = [a for axis in axes if axis is not None for a in axis]
        tensors = [
            Concat._part(lowering, x, part, name, other)
            for x, part in zip(tensors, parts)
        ]
        return mtf.concat(tensors, name)

    @staticmethod
    def axis(node: Node) -> int:
        """Returns the axis along which it joins."""
        return int(constant(node, len(node.inputs) - 1)) % len(node.outputs[0].shape)

    @staticmethod
    def _part(
        lowering: Lowering, x: mtf.Tensor, names: list[str], new: str, other: list
    ) -> mtf.Tensor:
        """Returns a part with the joined dimension, and with those that broadcast in it."""
        missing = [a for a in other if lowering.names([a])[0] not in x.shape.names]
        if missing:
            sizes = lowering.shape_of(missing)
            x = mtf.broadcast(x, f"{sizes}; {_shape_text(x)}")
        if not names:
            return mtf.broadcast(x, f"{new}:1; {_shape_text(x)}")
        if len(names) > 1:
            return mtf.flatten(x, names, new)
        return x if names[0] == new else mtf.rename(x, names[0], new)


@rule("Split", "SplitV")
class Split:
    """Equal parts are an unstack of the outer factor."""

    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        source, axis = Split.source(node)
        axes = analysis.of(source)
        sizes = [v.shape[axis] for v in node.outputs]
        if len(set(sizes)) == 1 and len(sizes) > 1:
            factors = (*analysis.new(len(sizes)), *analysis.new(sizes[0]))
            analysis.unify(factors, axes[axis])
            axes = analysis.of(source)
            outer, inner = tuple(flat(factors[:1])), tuple(flat(factors[1:]))
            analysis.halves[inner] = outer
            parts = [inner] * len(sizes)
        else:
            parts = [analysis.resized(axes[axis], size) for size in sizes]
        for value, part in zip(node.outputs, parts):
            analysis.set(value, [*axes[:axis], part, *axes[axis + 1 :]])

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        source, axis = Split.source(node)
        x, axes = lowering.tensor(source), lowering.axes(source)
        if len(node.outputs) == 1:
            return [x]
        sizes = [v.shape[axis] for v in node.outputs]
        names = lowering.names(axes[axis])
        inner = lowering.names(lowering.axes(node.outputs[0])[axis])
        if (
            len(set(sizes)) == 1
            and names[1:] == inner
            and x.shape[names[0]] == len(sizes)
        ):
            return list(mtf.unstack(x, names[0]))
        name, begin, results = lowering.name(axes[axis], "split"), 0, []
        for value, size in zip(node.outputs, sizes):
            part = mtf.slice(x, name, begin, size)
            results.append(_renamed(lowering, part, axes, value))
            begin += size
        return results

    @staticmethod
    def source(node: Node) -> tuple[Value, int]:
        """Returns what is split, and along which axis."""
        k, axis = (1, 0) if node.kind == "Split" else (0, 2)
        value = node.inputs[k]
        return value, int(constant(node, axis)) % len(value.shape)


def _parts(node: Node) -> list[_Part]:
    """Returns what a slice takes, axis by axis of its result."""
    shape = node.inputs[0].shape
    if node.kind == "Slice":
        begins, sizes = constant(node, 1), node.outputs[0].shape
        return [
            _Part(k, int(b), s, False) for k, (b, s) in enumerate(zip(begins, sizes))
        ]
    begins, ends, strides = (constant(node, k) for k in (1, 2, 3))

    def is_set(mask: str, k: int) -> bool:
        return bool(node.attributes[f"{mask}_mask"] >> k & 1)

    given = sum(not is_set("new_axis", k) for k in range(len(begins)))
    given -= sum(is_set("ellipsis", k) for k in range(len(begins)))
    parts, axis = [], 0
    for k in range(len(begins)):
        if is_set("ellipsis", k):
            for _ in range(len(shape) - given):
                parts.append(_Part(axis, 0, shape[axis], False))
                axis += 1
            continue
        if is_set("new_axis", k):
            parts.append(_Part(None, 0, 1, False))
            continue
        size, drops = shape[axis], is_set("shrink_axis", k)
        if int(strides[k]) != 1:
            raise NoRule("a slice with a stride")
        begin, end, _ = slice(
            None if is_set("begin", k) else int(begins[k]),
            None if is_set("end", k) else int(ends[k]),
        ).indices(size)
        if drops:
            begin = int(begins[k]) % size
            end = begin + 1
        parts.append(_Part(axis, begin, max(end - begin, 0), drops))
        axis += 1
    parts += [_Part(k, 0, shape[k], False) for k in range(axis, len(shape))]
    return parts


def _part_of(analysis: Analysis, axis: Axis, size: int) -> Axis:
    """Returns the axis of a slice: the inner factor, if it is as large."""
    atoms = flat(axis)
    if len(atoms) == 2 and atoms[1].size == size:
        return (atoms[1],)
    return analysis.resized(axis, size)


def _slice(
    lowering: Lowering, x: mtf.Tensor, axis: Axis, part: _Part, source: Value
) -> mtf.Tensor:
    if part.size == source.shape[part.axis]:
        return x
    atoms = flat(axis)
    if len(atoms) == 2 and atoms[1].size == part.size and part.begin % part.size == 0:
        (outer,) = lowering.names(atoms[:1])
        return _row(x, outer, part.begin // part.size)
    name = lowering.name(axis, "a slice")
    if part.size == 1:
        return _row(x, name, part.begin)
    return mtf.slice(x, name, part.begin, part.size)


def _row(x: mtf.Tensor, name: str, index: int) -> mtf.Tensor:
    """Returns one entry of a dimension, without it."""
    return mtf.reduce_sum(mtf.slice(x, name, index, 1), name)


def _renamed(
    lowering: Lowering, x: mtf.Tensor, axes: Axes, output: Value
) -> mtf.Tensor:
    """Returns a part whose axes were `axes` with the names of the output's."""
    pairs: dict[str, str] = {}
    for old, new in zip(axes, lowering.axes(output)):
        names, wanted = lowering.names(old), lowering.names(new)
        if len(names) == len(wanted):
            pairs |= {a: b for a, b in zip(names, wanted) if a != b}
    return mtf.rename(x, pairs) if pairs else x


def _shape_text(x: mtf.Tensor) -> str:
    return "; ".join(f"{d.name}:{d.size}" for d in x.shape)
