"""Reads and writes at computed places."""

from __future__ import annotations

from typing import Any

from meshtf.ops.elementwise.where_cast_clip import where
from meshtf.ops.indexing.gather import gather
from meshtf.ops.indexing.one_hot_and_range import one_hot
from meshtf.ops.indexing.scatter import segment_sum
from meshtf.ops.shapes.reshape import rename
from meshtf.ops.variables.fill import full
from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.layout.known_operands import known
from meshtf.tensorflow_import.rules.table import Rule, rule


@rule("GatherV2")
class Gather(Rule):
    """Rows of a table."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        table, ids, _ = node.inputs
        rows, indices = analysis.of(table), analysis.of(ids)
        axis = int(known(node, 2)) % len(rows)
        batches = node.attributes.get("batch_dims", 0)
        result = [*rows[:axis], *indices[batches:], *rows[axis + 1 :]]
        analysis.set(node.outputs[0], result)
        analysis.unify_all(rows[:batches], indices[:batches])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        table, ids, _ = node.inputs
        axes = lowering.axes(table)
        axis = int(known(node, 2)) % len(axes)
        batches = node.attributes.get("batch_dims", 0)
        expected = lowering.axes(node.outputs[0])
        count = len(lowering.axes(ids)) - batches
        looked_up = expected[axis : axis + count]
        index = lowering.aligned(ids, [*expected[:batches], *looked_up])
        x = lowering.aligned(table, [*expected[:axis], None, *expected[axis + count :]])
        x, name = lowering.merged(x, axes[axis], "rows")
        # Only batch dimensions may be in both.
        new = [
            a
            for a in lowering.names([a for axis in looked_up for a in axis])
            if a in x.shape.names
        ]
        index = rename(index, {a: f"{a}_looked_up" for a in new}) if new else index
        y = gather(x, index, name)
        return rename(y, {f"{a}_looked_up": a for a in new}) if new else y


@rule("OneHot")
class OneHot(Rule):
    """1 at the place of an id."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        axes, output = analysis.of(node.inputs[0]), node.outputs[0]
        axis = node.attributes["axis"] % len(output.shape)
        axes.insert(axis, analysis.new(output.shape[axis]))
        analysis.set(output, axes)

    def lower(self, lowering: Lowering, node: Node) -> Any:
        output = node.outputs[0]
        on, off = (known(node, k).item() for k in (2, 3))
        axis = node.attributes["axis"] % len(output.shape)
        classes = lowering.axes(output)[axis]
        name = lowering.single(classes, "classes_now")
        ids, size = lowering.tensor(node.inputs[0]), output.shape[axis]
        is_plain = (on, off) == (1, 0)
        dtype = output.dtype.name
        x = one_hot(ids, f"{name}:{size}", dtype if is_plain else "bool")
        if not is_plain:  # they may be infinite, as logarithms of 0
            scalars = [full(lowering.mesh, "", value, dtype) for value in (on, off)]
            x = where(x, *scalars)
        return lowering.split(x, name, classes)


@rule("UnsortedSegmentSum")
class SegmentSum(Rule):
    """Sums of the entries that have the same id."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        data, ids, _ = node.inputs
        values, indices = analysis.of(data), analysis.of(ids)
        analysis.unify_all(values[: len(indices)], indices)
        output = node.outputs[0]
        rows = analysis.new(output.shape[0])
        analysis.set(output, [rows, *values[len(indices) :]])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        data, ids, _ = node.inputs
        rows = lowering.axes(node.outputs[0])[0]
        index = lowering.aligned(ids, lowering.axes(data))
        name = lowering.single(rows, "segments_now")
        segments = f"{name}:{node.outputs[0].shape[0]}"
        y = segment_sum(lowering.tensor(data), index, segments)
        return lowering.split(y, name, rows)
