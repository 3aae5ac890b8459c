"""Reads a concrete function: calls are inlined, shapes and constants folded, assignments gone.

Algorithm: the operations are walked in their order of creation, which is the order of the
function's own statements. A loop or branch that reads or assigns variables gets their present
values as more inputs, and returns their new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import ArgumentError
from meshtf.tensorflow_import.graph.constants import fold
from meshtf.tensorflow_import.graph.custom_gradients import has_rule, read_rule
from meshtf.tensorflow_import.graph.functions import CALLS, Library
from meshtf.tensorflow_import.graph.infer import infer_shapes, is_known
from meshtf.tensorflow_import.graph.program import Body, Node, Program, Value
from meshtf.tensorflow_import.graph.prune import prune
from meshtf.tensorflow_import.graph.raw_ops import attributes_of, definition_of
from meshtf.tensorflow_import.graph.state import State

_LOOPS = ("While", "StatelessWhile")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
# Pass a value on. (Checks of numbers are done by `mtf.debugging.check_numerics`.)
_SAME = ("Identity", "IdentityN", "CheckNumerics", "EnsureShape", "Snapshot")
# A graph, its arguments and its results.
_Graph = tuple[tf.Graph, list[tf.Tensor], list[tf.Tensor]]
_NOTHING = ("NoOp", "Assert", "Print", "PrintV2", "VarIsInitializedOp")


def read_function(
    function: Any,
    variables: Sequence[Any],
    *,
    loss: tf.Tensor | None = None,
    gradients: Sequence[tuple[tf.Tensor, Any]] = (),
) -> Program:
    """Returns the program of a concrete function.

    Args:
        function: A `tf.types.experimental.ConcreteFunction` whose arguments have known shapes.
        variables: TensorFlow or Keras variables that it may use.
        loss: The tensor of the function's graph that is the loss.
        gradients: Tensors of the graph that stand for the loss' gradients, and the variable
            of each. What computes them in the graph is left out.

    Raises:
        ArgumentError: It does what no named program can (strings, files, tables); all such
            places are listed.
    """
    reader = _Reader(function, variables)
    arguments = reader.arguments(function)
    marks = {t.ref(): variable for t, variable in gradients}
    outputs = reader.walk(
        function.graph, function.inputs, arguments, function.outputs, marks
    )
    reader.refuse()
    marked_gradients = [
        (reader.marked[t.ref()], v) for t, v in gradients if t.ref() in reader.marked
    ]
    program = Program(
        inputs=[v for v in arguments if v.kind == "input"],
        outputs=outputs,
        nodes=reader.nodes,
        on_entry=reader.state.on_entry,
        updates=reader.state.updates(),
        loss=None if loss is None else reader.values[loss.ref()],
        gradients=marked_gradients,
    )
    for _, variable in marked_gradients:
        reader.state.entry_of(variable)
    prune(program)
    return program


class _Reader:
    """The walk through the operations.

    `values` are those of the tensors of the function's own graph, `marked` those that stand
    for gradients.
    """

    def __init__(self, function: Any, variables: Sequence[Any]) -> None:
        self.library = Library(function.graph)
        self.state = State()
        self.nodes: list[Node] = []
        self.values: dict[Any, Value] = {}
        self.marked: dict[Any, Value] = {}
        self.refused: list[str] = []
        self._variables = {id(_handle(v)): v for v in variables}

    def arguments(self, function: Any) -> list[Value]:
        """Returns values of a function's arguments, then of what it captures."""
        captured = list(function.captured_inputs)
        first = len(function.inputs) - len(captured)
        values = [
            Value(_shape(t), t.dtype, t.op.name, kind="input")
            for t in function.inputs[:first]
        ]
        for tensor, outer in zip(function.inputs[first:], captured):
            value = Value(_shape(tensor), tensor.dtype, tensor.op.name)
            if tensor.dtype == tf.resource:
                value.variable = self._variables.get(id(outer))
                if value.variable is not None:
                    value.shape = tuple(value.variable.shape)
            else:
                value.kind = "constant"
                value.constant = outer.numpy()
            values.append(value)
        return values

    def walk(
        self,
        graph: tf.Graph,
        parameters: Sequence[tf.Tensor],
        arguments: Sequence[Value],
        results: Sequence[tf.Tensor],
        marks: Mapping[Any, Any],
        prefix: str = "",
    ) -> list[Value]:
        """Reads a graph's operations, and returns the values of its results."""
        values = {p.ref(): v for p, v in zip(parameters, arguments)}
        if not prefix:
            self.values = values
        for operation in graph.get_operations():
            outputs = [t.ref() for t in operation.outputs]
            if operation.type == "Placeholder" and all(t in values for t in outputs):
                continue
            if any(t in marks for t in outputs):
                variable = marks[outputs[0]]
                produced = [
                    Value(
                        tuple(variable.shape),
                        tf.as_dtype(variable.dtype),
                        operation.name,
                        kind="gradient",
                        variable=variable,
                    )
                ]
                self.marked[outputs[0]] = produced[0]
            elif has_rule(operation):
                path = prefix + operation.name
                produced, node = read_rule(self._read_into, operation, values, path)
                self.nodes.append(node)
            else:
                inputs = [values[t.ref()] for t in operation.inputs]
                produced = self._read(operation, inputs, prefix + operation.name)
            values.update(zip(outputs, produced))
        return [values[t.ref()] for t in results]

    def _read(
        self, operation: tf.Operation, inputs: list[Value], path: str
    ) -> list[Value]:
        kind = operation.type
        if kind in CALLS:
            return self._call(operation.get_attr("f").name, inputs, path)
        if kind in _SAME:
            return inputs[: len(operation.outputs)]
        if kind in _NOTHING:
            return [Value(_shape(t), t.dtype, path) for t in operation.outputs]
        special = _STATEFUL.get(kind)
        if special is not None:
            return special(self, operation, inputs, path)
        outputs = [Value(_shape(t), t.dtype, path) for t in operation.outputs]
        node = Node(
            kind,
            inputs,
            outputs,
            attributes_of(operation),
            path,
            operation.op_def,
            dict(operation.node_def.attr),
        )
        if kind in _LOOPS or kind in _BRANCHES:
            return self._with_bodies(node)
        if self._is_refused(node):
            return outputs
        infer_shapes(node)
        if fold(node):
            return outputs
        if kind == "StopGradient":
            outputs[0].constant = inputs[0].constant
        self.nodes.append(node)
        return outputs

    def _read_into(
        self, nodes: list[Node], operation: tf.Operation, inputs: list[Value], path: str
    ) -> list[Value]:
        """Reads an operation into a list of nodes of its own."""
        outer_nodes, self.nodes = self.nodes, nodes
        produced = self._read(operation, inputs, path)
        self.nodes = outer_nodes
        return produced

    def _call(self, function: str, inputs: list[Value], path: str) -> list[Value]:
        graph, parameters, results = self._graph_of(function, inputs)
        return self.walk(graph, parameters, inputs, results, {}, path + "/")

    def _graph_of(self, function: str, arguments: Sequence[Value]) -> _Graph:
        return self.library.graph_of(function, [_tensor_shape(v) for v in arguments])

    def _with_bodies(self, node: Node) -> list[Value]:
        """Reads the bodies of a loop or branch. The variables that they use become its last
        inputs, with their present values, and its last outputs.
        """
        loops = node.kind in _LOOPS
        functions = _body_functions(node.attributes, loops)
        arguments = node.inputs if loops else node.inputs[1:]
        chosen = None if loops else _chosen_branch(node, len(functions))
        if chosen is not None:
            return self._call(functions[chosen][1], arguments, node.path)
        resources = [v.variable for v in node.inputs if v.dtype == tf.resource]
        variables = list({id(v): v for v in resources if v is not None}.values())
        graphs = {name: self._graph_of(f, arguments) for name, f in functions}
        if loops:
            fixed = _unchanged(graphs["body"])
        else:
            fixed = [True] * len(arguments)
        for name, graph in graphs.items():
            node.bodies[name] = self._body(
                graph, arguments, fixed, variables, f"{node.path}/{name}"
            )
        node.inputs.extend([self.state.read(v) for v in variables])
        bodies = [b for name, b in node.bodies.items() if name != "cond"]
        count = len(node.outputs)
        for value, result in zip(node.outputs, bodies[0].outputs):
            value.shape = value.shape if is_known(value) else result.shape
            value.items = result.items
        for k, variable in enumerate(variables):
            entry = self.state.entry_of(variable)
            node.outputs.append(Value(entry.shape, entry.dtype, node.path))
            if any(b.outputs[count + k] is not _entry_of(b, variable) for b in bodies):
                self.state.assign(variable, node.outputs[-1])
        self.nodes.append(node)
        return node.outputs[:count]

    def _body(
        self,
        graph: _Graph,
        arguments: Sequence[Value],
        fixed: Sequence[bool],
        variables: list[Any],
        path: str,
    ) -> Body:
        """Reads a body. `fixed`: for each argument, whether every run of the body gets it."""
        inputs = [
            Value(
                v.shape,
                v.dtype,
                path,
                v.constant if is_fixed else None,
                "carried",
                v.variable,
                v.items,
            )
            for v, is_fixed in zip(arguments, fixed)
        ]
        outer, outer_nodes = self.state, self.nodes
        self.state = State()
        self.nodes = []
        entries = [self.state.entry_of(v) for v in variables]
        outputs = self.walk(graph[0], graph[1], inputs, graph[2], {}, path + "/")
        outputs += [self.state.read(v) for v in variables]
        body = Body([*inputs, *entries], outputs, self.nodes)
        for value in entries:
            value.kind = "carried"
        self.state = outer
        self.nodes = outer_nodes
        return body

    def _read_variable(self, operation, inputs, path) -> list[Value]:
        variable = inputs[0].variable
        if variable is None:
            return self._unknown_resource(operation, path)
        return [self.state.read(variable)]

    def _gather_variable(self, operation, inputs, path) -> list[Value]:
        """A read of some rows."""
        variable = inputs[0].variable
        if variable is None:
            return self._unknown_resource(operation, path)
        dims = operation.get_attr("batch_dims")
        axis = Value((), tf.int32, path, constant=np.int32(dims))
        output = Value(_shape(operation.outputs[0]), operation.outputs[0].dtype, path)
        table = self.state.read(variable)
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
            return self._unknown_resource(operation, path)
        present = self.state.read(variable)
        kind = {"AssignAddVariableOp": "AddV2", "AssignSubVariableOp": "Sub"}.get(
            operation.type
        )
        if kind is not None:
            result = Value(present.shape, present.dtype, path)
            self.nodes.append(
                Node(kind, [present, value], [result], {}, path, definition_of(kind))
            )
            value = result
        # The new value has the dimensions of the old one.
        self.nodes.append(Node("Assign", [present, value], [], {}, path))
        self.state.assign(variable, value)
        return []

    def _unknown_resource(self, operation: tf.Operation, path: str) -> list[Value]:
        self.refused.append(
            f"{operation.type} at {path}: reads or writes a resource that is none of the "
            "function's variables (pass them as `variables`)"
        )
        return [Value(_shape(t), t.dtype, path) for t in operation.outputs]

    def _is_refused(self, node: Node) -> bool:
        """Notes what no program of tensors can do."""
        why = None
        if any(v.dtype == tf.string for v in [*node.inputs, *node.outputs]):
            why = "strings have no place on a mesh; compute them in the dataset"
        elif any(v.dtype == tf.resource for v in [*node.inputs, *node.outputs]):
            why = "tables and other resources have no place on a mesh; use them in the dataset"
        elif node.definition.is_stateful and not node.kind.startswith("Random"):
            why = "it has a state that is no variable; compute it in the dataset"
        if why is not None:
            self.refused.append(f"{node.kind} at {node.path}: {why}")
        return why is not None

    def refuse(self) -> None:
        """Raises an error that lists all that cannot be read."""
        if self.refused:
            raise ArgumentError(
                "This TensorFlow function cannot run on a mesh as a whole:\n  "
                + "\n  ".join(self.refused)
            )


