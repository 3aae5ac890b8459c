"""What variables hold at a point of the trace, and the operations that read or assign them:
reads return it, assignments replace it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.tensorflow_import.graph.program import Body, Node, Value
from meshtf.tensorflow_import.graph.raw_ops import definition_of


class State:
    """Present values of variables and the nodes so far, of a function or of the body of a loop
    or branch.

    Attributes:
        nodes: What was read so far.
        coming_gradients: How many gradients are still to be computed.
        on_entry: By the variable's identity, its value on entry.
    """

    def __init__(self, coming_gradients: int) -> None:
        self.nodes: list[Node] = []
        self.coming_gradients = coming_gradients
        self.on_entry: dict[int, Value] = {}
        self._present: dict[int, Value] = {}

    def entry_of(self, variable: Any) -> Value:
        """Returns a variable's value on entry, whether or not something reads it."""
        key = id(variable)
        if key not in self.on_entry:
            value = Value(
                tuple(variable.shape),
                tf.as_dtype(variable.dtype),
                path=path_of(variable),
                kind="variable",
                variable=variable,
            )
            self.on_entry[key] = self._present[key] = value
        return self.on_entry[key]

    def read(self, variable: Any) -> Value:
        """Returns its present value."""
        self.entry_of(variable)
        return self._present[id(variable)]

    def assign(self, variable: Any, value: Value, path: str) -> None:
        """Replaces its present value. In TensorFlow no gradient flows through an assignment."""
        present = self.read(variable)
        if self.coming_gradients:
            value = self.add("StopGradient", [value], present, path)
        # The new value has the dimensions of the old one.
        self.nodes.append(Node("Assign", [present, value], [], {}, path))
        self._present[id(variable)] = value

    def add(self, kind: str, inputs: list[Value], like: Value, path: str) -> Value:
        """Adds a node whose output has the shape and type of another value."""
        output = Value(like.shape, like.dtype, path)
        self.nodes.append(Node(kind, inputs, [output], {}, path, definition_of(kind)))
        return output

    def updates(self) -> dict[int, Value]:
        """Returns the present values that differ from those on entry."""
        return {
            key: value
            for key, value in self._present.items()
            if value is not self.on_entry[key]
        }

    def separate(self, value: Value) -> Value:
        """Returns a value that is no other operation's: gradients that do not flow beyond it
        flow beyond the others, such as another read of the same variable.
        """
        if value.constant is not None:
            return value
        one = np.ones((), value.dtype.as_numpy_dtype)
        factor = Value((), value.dtype, value.path, one, "constant")
        return self.add("Mul", [value, factor], value, value.path)


def path_of(variable: Any) -> str:
    """Returns a Keras variable's path, or another variable's name."""
    return getattr(variable, "path", None) or variable.name.split(":")[0]


def shape_of(tensor: tf.Tensor) -> tuple[int, ...] | None:
    """Returns a tensor's sizes, None for unknown ones; None if its rank is unknown."""
    return None if tensor.shape.rank is None else tuple(tensor.shape.as_list())


def entry_of(body: Body, variable: Any) -> Value:
    """Returns the input of a body that is a variable's value."""
    return next(
        v
        for v in reversed(body.inputs)
        if v.variable is variable and v.dtype != tf.resource
    )


def _read(state: State, node: Node) -> list[Value]:
    return [state.read(node.inputs[0].variable)]


def _gather(state: State, node: Node) -> list[Value]:
    """A read of some rows."""
    resource, ids = node.inputs
    table = state.read(resource.variable)
    dims = node.attributes["batch_dims"]
    axis = Value((), tf.int32, node.path, constant=np.int32(dims))
    rows = Value((*ids.shape, *table.shape[dims + 1 :]), table.dtype)
    output = state.add("GatherV2", [table, ids, axis], rows, node.path)
    state.nodes[-1].attributes["batch_dims"] = dims
    return [output]


def _assign(state: State, node: Node) -> list[Value]:
    variable, value = node.inputs[0].variable, node.inputs[1]
    if node.kind in _SUMS:
        present = state.read(variable)
        value = state.add(_SUMS[node.kind], [present, value], present, node.path)
    state.assign(variable, value, node.path)
    return []


def _scatter(state: State, node: Node) -> list[Value]:
    """An addition to some rows: entries with the same id are added up."""
    resource, ids, entries = node.inputs
    present = state.read(resource.variable)
    count = Value((), tf.int32, node.path, constant=np.int32(present.shape[0]))
    operands = [entries, ids, count]
    sums = state.add("UnsortedSegmentSum", operands, present, node.path)
    value = state.add(_SUMS[node.kind], [present, sums], present, node.path)
    state.assign(resource.variable, value, node.path)
    return []


# What assignments add or subtract by.
_SUMS = {
    "AssignAddVariableOp": "AddV2",
    "AssignSubVariableOp": "Sub",
    "ResourceScatterAdd": "AddV2",
    "ResourceScatterSub": "Sub",
}
# Return the outputs of an operation on a variable.
VARIABLE_OPS: dict[str, Callable[[State, Node], list[Value]]] = {
    "ReadVariableOp": _read,
    "ResourceGather": _gather,
    "AssignVariableOp": _assign,
    "AssignAddVariableOp": _assign,
    "AssignSubVariableOp": _assign,
    "ResourceScatterAdd": _scatter,
    "ResourceScatterSub": _scatter,
}
