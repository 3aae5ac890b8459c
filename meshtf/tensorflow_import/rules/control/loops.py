"""Loops: those of a known number of steps are scans, or unrolled; others are while loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import ArgumentError
from meshtf.graph import Tensor
from meshtf.ops.control.cond_and_while_loop import while_loop
from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.dimensions.atoms import join
from meshtf.tensorflow_import.graph.program import Body, Node, Value
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.control.counters import Counters, count_steps
from meshtf.tensorflow_import.rules.control.scans import DoesNotFit, run_as_scan
from meshtf.tensorflow_import.rules.table import Rule, rule

# Fewer steps are unrolled.
_SHORTEST_SCAN = 3


@rule("StatelessWhile", "While")
class While(Rule):
    """A loop. Inputs and outputs of the node and of its body stand for the same, one by one."""

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
        _join_lengths(analysis, node.outputs)

    def lower(self, lowering: Lowering, node: Node) -> Any:
        start = [_known(values(lowering, v)) for v in node.inputs]
        start = [
            v.constant if v.constant is not None else x
            for v, x in zip(node.inputs, start)
        ]
        counters = count_steps(node, start)
        if counters is None:
            return _run_until(lowering, node)
        if counters.steps >= _SHORTEST_SCAN:
            try:
                return run_as_scan(lowering, node, counters)
            except DoesNotFit:
                pass
        return _unroll(lowering, node, counters)


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


def _known(x: Any) -> np.ndarray | None:
    """Returns a value that is a number of Python."""
    return np.asarray(x) if isinstance(x, (bool, int, float)) else None


def _join_lengths(analysis: Analysis, outputs: list[Value]) -> None:
    """Lists of one length have one dimension of entries: an output for each input."""
    tensor_lists = [v for v in outputs if v.dtype == tf.variant and analysis.is_met(v)]
    lengths = [axes[0][0] for axes in map(analysis.of, tensor_lists) if axes[0]]
    for length in lengths:
        if length.now.size == lengths[0].now.size:
            join(lengths[0], length)


def _unroll(lowering: Lowering, node: Node, counters: Counters) -> list[Any]:
    body = node.bodies["body"]
    state = [values(lowering, v) for v in node.inputs]
    for step in range(counters.steps):
        lowering.set(body.inputs, state)
        counted = [n for n in body.nodes if id(n) in counters.nodes]
        for value in [v for n in counted for v in n.outputs]:
            lowering.set_constant(value, counters.at(value, step))
        lowering.run_nodes([n for n in body.nodes if id(n) not in counters.nodes])
        state = [
            lowering.full(result, lowering.axes(entry), entry)
            if isinstance(values(lowering, result), Tensor)
            else values(lowering, result)
            for result, entry in zip(body.outputs, body.inputs)
        ]
    return state


def _run_until(lowering: Lowering, node: Node) -> list[Any]:
    """Runs a loop until its condition, which is computed, is false."""
    cond, body = node.bodies["cond"], node.bodies["body"]
    if lowering.program.loss is not None:
        raise ArgumentError(
            f"the loop at {node.path} has a number of steps that is computed, and so no "
            "gradient on a mesh: give it a length that is known, such as `tf.range` of a "
            "number or `maximum_iterations`, or compute it in the dataset"
        )
    carried = [
        k
        for k, (entry, result) in enumerate(zip(body.inputs, body.outputs))
        if result is not entry and entry.is_tensor
    ]
    state = [values(lowering, v) for v in node.inputs]
    for entry, result in zip(body.inputs, body.outputs):
        if not entry.is_tensor and result is not entry:
            raise ArgumentError(
                f"the loop at {node.path} fills a list of tensors in a number of steps that "
                "is computed: give it a length that is known"
            )

    def enter(inner: Body, tensors: Any) -> None:
        lowering.set(inner.inputs, state)
        lowering.set([inner.inputs[k] for k in carried], tensors)
        lowering.run_nodes(inner.nodes)

    def test(*tensors: Tensor) -> Tensor:
        enter(cond, tensors)
        return lowering.tensor(cond.outputs[0])

    def step(*tensors: Tensor) -> tuple[Tensor, ...]:
        enter(body, tensors)
        return tuple(_carried(lowering, body, k, body.outputs[k]) for k in carried)

    start = tuple(_carried(lowering, body, k, node.inputs[k]) for k in carried)
    for k, x in zip(carried, while_loop(test, step, start)):
        state[k] = x
    return state


def _carried(lowering: Lowering, body: Body, k: int, value: Value) -> Tensor:
    """Returns a value with the names that the body's input has."""
    entry = body.inputs[k]
    return lowering.full(value, lowering.axes(entry), entry)
