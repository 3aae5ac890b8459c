"""Reads and writes at computed places."""

from __future__ import annotations

from typing import Any

import meshtf as mtf
from meshtf.tensorflow_import.dimensions.analysis import Analysis, NoRule
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.shapes import constant
from meshtf.tensorflow_import.rules.table import rule


@rule("GatherV2")
class Gather:
    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        table, ids, _ = node.inputs
        rows, places = analysis.of(table), analysis.of(ids)
        axis = int(constant(node, 2)) % len(rows)
        batches = node.attributes.get("batch_dims", 0)
        result = [*rows[:axis], *places[batches:], *rows[axis + 1 :]]
        analysis.set(node.outputs[0], result)
        analysis.unify_all(rows[:batches], places[:batches])

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        table, ids, _ = node.inputs
        axes = lowering.axes(table)
        axis = int(constant(node, 2)) % len(axes)
        if node.attributes.get("batch_dims", 0):
            raise NoRule("a gather with batch dimensions")
        name = lowering.name(axes[axis], "a gather")
        places = len(lowering.axes(ids))
        wanted = lowering.axes(node.outputs[0])
        index = lowering.aligned(ids, wanted[axis : axis + places])
        if not hasattr(index, "shape"):
            index = lowering.tensor(ids)
        return mtf.gather(lowering.tensor(table), index, name)


@rule("OneHot")
class OneHot:
    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        axes, output = analysis.of(node.inputs[0]), node.outputs[0]
        axis = node.attributes["axis"] % len(output.shape)
        axes.insert(axis, analysis.new(output.shape[axis]))
        analysis.set(output, axes)

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        output = node.outputs[0]
        on, off = (float(constant(node, k)) for k in (2, 3))
        if (on, off) != (1.0, 0.0):
            raise NoRule("one_hot of other values than 1 and 0")
        new = lowering.axes(output)[node.attributes["axis"] % len(output.shape)]
        if len(new) != 1:
            raise NoRule("one_hot of one class")
        ids = lowering.tensor(node.inputs[0])
        return mtf.one_hot(ids, lowering.shape_of(new), output.dtype.name)


@rule("UnsortedSegmentSum")
class SegmentSum:
    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        data, ids, _ = node.inputs
        values, places = analysis.of(data), analysis.of(ids)
        analysis.unify_all(values[: len(places)], places)
        output = node.outputs[0]
        rows = analysis.new(output.shape[0])
        analysis.set(output, [rows, *values[len(places) :]])

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        data, ids, _ = node.inputs
        rows = lowering.axes(node.outputs[0])[0]
        if len(rows) != 1:
            raise NoRule("a sum of one segment")
        index = lowering.aligned(ids, lowering.axes(data))
        return mtf.segment_sum(lowering.tensor(data), index, lowering.shape_of(rows))
