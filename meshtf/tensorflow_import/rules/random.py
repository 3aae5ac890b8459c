"""Random numbers: drawn by meshtf's generators, which give the same ones under every layout."""

from __future__ import annotations

from typing import Any

import meshtf as mtf
from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.table import rule

_DRAWS = {
    "RandomStandardNormal": mtf.random_normal,
    "RandomUniform": mtf.random_uniform,
    "StatelessRandomNormalV2": mtf.random_normal,
    "StatelessRandomUniformV2": mtf.random_uniform,
    "StatelessTruncatedNormalV2": mtf.truncated_normal,
}


@rule(*_DRAWS)
class Random:
    """A draw: other numbers than TensorFlow's, of the same distribution."""

    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        analysis.of(node.outputs[0])

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        output = node.outputs[0]
        lowering.drawn += 1
        with mtf.scope(f"draw_{lowering.drawn}"):
            return _DRAWS[node.kind](
                lowering.mesh, lowering.shape(output), dtype=output.dtype.name
            )


@rule("StatelessRandomGetAlg", "StatelessRandomGetKeyCounter")
class Key:
    """What TensorFlow's generators need, and meshtf's do not."""

    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        for value in node.outputs:
            analysis.of(value)

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        return [None] * len(node.outputs)
