"""Slices, padding, and what cuts or joins tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from meshtf.graph import Tensor
from meshtf.ops.elementwise.where_cast_clip import where
from meshtf.ops.indexing.gather import gather
from meshtf.ops.reductions.broadcast import broadcast
from meshtf.ops.reductions.reduce import reduce_any, reduce_sum
from meshtf.ops.shapes.reshape import rename
from meshtf.ops.shapes.slice import concat, pad
from meshtf.ops.shapes.slice import slice as slice_dimension
from meshtf.ops.shapes.stack import stack, unstack
from meshtf.runtime.storage.asarray import constant
from meshtf.tensorflow_import.dimensions.analysis import Analysis, axis_size
from meshtf.tensorflow_import.dimensions.atoms import Atom, Axes, Axis, flat
from meshtf.tensorflow_import.graph.patterns.moving_slices import Moving, index_of
from meshtf.tensorflow_import.graph.program import Node, Value
from meshtf.tensorflow_import.lowering import Lowering, shape_text
from meshtf.tensorflow_import.rules.layout.known_operands import entries_at, known
from meshtf.tensorflow_import.rules.table import Rule, rule


class _Section(NamedTuple):
    """What a slice takes of an axis of its operand (None: a new axis of size 1)."""

    axis: int | None
    begin: int | Value  # a value, if it is computed
    size: int
    step: int
    drops: bool  # the axis is not in the result


@rule("MovingSlice", "Slice", "StridedSlice")
class Slice(Rule):
    """A part of each axis."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        axes = analysis.of(node.inputs[0])
        result: Axes = []
        for section in _sections(node):
            if section.axis is None:
                result.append(())
            elif not section.drops:
                result.append(_section_of(analysis, axes[section.axis], section))
        analysis.set(node.outputs[0], result)

    def lower(self, lowering: Lowering, node: Node) -> Any:
        source = node.inputs[0]
        x, axes, results = lowering.tensor(source), lowering.axes(source), []
        for section in _sections(node):
            names: list[str] = []
            if section.axis is not None:
                axis = axes[section.axis]
                x, names = _slice(lowering, x, axis, section, source)
            if not section.drops:
                results.append(names)
        return _renamed(lowering, x, results, node.outputs[0])


@rule("MirrorPad", "Pad", "PadV2")
class Pad(Rule):
    """More elements before and after."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        output = node.outputs[0]
        axes = analysis.of(node.inputs[0])
        analysis.set(
            output, [analysis.resized(a, size) for a, size in zip(axes, output.shape)]
        )

    def lower(self, lowering: Lowering, node: Node) -> Any:
        source = node.inputs[0]
        value = float(known(node, 2)) if node.kind == "PadV2" else 0.0
        x, results = lowering.tensor(source), []
        for k, (before, after) in enumerate(known(node, 1)):
            axis = lowering.axes(source)[k]
            if not before and not after:
                results.append(lowering.names(axis))
                continue
            x, name = lowering.merged(x, axis, f"padded_{k}")
            if node.kind == "MirrorPad":
                mode = node.attributes["mode"].decode().lower()
                indices = np.pad(np.arange(x.shape[name]), (before, after), mode)
                x = entries_at(lowering, x, name, indices)
            else:
                x = pad(x, name, int(before), int(after), value)
            results.append([name])
        return _renamed(lowering, x, results, node.outputs[0])


@rule("ConcatV2")
class Concat(Rule):
    """Equal parts are a stack, whose dimension is the outer one."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        *values, _ = node.inputs
        axis, output = Concat.axis(node), node.outputs[0]
        axes = analysis.of(values[0])
        sections = [analysis.of(v)[axis] for v in values]
        if sections[0] and all(section == sections[0] for section in sections):
            outer = analysis.outer_factors.get(sections[0]) or analysis.new(len(values))
            joined = (*outer, *sections[0])
        else:
            like = next((section for section in sections if section), ())
            joined = analysis.new(output.shape[axis], like)
        analysis.set(output, [*axes[:axis], joined, *axes[axis + 1 :]])
        for value in values[1:]:
            other_axes = analysis.of(value)
            other_axes[axis] = ()
            analysis.unify_all(analysis.of(output), other_axes)

    def lower(self, lowering: Lowering, node: Node) -> Any:
        *values, _ = node.inputs
        axis = Concat.axis(node)
        axes: list[Any] = list(lowering.axes(node.outputs[0]))
        outer_axis = axes[axis]
        joined = lowering.names(outer_axis)
        axes[axis] = None
        tensors = [lowering.aligned(v, axes) for v in values]
        sections = [lowering.axes(v)[axis] for v in values]
        names = lowering.names(sections[0])
        if len(joined) == len(names) + 1 and all(
            lowering.names(section) == names for section in sections
        ):
            return stack(tensors, joined[0])
        name = joined[0] if len(joined) == 1 else "joined"
        other = [atom for k, each in enumerate(axes) if k != axis for atom in each]
        tensors = [
            lowering.as_dimension(_with_all(lowering, x, other), section, name)
            for x, section in zip(tensors, sections)
        ]
        return lowering.split(concat(tensors, name), name, outer_axis)

    @staticmethod
    def axis(node: Node) -> int:
        """Returns the axis along which it joins."""
        return int(known(node, len(node.inputs) - 1)) % len(node.outputs[0].shape)


