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
from meshtf.tensorflow_import.rules.control.custom_gradients import without_gradient
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
        start = [_known(v, lowering.value(v)) for v in node.inputs]
        counters = count_steps(node, start)
        if counters is None:
            return _run_until(lowering, node)
        if counters.steps >= _SHORTEST_SCAN:
            try:
                return run_as_scan(lowering, node, counters)
            except DoesNotFit:
                pass
        return _unroll(lowering, node, counters)


def same_axes(analysis: Analysis, inner: Value, outer: Value) -> None:
    """Gives a body's input the axes of what is passed (a list, if its items are known)."""
    if inner.is_tensor:
        analysis.set(inner, analysis.of(outer))
    elif inner.dtype == tf.variant and analysis.is_met(outer):
        analysis.set_list(inner, analysis.of(outer))


def _known(value: Value, x: Any) -> np.ndarray | None:
    """Returns the elements of a value that is constant or a number of Python."""
    if value.constant is not None:
        return value.constant
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
    state = [lowering.value(v) for v in node.inputs]
    for step in range(counters.steps):
        lowering.set(body.inputs, state)
        counted = [n for n in body.nodes if id(n) in counters.nodes]
        for value in [v for n in counted for v in n.outputs]:
            lowering.set_constant(value, counters.at(value, step))
        lowering.run_nodes([n for n in body.nodes if id(n) not in counters.nodes])
        results = [lowering.value(v) for v in body.outputs]
        for k, (result, entry) in enumerate(zip(body.outputs, body.inputs)):
            if isinstance(results[k], Tensor):
                results[k] = lowering.full(result, entry)
        state = results
    return state


def _run_until(lowering: Lowering, node: Node) -> list[Any]:
    """Runs a loop until its condition, which is computed, is false."""
    cond, body = node.bodies["cond"], node.bodies["body"]
    carried = [
        k
        for k, (entry, result) in enumerate(zip(body.inputs, body.outputs))
        if result is not entry and entry.is_tensor
    ]
    state = [lowering.value(v) for v in node.inputs]
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
        return tuple(lowering.full(body.outputs[k], body.inputs[k]) for k in carried)

    start = tuple(lowering.full(node.inputs[k], body.inputs[k]) for k in carried)
    error = (
        f"the loop at {node.path} has a number of steps that is computed, and so no gradient "
        "on a mesh: give it a length that is known, such as `tf.range` of a number, or compute "
        "it in the dataset"
    )
    for k, x in zip(carried, while_loop(test, step, start)):
        is_float = body.inputs[k].dtype.is_floating
        state[k] = without_gradient(x, error) if is_float else x
    return state