_STATEFUL: dict[str, Callable] = {
    "ReadVariableOp": _Reader._read_variable,
    "ResourceGather": _Reader._gather_variable,
    "AssignVariableOp": _Reader._assign,
    "AssignAddVariableOp": _Reader._assign,
    "AssignSubVariableOp": _Reader._assign,
}


def _body_functions(
    attributes: Mapping[str, Any], loops: bool
) -> list[tuple[str, str]]:
    """Returns names of a node's bodies, and of their functions."""
    if "branches" in attributes:
        return [(f"branch_{k}", f.name) for k, f in enumerate(attributes["branches"])]
    names = ("cond", "body") if loops else ("then_branch", "else_branch")
    return [(name, attributes[name].name) for name in names]


def _chosen_branch(node: Node, count: int) -> int | None:
    """Returns which of a node's branches runs, if that is known."""
    predicate = node.inputs[0].constant
    if predicate is None:
        return None
    if node.kind.endswith("If"):
        return 0 if predicate else 1
    index = int(predicate)
    return index if 0 <= index < count else count - 1


def _unchanged(body: _Graph) -> list[bool]:
    """Returns for each argument of a loop's body whether it is returned as it is."""
    _, parameters, results = body

    def source(tensor: tf.Tensor) -> tf.Tensor:
        while tensor.op.type == "Identity":
            tensor = tensor.op.inputs[0]
        return tensor

    return [
        source(result) is parameter for parameter, result in zip(parameters, results)
    ]


def _entry_of(body: Body, variable: Any) -> Value:
    """Returns the input of a body that is a variable's value."""
    return next(
        v
        for v in reversed(body.inputs)
        if v.variable is variable and v.dtype != tf.resource
    )


def _handle(variable: Any) -> Any:
    """Returns the resource of a TensorFlow or Keras variable."""
    if not isinstance(variable, tf.Variable):
        variable = variable.value
    return getattr(variable, "handle", None)


def _shape(tensor: tf.Tensor) -> tuple[int, ...] | None:
    return None if tensor.shape.rank is None else tuple(tensor.shape.as_list())


def _tensor_shape(value: Value) -> tf.TensorShape:
    if value.dtype == tf.resource:
        return tf.TensorShape([])
    return tf.TensorShape(value.shape)
