"""Operations on resources: reads and assignments of variables become values.

A variable has a present value: reads return it, assignments replace it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.tensorflow_import.graph.program import Node, Value
from meshtf.tensorflow_import.graph.raw_ops import definition_of
from meshtf.tensorflow_import.graph.refusals import Refusals
from meshtf.tensorflow_import.graph.state import State


class ResourceReader:
    """Reads operations on variables, and those that fill tensors in place.

    Attributes:
        state: Present values of variables.
        nodes: The nodes so far.
        refusals: Operations that no mesh can run.
        coming_gradients: How many gradients will be computed further on.
    """

    def __init__(self, marks: int) -> None:
        self.state = State()
        self.nodes: list[Node] = []
        self.refusals = Refusals()
        self.coming_gradients = marks
        self._barriers: set[int] = set()

    def _read_variable(self, operation, inputs, path) -> list[Value]:
        variable = inputs[0].variable
        if variable is None:
            return self.unknown_resource(operation, path)
        return [self.present(variable)]

    def present(self, variable: Any) -> Value:
        """Returns the present value of a variable. In TensorFlow no gradient flows through an
        assignment.
        """
        value = self.state.read(variable)
        is_assigned = value is not self.state.entry_of(variable)
        if self.coming_gradients and is_assigned and id(value) not in self._barriers:
            value = self._add("StopGradient", [value], value, value.path)
            self._barriers.add(id(value))
            self.state.assign(variable, value)
        return value

    def _gather_variable(self, operation, inputs, path) -> list[Value]:
        """A read of some rows."""
        variable = inputs[0].variable
        if variable is None:
            return self.unknown_resource(operation, path)
        dims = operation.get_attr("batch_dims")
        axis = Value((), tf.int32, path, constant=np.int32(dims))
        output = Value(shape_of(operation.outputs[0]), operation.outputs[0].dtype, path)
        table = self.present(variable)
        output.shape = (*inputs[1].shape, *table.shape[dims + 1 :])
        self.nodes.append(
            Node(
                "GatherV2",
                [table, inputs[1], axis],
                [output],
                {"batch_dims": dims},
                path,
                definition_of("GatherV2"),
            )
        )
        return [output]

    def _assign(self, operation, inputs, path) -> list[Value]:
        variable, value = inputs[0].variable, inputs[1]
        if variable is None:
            return self.unknown_resource(operation, path)
        present = self.state.read(variable)
        kind = {"AssignAddVariableOp": "AddV2", "AssignSubVariableOp": "Sub"}.get(
            operation.type
        )
        if kind is not None:
            value = self._add(kind, [present, value], present, path)
        self._set(variable, value, path)
        return []

    def _scatter(self, operation, inputs, path) -> list[Value]:
        """An addition to some rows: entries with the same id are added up."""
        variable, ids, entries = inputs[0].variable, *inputs[1:]
        if variable is None:
            return self.unknown_resource(operation, path)
        present = self.state.read(variable)
        count = Value((), tf.int32, path, constant=np.int32(present.shape[0]))
        sums = self._add("UnsortedSegmentSum", [entries, ids, count], present, path)
        kind = "AddV2" if operation.type == "ResourceScatterAdd" else "Sub"
        self._set(variable, self._add(kind, [present, sums], present, path), path)
        return []

    def _add(self, kind: str, inputs: list[Value], like: Value, path: str) -> Value:
        """Adds a node whose output has the shape and type of another value."""
        output = Value(like.shape, like.dtype, path)
        self.nodes.append(Node(kind, inputs, [output], {}, path, definition_of(kind)))
        return output

    def _set(self, variable: Any, value: Value, path: str) -> None:
        """Assigns to a variable."""
        present = self.state.read(variable)
        # The new value has the dimensions of the old one.
        self.nodes.append(Node("Assign", [present, value], [], {}, path))
        self.state.assign(variable, value)

    def _empty(self, operation, inputs, path) -> list[Value]:
        """A tensor of any numbers, which is filled later: one of zeros."""
        output = operation.outputs[0]
        zero = Value(
            (), output.dtype, path, constant=np.zeros((), output.dtype.as_numpy_dtype)
        )
        shape = tuple(int(size) for size in inputs[0].constant)
        return [self._add("Fill", [inputs[0], zero], Value(shape, output.dtype), path)]

    def _update_in_place(self, operation, inputs, path) -> list[Value]:
        """Sets entries along the first axis: a new tensor."""
        x, ids, entries = inputs
        index = Value((*ids.shape, 1), ids.dtype, path)
        last = Value((), tf.int32, path, constant=np.int32(-1))
        ids = self._add("ExpandDims", [ids, last], index, path)
        return [self._add("TensorScatterUpdate", [x, ids, entries], x, path)]

    def unknown_resource(self, operation: tf.Operation, path: str) -> list[Value]:
        self.refusals.concerns_resource(operation.type, path)
        return [Value(shape_of(t), t.dtype, path) for t in operation.outputs]


RESOURCE_OPERATIONS: dict[str, Callable] = {
    "ReadVariableOp": ResourceReader._read_variable,
    "ResourceGather": ResourceReader._gather_variable,
    "AssignVariableOp": ResourceReader._assign,
    "Empty": ResourceReader._empty,
    "InplaceUpdate": ResourceReader._update_in_place,
    "AssignAddVariableOp": ResourceReader._assign,
    "AssignSubVariableOp": ResourceReader._assign,
    "ResourceScatterAdd": ResourceReader._scatter,
    "ResourceScatterSub": ResourceReader._scatter,
}


def shape_of(tensor: tf.Tensor) -> tuple[int, ...] | None:
    """Returns a tensor's sizes, None for those that are not known."""
    return None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
