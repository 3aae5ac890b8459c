"""Shapes that TensorFlow lost: in loops, lists of tensors do not tell those of their items."""

from __future__ import annotations

import tensorflow as tf

from meshtf.tensorflow_import.graph.program import Node, Value


def infer_shapes(node: Node) -> None:
    """Sets the shapes of a node's outputs, and of the items of lists, where they are unknown."""
    if node.kind.startswith("TensorList"):
        _list_shapes(node)
    elif not node.bodies and not all(is_known(v) for v in node.outputs):
        _create_again(node)


def is_known(value: Value) -> bool:
    """Whether a tensor's shape is known (that of a list or a resource need not be)."""
    return not value.is_tensor or (value.shape is not None and None not in value.shape)


def _list_shapes(node: Node) -> None:
    output = node.outputs[0]
    source = node.inputs[0]
    if node.kind == "TensorListFromTensor":
        output.items = (source.shape[0], source.shape[1:])
    elif node.kind == "TensorListReserve":
        count = node.inputs[1].constant
        output.items = (None if count is None else int(count), None)
    elif node.kind == "TensorListSetItem":
        output.items = (source.items[0], node.inputs[2].shape)
    elif node.kind == "TensorListGetItem":
        output.shape = source.items[1]
    elif node.kind == "TensorListStack" and source.items[1] is not None:
        output.shape = (source.items[0], *source.items[1])


def _create_again(node: Node) -> None:
    """Creates the operation on inputs of known shapes, and takes what TensorFlow infers."""
    with tf.Graph().as_default() as graph:
        inputs = [
            tf.constant(v.constant, v.dtype)
            if v.constant is not None
            else tf.raw_ops.Placeholder(dtype=v.dtype, shape=v.shape)
            for v in node.inputs
        ]
        operation = graph.create_op(node.kind, inputs, attrs=node.raw_attributes)
    for value, tensor in zip(node.outputs, operation.outputs):
        if value.is_tensor and tensor.shape.rank is not None:
            value.shape = tuple(tensor.shape.as_list())
