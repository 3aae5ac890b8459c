"""Random numbers: drawn by meshtf's generators, which give the same ones under every layout."""

from __future__ import annotations

from typing import Any

from meshtf.module import scope
from meshtf.ops.random.random import random_normal, random_uniform, truncated_normal
from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.table import Rule, rule

_DRAWS = {
    "RandomStandardNormal": random_normal,
    "RandomUniform": random_uniform,
    "StatelessRandomNormalV2": random_normal,
    "StatelessRandomUniformV2": random_uniform,
    "StatelessTruncatedNormalV2": truncated_normal,
}


@rule(*_DRAWS)
class Random(Rule):
    """A draw: other numbers than TensorFlow's, of the same distribution."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        analysis.of(node.outputs[0])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        output = node.outputs[0]
        lowering.drawn += 1
        with scope(f"draw_{lowering.drawn}"):
            return _DRAWS[node.kind](
                lowering.mesh, lowering.shape(output), dtype=output.dtype.name
            )


@rule("StatelessRandomGetAlg", "StatelessRandomGetKeyCounter")
class Key(Rule):
    """What TensorFlow's generators need, and meshtf's do not."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        for value in node.outputs:
            analysis.of(value)

    def lower(self, lowering: Lowering, node: Node) -> Any:
        return [None] * len(node.outputs)
