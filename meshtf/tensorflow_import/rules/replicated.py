"""Operations that run replicated: each device runs the TensorFlow operation on gathered
operands.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.errors import ArgumentError
from meshtf.ops.shapes.reshape import transpose
from meshtf.ops.slicewise.slicewise import slicewise
from meshtf.runtime.storage.asarray import constant
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.graph.raw_ops import can_run_alone, run_operation
from meshtf.tensorflow_import.lowering import Lowering


def run_replicated(lowering: Lowering, node: Node) -> Any:
    """Returns the results of a node, run as the TensorFlow operation that it is.

    Raises:
        ArgumentError: It has a state or bodies.
    """
    if not can_run_alone(node):
        raise ArgumentError(
            f"{node.kind} at {node.path} has no rule, and cannot run on gathered operands, "
            "since it has a state"
        )
    fed = [v for v in node.inputs if v.constant is None]
    tensors = []
    for value in fed:
        x = lowering.tensor(value)
        tensors.append(transpose(x, lowering.names_of(value)))

    def run(*arguments: tf.Tensor) -> Any:
        fed_tensors = iter(arguments)
        inputs = [
            tf.reshape(next(fed_tensors), v.shape)
            if v.constant is None
            else tf.constant(v.constant, v.dtype)
            for v in node.inputs
        ]
        results = run_operation(node.kind, node.definition, node.attributes, inputs)
        named = [
            tf.reshape(x, [a.size for a in lowering.analysis.atoms_of(v)])
            for x, v in zip(results, node.outputs)
        ]
        return named if len(named) > 1 else named[0]

    shapes = [lowering.shape(v) for v in node.outputs]
    dtypes = [v.dtype.name for v in node.outputs]
    if not tensors:
        return run_of_nothing(lowering, run, shapes)
    if len(shapes) == 1:
        return slicewise(run, tensors, shapes=shapes[0], dtypes=dtypes[0])
    return slicewise(run, tensors, shapes=shapes, dtypes=dtypes)


def run_of_nothing(lowering: Lowering, run: Any, shapes: list[str]) -> Any:
    """Returns results that depend on no tensor, as constants."""
    with tf.init_scope():
        results = run()
    results = results if isinstance(results, list) else [results]
    return [constant(lowering.mesh, x.numpy(), s) for x, s in zip(results, shapes)]
