"""Reads and writes at computed places."""

from __future__ import annotations

from typing import Any

from meshtf.ops.indexing.gather import gather, segment_sum
from meshtf.ops.indexing.one_hot_and_range import one_hot
from meshtf.tensorflow_import.dimensions.analysis import Analysis, NoRule
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.layout.reshapes import known
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
        if node.attributes.get("batch_dims", 0):
            raise NoRule("a gather with batch dimensions")
        name = lowering.name(axes[axis], "a gather")
        indices = len(lowering.axes(ids))
        expected = lowering.axes(node.outputs[0])
        index = lowering.aligned(ids, expected[axis : axis + indices])
        if not hasattr(index, "shape"):
            index = lowering.tensor(ids)
        return gather(lowering.tensor(table), index, name)


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
        on, off = (float(known(node, k)) for k in (2, 3))
        if (on, off) != (1.0, 0.0):
            raise NoRule("one_hot of other values than 1 and 0")
        new = lowering.axes(output)[node.attributes["axis"] % len(output.shape)]
        if len(new) != 1:
            raise NoRule("one_hot of one class")
        ids = lowering.tensor(node.inputs[0])
        return one_hot(ids, lowering.shape_of(new), output.dtype.name)


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
        if len(rows) != 1:
            raise NoRule("a sum of one segment")
        index = lowering.aligned(ids, lowering.axes(data))
        return segment_sum(lowering.tensor(data), index, lowering.shape_of(rows))
