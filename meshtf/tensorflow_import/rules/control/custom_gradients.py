"""Gradients that a function defines itself: `mtf.custom_gradient`."""

from __future__ import annotations

from typing import Any

from meshtf.errors import ArgumentError
from meshtf.graph import Tensor
from meshtf.ops.control.custom_gradient import custom_gradient
from meshtf.ops.variables.fill import zeros_like
from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.table import Rule, rule


@rule("CustomGradient")
class CustomGradient(Rule):
    """The operands as they are (results and arguments of the function), with the user's rule for
    their gradient.
    """

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        for value, output in zip(node.inputs, node.outputs):
            analysis.set(output, analysis.of(value))
        body = node.bodies.get("rule")
        if body is None:
            return
        for value, k in zip(body.inputs, node.attributes["cotangents"]):
            analysis.set(value, analysis.of(node.outputs[k]))
        analysis.run(body.nodes)
        for value, k in zip(body.outputs, node.attributes["results"]):
            analysis.unify_all(analysis.of(node.inputs[k]), analysis.of(value))

    def lower(self, lowering: Lowering, node: Node) -> Any:
        body, indices = node.bodies.get("rule"), node.attributes["cotangents"]
        xs = [lowering.tensor(v) for v in node.inputs[: len(node.outputs)]]

        def rule(*cotangents: Tensor) -> list[Tensor]:
            if body is None:
                raise ArgumentError(
                    f"the gradient at {node.path} is a rule of the function's own "
                    "(tf.custom_gradient), which TensorFlow does not give for functions that "
                    "others call, or that are loaded: call the function without tf.function, "
                    "or leave the rule out"
                )
            lowering.set(body.inputs, cotangents)
            lowering.run_nodes(body.nodes)
            results = {
                k: lowering.full(v, node.inputs[k])
                for k, v in zip(node.attributes["results"], body.outputs)
            }
            return [results[k] if k in results else zeros_like(xs[k]) for k in indices]

        @custom_gradient
        def passed(*tensors: Tensor) -> Any:
            return list(tensors), rule

        for k, y in zip(indices, passed(*(xs[k] for k in indices))):
            xs[k] = y
        return xs


def without_gradient(x: Tensor, error: str) -> Tensor:
    """Returns a tensor by which there is no gradient: who asks for one gets an error."""

    def refuse(*cotangents: Tensor) -> list[Tensor]:
        raise ArgumentError(error)

    return custom_gradient(lambda y: (y, refuse))(x)
