"""What a loop does that is known before it runs: its counters, and so its number of steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.tensorflow_import.graph.program import Body, Node, Value
from meshtf.tensorflow_import.graph.raw_ops import can_run_alone, run_operation

_MOST_STEPS = 100_000


@dataclasses.dataclass(frozen=True)
class Counters:
    """The values of a loop that depend on nothing but constants.

    Attributes:
        nodes: Identities of the nodes of its body that compute only such values.
        history: For each step, these values by identity.
        last: By place among what is carried, the value after the last step.
    """

    nodes: set[int]
    history: list[dict[int, np.ndarray]]
    last: dict[int, np.ndarray]

    @property
    def steps(self) -> int:
        """How many steps the loop has."""
        return len(self.history)

    def has(self, value: Value) -> bool:
        """Whether a value of the body is known in each step."""
        return _is_in(value, self.history[0])

    def at(self, value: Value, step: int) -> np.ndarray:
        """Returns the value in a step."""
        return _array(value, self.history[step])

    def all(self, value: Value) -> np.ndarray:
        """Returns the value in all steps, `[steps, ...]`."""
        return np.stack([_array(value, step) for step in self.history])


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
    state: dict[int, Any] = {k: np.asarray(start[k]) for k in known}
    history: list[dict[int, np.ndarray]] = []
    while _array(cond.outputs[0], _evaluate(cond, test_nodes, state)):
        if len(history) == _MOST_STEPS:
            return None
        step = _evaluate(body, nodes, state)
        history.append(step)
        state = {k: _array(body.outputs[k], step) for k in state}
    return Counters({id(n) for n in nodes}, history, state)


def _is_in(value: Value, values: Container[int]) -> bool:
    return value.constant is not None or id(value) in values


def _array(value: Value, values: Mapping[int, np.ndarray]) -> np.ndarray:
    return values[id(value)] if value.constant is None else value.constant


def _reached(body: Body, known: set[int]) -> tuple[set[int], list[Node]]:
    """Returns what known inputs of a body determine: values, and the nodes that compute them."""
    values, nodes = {id(body.inputs[k]) for k in known}, []
    for node in body.nodes:
        if can_run_alone(node) and all(_is_in(v, values) for v in node.inputs):
            values.update(id(v) for v in node.outputs)
            nodes.append(node)
    return values, nodes


def _evaluate(
    body: Body, nodes: Sequence[Node], state: Mapping[int, np.ndarray]
) -> dict[int, np.ndarray]:
    """Runs nodes on known inputs of a body, and returns all values by identity."""
    values = {id(body.inputs[k]): x for k, x in state.items()}
    with tf.init_scope(), tf.device("CPU:0"):
        for node in nodes:
            inputs = [tf.constant(_array(v, values), v.dtype) for v in node.inputs]
            outputs = run_operation(node.kind, node.definition, node.attributes, inputs)
            values |= {id(v): x.numpy() for v, x in zip(node.outputs, outputs)}
    return values
