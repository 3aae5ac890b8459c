"""Gradients that a TensorFlow function defines itself (`tf.custom_gradient`).

In a graph such a function ends with an IdentityN of its results and its arguments, whose
gradient is the user's rule. TensorFlow builds the rule's operations when asked for the gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


class GradientRule(NamedTuple):
    """The operations of a rule, in the graph of the function.

    Attributes:
        cotangents: By place among the outputs of the IdentityN, what stands for its cotangent.
        results: By place among its inputs, the cotangent of that one.
        operations: All that compute them.
    """

    cotangents: dict[int, tf.Tensor]
    results: dict[int, tf.Tensor]
    operations: list[tf.Operation]


def has_rule(operation: tf.Operation) -> bool:
    """Whether an operation's gradient is a rule that differs from that of its function.

    The rule of `tf.nn.silu` only saves memory: it is the derivative of x * sigmoid(beta * x).
    """
    if operation.type != "IdentityN":
        return False
    if "_gradient_op_type" not in operation.node_def.attr:
        return False
    return not _is_silu(operation)


def rule_of(operation: tf.Operation) -> GradientRule | None:
    """Returns an operation's rule; None if TensorFlow cannot build it here, as in functions that
    are called by factors_left.
    """
    graph = operation.graph
    before = len(graph.get_operations())
    indices = [k for k, t in enumerate(operation.outputs) if t.dtype.is_floating]
    with graph.as_default(), tf.control_dependencies(None):
        cotangents = {
            k: tf.raw_ops.Placeholder(
                dtype=operation.outputs[k].dtype, shape=operation.outputs[k].shape
            )
            for k in indices
        }
        try:
            results = tf.gradients(
                [operation.outputs[k] for k in indices],
                [operation.inputs[k] for k in indices],
                list(cotangents.values()),
                stop_gradients=list(operation.inputs),
            )
        except (LookupError, TypeError, ValueError):
            return None
    return GradientRule(
        cotangents,
        {k: dx for k, dx in zip(indices, results) if dx is not None},
        graph.get_operations()[before + len(indices) :],
    )


def _is_silu(operation: tf.Operation) -> bool:
    result, *arguments = operation.inputs
    if result.op.type != "Mul" or len(arguments) > 2:
        return False
    factors = [_source(t) for t in result.op.inputs]
    sigmoids = [t for t in factors if t.op.type == "Sigmoid"]
    factors_left = [t for t in factors if t.op.type != "Sigmoid"]
    if len(sigmoids) != 1 or factors_left[0] is not _source(arguments[0]):
        return False
    inner = _source(sigmoids[0].op.inputs[0])
    expected = [_source(t) for t in arguments]
    if inner.op.type == "Mul" and len(expected) == 2:
        return {_source(t).ref() for t in inner.op.inputs} == {
            t.ref() for t in expected
        }
    return inner is expected[0]


def _source(tensor: tf.Tensor) -> tf.Tensor:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor
