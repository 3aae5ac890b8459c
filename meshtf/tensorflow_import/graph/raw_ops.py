"""Runs a node as the TensorFlow operation that it was read from."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from meshtf.tensorflow_import.graph.program import Node


def attributes_of(operation: tf.Operation) -> dict[str, Any]:
    """Returns an operation's attributes, but for those that start with "_" (hints for
    TensorFlow's placement and gradients).
    """
    return {
        name: operation.get_attr(name)
        for name in operation.node_def.attr
        if not name.startswith("_")
    }


def run_operation(
    kind: str, definition: Any, attributes: dict[str, Any], tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Runs a kind of operation on its inputs (flat), eagerly or in the present graph.

    Args:
        kind: For example "MatMul".
        definition: The kind's `OpDef`.
        attributes: As `attributes_of` returns them.
        tensors: Its inputs, those of lists one after the other.
    """
    if kind in _SUBSTITUTES:
        return [_SUBSTITUTES[kind](*tensors)]
    arguments: dict[str, Any] = {}
    inferred, first = set(), 0
    for argument in definition.input_arg:
        inferred |= {argument.type_attr, argument.number_attr, argument.type_list_attr}
        if argument.number_attr:
            count = attributes[argument.number_attr]
        elif argument.type_list_attr:
            count = len(attributes[argument.type_list_attr])
        else:
            arguments[argument.name] = tensors[first]
            first += 1
            continue
        arguments[argument.name] = list(tensors[first : first + count])
        first += count
    arguments |= {k: v for k, v in attributes.items() if k not in inferred}
    names = _python_names(kind, tuple(arguments))
    result = getattr(tf.raw_ops, kind)(**dict(zip(names, arguments.values())))
    if result is None or isinstance(result, tf.Operation):
        return []
    return list(result) if isinstance(result, (list, tuple)) else [result]


def _dynamic_slice(x: tf.Tensor, start: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns a slice that starts at computed indices, within x."""
    sizes = tf.cast(tf.shape(x), size.dtype)
    begin = tf.cast(start, size.dtype)
    return tf.slice(x, tf.clip_by_value(begin, 0, sizes - size), size)


def _dynamic_update_slice(
    x: tf.Tensor, update: tf.Tensor, start: tf.Tensor
) -> tf.Tensor:
    """Returns x with another slice, which starts at computed indices."""
    last = tf.cast(tf.shape(x) - tf.shape(update), start.dtype)
    begins = tf.unstack(tf.clip_by_value(start, 0, last))
    ranges = [
        begin + tf.range(size, dtype=begin.dtype)
        for begin, size in zip(begins, update.shape)
    ]
    grid = tf.meshgrid(*ranges, indexing="ij")
    return tf.tensor_scatter_nd_update(x, tf.stack(grid, -1), update)


# Of kinds that are not among `tf.raw_ops`.
_SUBSTITUTES: dict[str, Callable[..., tf.Tensor]] = {
    "XlaDynamicSlice": _dynamic_slice,
    "XlaDynamicUpdateSlice": _dynamic_update_slice,
}


@functools.cache
def _python_names(kind: str, names: tuple[str, ...]) -> list[str]:
    """Returns what `tf.raw_ops` calls the arguments of a kind: a few have other names there
    ("axis" for "reduction_indices"), in the same order.
    """
    signature = inspect.signature(getattr(tf.raw_ops, kind))
    theirs = list(signature.parameters)
    theirs.remove("name")
    renamed = iter([name for name in theirs if name not in names])
    return [name if name in theirs else next(renamed) for name in names]


def can_run_alone(node: Node) -> bool:
    """Whether a node can run replicated, as one TensorFlow operation: it has no state, no bodies
    and only tensors of numbers.
    """
    return (
        node.definition is not None
        and not node.definition.is_stateful
        and not node.bodies
        and all(
            v.is_tensor and v.dtype != tf.string for v in [*node.inputs, *node.outputs]
        )
    )


@functools.cache
def definition_of(kind: str) -> Any:
    """Returns TensorFlow's description of one of the kinds that other kinds are read as."""
    with tf.Graph().as_default():
        x, index = tf.zeros([1]), tf.zeros([], tf.int32)
        output = {
            "AddV2": lambda: tf.raw_ops.AddV2(x=x, y=x),
            "Mul": lambda: tf.raw_ops.Mul(x=x, y=x),
            "Sub": lambda: tf.raw_ops.Sub(x=x, y=x),
            "StopGradient": lambda: tf.raw_ops.StopGradient(input=x),
            "Fill": lambda: tf.raw_ops.Fill(dims=index[None], value=x[0]),
            "UnsortedSegmentSum": lambda: tf.raw_ops.UnsortedSegmentSum(
                data=x, segment_ids=index[None], num_segments=index
            ),
            "GatherV2": lambda: tf.raw_ops.GatherV2(
                params=x, indices=index, axis=index
            ),
        }[kind]()
        return output.op.op_def
