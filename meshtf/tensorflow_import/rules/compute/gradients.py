"""Gradients, which are marked in the trace."""

from __future__ import annotations

from typing import Any

from meshtf.graph.autodiff.gradients import gradients_up_to
from meshtf.ops.variables.fill import zeros
from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.table import Rule, rule


@rule("Gradients")
class Gradients(Rule):
    """`mtf.gradients` of the first operand by as many others as there are outputs. They do not
    flow beyond the remaining operands.
    """

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        for source, output in zip(node.inputs[1:], node.outputs):
            analysis.set(output, analysis.of(source))

    def lower(self, lowering: Lowering, node: Node) -> Any:
        loss, *operands = node.inputs
        sources = operands[: len(node.outputs)]
        constants = operands[len(node.outputs) :]
        results = gradients_up_to(
            [lowering.tensor(v) for v in constants],
            [lowering.tensor(loss)],
            [lowering.variable_or_tensor(v) for v in sources],
        )
        return [
            zeros(lowering.mesh, lowering.shape(value), value.dtype.name)
            if x is None
            else (lowering.named_as(x, value) if source.kind == "variable" else x)
            for x, source, value in zip(results, sources, node.outputs)
        ]
