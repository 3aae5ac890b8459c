"""Recognises functions that TensorFlow computes again for their gradient (`tf.recompute_grad`).

In a graph such a function is one with a gradient rule of its own: the rule calls the function
again, on a tape, and returns the tape's gradients. So the gradient is that of the function's
operations, and nothing need be imported of the rule.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from meshtf.tensorflow_import.graph.custom_gradients import GradientRule, rule_of

# Kinds that TensorFlow adds around a function that it calls again.
_ADDED = ("Identity", "IdentityN", "NoOp", "Placeholder", "ReadVariableOp")


@dataclasses.dataclass
class _Tape:
    """A gradient that a rule has asked a tape for.

    Attributes:
        results: How many results the function has that it calls again.
        arguments: How many arguments that is called with.
        operations: What it has computed of them.
    """

    results: int
    arguments: int
    operations: list[tf.Operation]


def first_recomputed(operation: tf.Operation) -> str | None:
    """Returns the name of the first operation of a function that is computed again for its
    gradient; None if the gradient is another rule.

    Args:
        operation: The IdentityN that ends the function: of its results, its arguments and the
            variables that it reads.
    """
    operations = operation.graph.get_operations()
    with _noted_tapes() as tapes:
        rule = rule_of(operation)
    if rule is None or not tapes or not _is_of_recompute_grad(rule):
        return None
    tape = tapes[0]
    names = [each.name for each in operations]
    arguments = operation.inputs[tape.results : tape.results + tape.arguments]
    indices = [names.index(tensor.op.name) for tensor in arguments]
    begin, end = max(indices, default=-1) + 1, names.index(operation.name)
    since = _without_added(operations[begin:end])
    again = _without_added(tape.operations)
    before, forward = since[: -len(again)], since[-len(again) :]
    if not since or [x.type for x in forward] != [x.type for x in again]:
        return (since or [operation])[0].name
    # It may compute less now, as without `training`: then what it reads was computed by it.
    left_out = {each.name for each in before}
    computes_less = any(x.op.name in left_out for each in forward for x in each.inputs)
    return (since if computes_less else forward)[0].name


@contextlib.contextmanager
def _noted_tapes() -> Iterator[list[_Tape]]:
    """Notes which gradients are asked of tapes, and computes none: they are zeros."""
    tapes: list[_Tape] = []
    original = tf.GradientTape.gradient

    def gradient(
        tape: tf.GradientTape,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        operations = tf.compat.v1.get_default_graph().get_operations()
        flat = tf.nest.flatten(sources)
        arguments = [x for x in flat if isinstance(x, tf.Tensor)]
        names = {x.op.name for x in arguments}
        last = [k for k, each in enumerate(operations) if each.name in names][-1:]
        since = operations[last[0] + 1 :] if last else operations
        tapes.append(_Tape(len(tf.nest.flatten(target)), len(arguments), since))
        zeros = [None if x is None else tf.zeros(x.shape, x.dtype) for x in flat]
        return tf.nest.pack_sequence_as(sources, zeros)

    tf.GradientTape.gradient = gradient
    try:
        yield tapes
    finally:
        tf.GradientTape.gradient = original


def _is_of_recompute_grad(rule: GradientRule) -> bool:
    """Whether a rule is that of `tf.recompute_grad`, which refuses gradients of itself."""
    for tensor in rule.results.values():
        end = tensor.op
        while end.type == "Identity":
            end = end.inputs[0].op
        if end.type != "IdentityN":
            return False
        inputs = list(end.inputs)
        try:
            with end.graph.as_default():
                tf.gradients(list(end.outputs), inputs, stop_gradients=inputs)
        except NotImplementedError as error:
            return "recompute_grad" in str(error)
        return False
    return False


def _without_added(operations: Sequence[tf.Operation]) -> list[tf.Operation]:
    """Returns operations without what TensorFlow adds around a function."""
    return [each for each in operations if each.type not in _ADDED]