def _with_all(lowering: Lowering, x: Tensor, atoms: Sequence[Atom]) -> Tensor:
    """Returns a tensor with all of some dimensions: those that it lacks, it repeats along."""
    missing = [a for a in atoms if lowering.names([a])[0] not in x.shape.names]
    if not missing:
        return x
    return broadcast(x, f"{lowering.shape_of(missing)}; {shape_text(x)}")


@rule("Split", "SplitV")
class Split(Rule):
    """Equal parts are an unstack of the outer factor."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        source, axis = Split.source(node)
        axes = analysis.of(source)
        sizes = [v.shape[axis] for v in node.outputs]
        if len(set(sizes)) == 1 and len(sizes) > 1:
            factors = (*analysis.new(len(sizes)), *analysis.new(sizes[0]))
            analysis.unify(factors, axes[axis])
            axes = analysis.of(source)
            outer, inner = tuple(flat(factors[:1])), tuple(flat(factors[1:]))
            analysis.outer_factors[inner] = outer
            sections = [inner] * len(sizes)
        else:
            sections = [analysis.resized(axes[axis], size) for size in sizes]
        for value, section in zip(node.outputs, sections):
            analysis.set(value, [*axes[:axis], section, *axes[axis + 1 :]])

    def lower(self, lowering: Lowering, node: Node) -> Any:
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
            return list(unstack(x, names[0]))
        x, name = lowering.merged(x, axes[axis], "split")
        names_now = [lowering.names(a) for a in axes]
        names_now[axis] = [name]
        begin, results = 0, []
        for value, size in zip(node.outputs, sizes):
            section = slice_dimension(x, name, begin, size)
            results.append(_renamed(lowering, section, names_now, value))
            begin += size
        return results

    @staticmethod
    def source(node: Node) -> tuple[Value, int]:
        """Returns what is split, and along which axis."""
        k, axis = (1, 0) if node.kind == "Split" else (0, 2)
        value = node.inputs[k]
        return value, int(known(node, axis)) % len(value.shape)


def _sections(node: Node) -> list[_Section]:
    """Returns what a slice takes, axis by axis of its result."""
    sections, axes = [], itertools.count()
    for item in _index(node):
        if item is None:
            sections.append(_Section(None, 0, 1, 1, False))
            continue
        axis = next(axes)
        size = node.inputs[0].shape[axis]
        if isinstance(item, Moving):
            begin, is_one = node.inputs[item.operand], item.size is None
            sections.append(_Section(axis, begin, item.size or 1, 1, is_one))
        elif isinstance(item, int):
            sections.append(_Section(axis, item % size, 1, 1, True))
        else:
            elements = range(size)[item]
            sections.append(
                _Section(axis, elements.start, len(elements), elements.step, False)
            )
    return sections


def _index(node: Node) -> list[Any]:
    """Returns the index of a slice as Python writes it: x[1:, None, :, 2]."""
    if node.kind == "MovingSlice":
        return node.attributes["index"]
    if node.kind == "Slice":
        begins = [int(k) for k in known(node, 1)]
        sizes = node.outputs[0].shape
        return [slice(begin, begin + size) for begin, size in zip(begins, sizes)]
    return index_of(node, [[int(x) for x in known(node, k)] for k in (1, 2, 3)])


def _section_of(analysis: Analysis, axis: Axis, section: _Section) -> Axis:
    """Returns the axis of a slice: a factor of the old one, if it has one of this size."""
    size, step, atoms = section.size, section.step, flat(axis)
    if isinstance(section.begin, Value):
        return analysis.new(size, axis)
    if step > 1 and step * size == axis_size(axis):
        analysis.unify((*analysis.new(size), *analysis.new(step)), axis)
        atoms = flat(axis)
        if atoms[-1].size == step:
            return tuple(atoms[:-1])
    if step == 1 and len(atoms) == 2 and atoms[1].size == size:
        return (atoms[1],)
    return analysis.resized(axis, size) if step == 1 else analysis.new(size, axis)


def _slice(
    lowering: Lowering, x: Tensor, axis: Axis, section: _Section, source: Value
) -> tuple[Tensor, list[str]]:
    """Returns a tensor with a part of an axis, and the names that the part has now."""
    _, begin, size, step, _ = section
    total, names = source.shape[section.axis], lowering.names(axis)
    if isinstance(begin, Value):
        x, name = lowering.merged(x, axis, f"cut_{section.axis}")
        return _moving(lowering, x, name, lowering.tensor(begin), section)
    if size == total and step == 1:
        return x, names
    if size == 1:
        x, name = lowering.merged(x, axis, f"cut_{section.axis}")
        return _row(x, name, begin), []
    if step == 1 and len(axis) == 2 and axis[1].size == size and begin % size == 0:
        return _row(x, names[0], begin // size), names[1:]
    if step > 1 and step * size == total and axis[-1].size == step:
        return _row(x, names[-1], begin), names[:-1]
    x, name = lowering.merged(x, axis, f"cut_{section.axis}")
    if step == 1:
        return slice_dimension(x, name, begin, size), [name]
    indices = begin + step * np.arange(size)
    return entries_at(lowering, x, name, indices), [name]


def _moving(
    lowering: Lowering, x: Tensor, name: str, begin: Tensor, section: _Section
) -> tuple[Tensor, list[str]]:
    """Returns entries of a dimension that begin where a value says, and their names."""
    if section.drops:
        index = where(begin < 0, begin + x.shape[name], begin)
        return gather(x, index, name), []
    moved = f"moved_{section.axis}"
    offsets = np.arange(section.size, dtype=begin.dtype)
    indices = begin + constant(lowering.mesh, offsets, moved)
    return gather(x, indices, name), [moved]


def _row(x: Tensor, name: str, index: int) -> Tensor:
    """Returns one entry of a dimension, without it."""
    row = slice_dimension(x, name, index, 1)
    return reduce_any(row, name) if x.dtype == "bool" else reduce_sum(row, name)


def _renamed(
    lowering: Lowering, x: Tensor, names: Sequence[Sequence[str]], output: Value
) -> Tensor:
    """Returns a tensor whose axes have some names with those of an output."""
    pairs: dict[str, str] = {}
    joined: list[tuple[str, Axis]] = []
    for k, (old, axis) in enumerate(zip(names, lowering.axes(output))):
        expected = lowering.names(axis)
        if len(old) == len(expected):
            pairs |= {a: b for a, b in zip(old, expected) if a != b}
        elif old:
            pairs[old[0]] = f"joined_{k}"
            joined.append((f"joined_{k}", axis))
    x = rename(x, pairs) if pairs else x
    for name, axis in joined:
        x = lowering.split(x, name, axis)
    return x
