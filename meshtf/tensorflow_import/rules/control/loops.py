"""Loops and branches."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.errors import ArgumentError
from meshtf.graph import Tensor
from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.graph.program import Body, Node, Value
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.table import Rule, rule

_MOST_STEPS = 10_000


@rule("StatelessWhile", "While")
class While(Rule):
    """A loop, whose number of steps must be known. Inputs and outputs of the node and of its
    body stand for the same, one by one.
    """

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        for body in node.bodies.values():
            for inner, outer in zip(body.inputs, node.inputs):
                same_axes(analysis, inner, outer)
            analysis.run(body.nodes)
        body = node.bodies["body"]
        for output, entry, result in zip(node.outputs, body.inputs, body.outputs):
            if output.is_tensor:
                analysis.unify_all(analysis.of(entry), analysis.of(result))
                analysis.set(output, analysis.of(entry))
            else:
                same_axes(analysis, output, result)

    def lower(self, lowering: Lowering, node: Node) -> Any:
        state = [values(lowering, v) for v in node.inputs]
        cond, body = node.bodies["cond"], node.bodies["body"]
        for _ in range(_MOST_STEPS):
            goes_on = run_body(lowering, cond, state)[0]
            if isinstance(goes_on, Tensor):
                raise ArgumentError(
                    f"The loop at {node.path} runs until a computed condition: a loop on a "
                    "mesh has a number of steps that is known before it runs"
                )
            if not goes_on:
                break
            new = run_body(lowering, body, state)
            state = [
                lowering.aligned(result, lowering.axes(entry))
                if isinstance(x, Tensor)
                else x
                for x, result, entry in zip(new, body.outputs, body.inputs)
            ]
        return state


def values(lowering: Lowering, value: Value) -> Any:
    """Returns a value; None for a resource."""
    return None if value.dtype == tf.resource else lowering.value(value)


def run_body(lowering: Lowering, body: Body, inputs: list[Any]) -> list[Any]:
    """Runs a body on its inputs, and returns its results."""
    lowering.set(body.inputs, inputs)
    lowering.run_nodes(body.nodes)
    return [values(lowering, v) for v in body.outputs]


def same_axes(analysis: Analysis, inner: Value, outer: Value) -> None:
    """Gives a body's input the axes of what is passed (a list, if its items are known)."""
    if inner.is_tensor:
        analysis.set(inner, analysis.of(outer))
    elif inner.dtype == tf.variant and analysis.is_met(outer):
        analysis.set_list(inner, analysis.of(outer))
