"""A tensor with other rows at computed places: one of them, as loops that fill a tensor make it,
or with updates added to several.
"""

from __future__ import annotations

from typing import Any

from meshtf.ops.elementwise.arithmetic import add
from meshtf.ops.indexing.dynamic_slice import dynamic_update
from meshtf.ops.variables.fill import zeros_like
from meshtf.tensorflow_import.dimensions.analysis import Analysis, NoRule
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.layout.gathers import scattered
from meshtf.tensorflow_import.rules.table import Rule, rule


@rule("TensorScatterAdd", "TensorScatterUpdate")
class ScatterRow(Rule):
    """One row of a tensor, `indices` [1, 1], replaced by another one; or rows added to."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        x, indices, updates = node.inputs
        if indices.shape != (1, 1) and node.kind != "TensorScatterAdd":
            raise NoRule(f"{node.kind} of several rows, or of parts of rows")
        *batch, depth = indices.shape
        axes, update_axes = analysis.of(x), analysis.of(updates)
        analysis.set(node.outputs[0], axes)
        analysis.unify_all(axes[depth:], update_axes[len(batch) :])
        analysis.unify_all(update_axes[: len(batch)], analysis.of(indices))

    def lower(self, lowering: Lowering, node: Node) -> Any:
        x, indices, updates = node.inputs
        output = node.outputs[0]
        if indices.shape != (1, 1):
            sums = scattered(lowering, indices, updates, output)
            return add(lowering.full(x, output), sums)
        axes = lowering.axes(output)
        name = lowering.name(axes[0], "the rows of a scatter")
        table = lowering.full(x, output)
        # The axis of the one row has size 1, and so no name.
        row = lowering.aligned(updates, axes)
        index = lowering.tensor(indices)
        if node.kind == "TensorScatterAdd":
            return add(table, dynamic_update(zeros_like(table), name, index, row))
        return dynamic_update(table, name, index, row)
