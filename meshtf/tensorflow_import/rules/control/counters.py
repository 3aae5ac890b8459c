"""What a loop does that is known before it runs: its counters, and so its number of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.tensorflow_import.graph.program import Body, Node, Value
from meshtf.tensorflow_import.graph.raw_ops import can_run_alone, run_operation

_MOST_STEPS = 100_000


class Counters:
    """The values of a loop that depend on nothing but constants.

    Attributes:
        steps: How many steps the loop has.
        nodes: Identities of the nodes of its body that compute only such values.
        last: By place among what is carried, the value after the last step.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.nodes: set[int] = set()
        self.last: dict[int, np.ndarray] = {}
        self._history: list[dict[int, np.ndarray]] = []

    def has(self, value: Value) -> bool:
        """Whether a value of the body is known in each step."""
        return value.constant is not None or id(value) in self._history[0]

    def at(self, value: Value, step: int) -> np.ndarray:
        """Returns the value in a step."""
        if value.constant is not None:
            return value.constant
        return self._history[step][id(value)]

    def all(self, value: Value) -> np.ndarray:
        """Returns the value in all steps, `[steps, ...]`."""
        return np.stack([self.at(value, step) for step in range(self.steps)])


def count_steps(node: Node, start: Sequence[np.ndarray | None]) -> Counters | None:
    """Returns the counters of a loop; None if its condition depends on what it computes.

    Args:
        node: The loop.
        start: For each of its inputs, the value if it is known.
    """
    body, cond = node.bodies["body"], node.bodies["cond"]
    known = {k for k, x in enumerate(start) if x is not None}
    while True:
        values, nodes = _reached(body, known)
        remaining = {k for k in known if _is_in(body.outputs[k], values)}
        if remaining == known:
            break
        known = remaining
    tested, test_nodes = _reached(cond, known)
    if not _is_in(cond.outputs[0], tested):
        return None
    state: dict[int, Any] = {k: start[k] for k in known}
    history: list[dict[int, np.ndarray]] = []
    while _evaluate(cond, test_nodes, state, [cond.outputs[0]])[0][0]:
        if len(history) == _MOST_STEPS:
            return None
        expected = [body.outputs[k] for k in state]
        results, step = _evaluate(body, nodes, state, expected)
        history.append(step)
        state = dict(zip(state, results))
    counters = Counters(len(history))
    counters.nodes = {id(n) for n in nodes}
    counters.last = state
    counters._history = history
    return counters


def _is_in(value: Value, values: set[int]) -> bool:
    return value.constant is not None or id(value) in values


def _reached(body: Body, known: set[int]) -> tuple[set[int], list[Node]]:
    """Returns what known inputs of a body determine: values, and the nodes that compute them."""
    values, nodes = {id(body.inputs[k]) for k in known}, []
    for node in body.nodes:
        if can_run_alone(node) and all(_is_in(v, values) for v in node.inputs):
            values.update(id(v) for v in node.outputs)
            nodes.append(node)
    return values, nodes


def _evaluate(
    body: Body, nodes: Sequence[Node], state: dict[int, Any], results: Sequence[Value]
) -> tuple[list[np.ndarray], dict[int, np.ndarray]]:
    """Runs nodes on known inputs of a body. Returns the results, and all values."""
    values = {id(body.inputs[k]): np.asarray(x) for k, x in state.items()}

    def value_of(value: Value) -> np.ndarray:
        return value.constant if value.constant is not None else values[id(value)]

    with tf.init_scope(), tf.device("CPU:0"):
        for node in nodes:
            inputs = [tf.constant(value_of(v), v.dtype) for v in node.inputs]
            outputs = run_operation(node.kind, node.definition, node.attributes, inputs)
            values |= {id(v): x.numpy() for v, x in zip(node.outputs, outputs)}
    return [value_of(v) for v in results], values
