"""Which values of a graph are known before it runs: shapes, and what is computed from them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.tensorflow_import.graph.program import Node, Value
from meshtf.tensorflow_import.graph.raw_ops import definition_of, run_operation

# Larger ones (masks, position tables) are computed on the mesh, in their shards.
LARGEST = 4096


def fold(node: Node) -> bool:
    """Sets the constants of a node's outputs, where its inputs tell them. Returns whether all
    outputs are known, and the node is not needed.
    """
    if node.kind == "Const":
        output = node.outputs[0]
        output.constant = tf.make_ndarray(node.attributes["value"])
        output.kind = "constant"
        return True
    if node.kind in ("Shape", "Size", "Rank", "ShapeN") and _known(node.inputs):
        for value, result in zip(node.inputs, node.outputs):
            result.constant = _of_shape(node.kind, value.shape, result.dtype)
        return True
    if not node.outputs or not _can_fold(node):
        return False
    with tf.init_scope(), tf.device("CPU:0"):
        results = run_operation(
            node.kind,
            node.definition,
            node.attributes,
            [tf.constant(v.constant, v.dtype) for v in node.inputs],
        )
    for value, result in zip(node.outputs, results):
        value.constant = result.numpy()
        value.shape = tuple(result.shape)
    return True


def zeros_for_empty(node: Node) -> Node:
    """Returns a node of zeros in place of an `Empty`, whose elements may be any."""
    output = node.outputs[0]
    zero = np.zeros((), output.dtype.as_numpy_dtype)
    operands = [
        node.inputs[0],
        Value((), output.dtype, node.path, constant=zero, kind="constant"),
    ]
    return Node("Fill", operands, [output], {}, node.path, definition_of("Fill"))


def _known(values: list[Value]) -> bool:
    return all(v.shape is not None and None not in v.shape for v in values)


def _of_shape(kind: str, shape: tuple[int, ...], dtype: tf.DType) -> np.ndarray:
    result: Any = shape
    if kind == "Size":
        result = math.prod(shape)
    elif kind == "Rank":
        result = len(shape)
    return np.asarray(result, dtype.as_numpy_dtype)


def _can_fold(node: Node) -> bool:
    values = [*node.inputs, *node.outputs]
    if not node.inputs or node.definition.is_stateful or node.bodies:
        return False
    if any(not v.is_tensor or v.dtype == tf.string for v in values):
        return False
    if any(v.constant is None for v in node.inputs):
        return False
    # Sizes that depend on values are known with these, as of BroadcastGradientArgs.
    known = [v for v in values if _known([v])]
    return all(math.prod(v.shape) <= LARGEST for v in known)
