"""Gradients that a TensorFlow function defines itself (`tf.custom_gradient`).

In a graph such a function ends with an IdentityN of its results and its arguments, whose
gradient is the user's rule. TensorFlow builds the rule's operations when asked for the gradient.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, MutableMapping
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.tensorflow_import.graph.program import Body, Node, Value


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
    are called by others.
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
        except (LookupError, NotImplementedError, TypeError, ValueError):
            return None
    return GradientRule(
        cotangents,
        {k: dx for k, dx in zip(indices, results) if dx is not None},
        graph.get_operations()[before + len(indices) :],
    )


def read_rule(
    read: Callable[..., list[Node]],
    operation: tf.Operation,
    values: MutableMapping[Any, Value],
    path: str,
) -> tuple[list[Value], Node]:
    """Reads an IdentityN whose gradient is the user's rule, as a node "CustomGradient". What the
    rule uses of the function follows the operands.

    Args:
        read: Returns nodes of operations, and adds what they make to values; under a path.
        operation: The IdentityN.
        values: Those of the graph's tensors.
        path: The operation's.
    """
    inputs = [values[t.ref()] for t in operation.inputs]
    outputs = [Value(v.shape, v.dtype, path) for v in inputs]
    rule = rule_of(operation)
    if rule is None:
        floats = [k for k, v in enumerate(inputs) if v.dtype.is_floating]
        attributes = {"cotangents": floats, "results": []}
        return outputs, Node("CustomGradient", inputs, outputs, attributes, path)
    cotangents = [
        Value(inputs[k].shape, inputs[k].dtype, path, kind="carried")
        for k in rule.cotangents
    ]
    tensors = [t.ref() for t in rule.cotangents.values()]
    inner = collections.ChainMap(dict(zip(tensors, cotangents)), values)
    nodes = read(rule.operations, inner, f"{path}/")
    results = [inner[t.ref()] for t in rule.results.values()]
    within = {id(v) for v in [*cotangents, *(v for n in nodes for v in n.outputs)]}
    used = [*results, *(v for n in nodes for v in n.inputs)]
    captured = {id(v): v for v in used if id(v) not in within}
    node = Node(
        "CustomGradient",
        [*inputs, *captured.values()],
        outputs,
        {"cotangents": list(rule.cotangents), "results": list(rule.results)},
        path,
    )
    node.bodies["rule"] = Body(cotangents, results, nodes)
    return outputs, node


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
