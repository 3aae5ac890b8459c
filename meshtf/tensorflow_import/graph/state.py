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
    """Present values of variables, of a function or of the body of a loop or branch.

    Attributes:
        coming_gradients: How many gradients are still to be computed.
        on_entry: By the variable's identity, its value on entry.
    """

    def __init__(self) -> None:
        self.coming_gradients = 0
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

    def assign(self, variable: Any, value: Value) -> None:
        """Replaces its present value."""
        self.entry_of(variable)
        self._present[id(variable)] = value

    def updates(self) -> dict[int, Value]:
        """Returns the present values that differ from those on entry."""
        return {
            key: value
            for key, value in self._present.items()
            if value is not self.on_entry[key]
        }


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


# What an operation on a variable gets: present values, nodes so far, itself, its inputs and path.
_VariableOp = Callable[[State, list[Node], tf.Operation, list[Value], str], list[Value]]


def _read(
    state: State, nodes: list[Node], operation: Any, inputs: list[Value], path: str
) -> list[Value]:
    return [state.read(inputs[0].variable)]


def _gather(
    state: State, nodes: list[Node], operation: Any, inputs: list[Value], path: str
) -> list[Value]:
    """A read of some rows."""
    dims = operation.get_attr("batch_dims")
    axis = Value((), tf.int32, path, constant=np.int32(dims))
    table = state.read(inputs[0].variable)
    output = Value(
        (*inputs[1].shape, *table.shape[dims + 1 :]), operation.outputs[0].dtype, path
    )
    attributes = {"batch_dims": dims}
    definition = definition_of("GatherV2")
    operands = [table, inputs[1], axis]
    nodes.append(Node("GatherV2", operands, [output], attributes, path, definition))
    return [output]


def _assign_operation(
    state: State, nodes: list[Node], operation: Any, inputs: list[Value], path: str
) -> list[Value]:
    variable, value = inputs[0].variable, inputs[1]
    present = state.read(variable)
    kind = {"AssignAddVariableOp": "AddV2", "AssignSubVariableOp": "Sub"}.get(
        operation.type
    )
    if kind is not None:
        value = _add(nodes, kind, [present, value], present, path)
    assign(state, nodes, variable, value, path)
    return []


def _scatter(
    state: State, nodes: list[Node], operation: Any, inputs: list[Value], path: str
) -> list[Value]:
    """An addition to some rows: entries with the same id are added up."""
    variable, ids, entries = inputs[0].variable, *inputs[1:]
    present = state.read(variable)
    count = Value((), tf.int32, path, constant=np.int32(present.shape[0]))
    operands = [entries, ids, count]
    sums = _add(nodes, "UnsortedSegmentSum", operands, present, path)
    kind = "AddV2" if operation.type == "ResourceScatterAdd" else "Sub"
    value = _add(nodes, kind, [present, sums], present, path)
    assign(state, nodes, variable, value, path)
    return []


def _add(
    nodes: list[Node], kind: str, inputs: list[Value], like: Value, path: str
) -> Value:
    """Adds a node whose output has the shape and type of another value."""
    output = Value(like.shape, like.dtype, path)
    nodes.append(Node(kind, inputs, [output], {}, path, definition_of(kind)))
    return output


def assign(
    state: State, nodes: list[Node], variable: Any, value: Value, path: str
) -> None:
    """Assigns to a variable. In TensorFlow no gradient flows through an assignment."""
    present = state.read(variable)
    if state.coming_gradients:
        value = _add(nodes, "StopGradient", [value], present, path)
    # The new value has the dimensions of the old one.
    nodes.append(Node("Assign", [present, value], [], {}, path))
    state.assign(variable, value)


VARIABLE_OPS: dict[str, _VariableOp] = {
    "ReadVariableOp": _read,
    "ResourceGather": _gather,
    "AssignVariableOp": _assign_operation,
    "AssignAddVariableOp": _assign_operation,
    "AssignSubVariableOp": _assign_operation,
    "ResourceScatterAdd": _scatter,
    "ResourceScatterSub": _scatter,
}
