"""Reads a concrete function: calls are inlined, shapes and constants folded, assignments gone.

Algorithm: the operations are walked in their order of creation, which is the order of the
function's own statements. A loop or branch that reads or assigns variables gets their present
values as more inputs, and returns their new ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.tensorflow_import.graph.constants import fold, zeros_for_empty
from meshtf.tensorflow_import.graph.custom_gradients import has_rule, read_rule
from meshtf.tensorflow_import.graph.functions import (
    CALLS,
    FunctionGraph,
    Library,
    body_functions,
    taken_branch,
    unchanged_arguments,
)
from meshtf.tensorflow_import.graph.infer import infer_shapes, is_known
from meshtf.tensorflow_import.graph.program import (
    Body,
    Mark,
    Node,
    Program,
    Repeat,
    Value,
)
from meshtf.tensorflow_import.graph.prune import prune
from meshtf.tensorflow_import.graph.raw_ops import attributes_of, definition_of
from meshtf.tensorflow_import.graph.refusals import Refusals
from meshtf.tensorflow_import.graph.state import (
    VARIABLE_OPS,
    State,
    assign,
    entry_of,
    shape_of,
)

_LOOPS = ("While", "StatelessWhile")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
# Pass a value on. (Checks of numbers are done by `mtf.debugging.check_numerics`.)
_SAME = ("Identity", "IdentityN", "CheckNumerics", "EnsureShape", "Snapshot")
_NOTHING = ("NoOp", "Assert", "Print", "PrintV2", "VarIsInitializedOp")


def read_function(
    function: Any,
    variables: Sequence[Any],
    marks: Sequence[Mark] = (),
    repeats: Mapping[Any, Repeat] | None = None,
) -> Program:
    """Returns the program of a concrete function.

    Args:
        function: A `tf.types.experimental.ConcreteFunction` whose arguments have known shapes.
        variables: TensorFlow or Keras variables that it may use.
        marks: Tensors of the function's graph that stand for gradients.
        repeats: By reference of a tensor that is a gradient, what is repeated with it.

    Raises:
        ArgumentError: It does what no named program can (strings, files, tables); all such
            places are listed.
    """
    reader = _Reader(function, variables, repeats or {})
    reader.has_marks = bool(marks)
    reader.constants = {t.ref() for mark in marks for t in mark.constants}
    reader.state.coming_gradients = len(marks)
    arguments = reader.arguments(function)
    outputs = reader.walk(
        function.graph,
        function.inputs,
        arguments,
        function.outputs,
        {tensor.ref(): mark for mark in marks for tensor in mark.gradients},
    )
    program = Program(
        inputs=[v for v in arguments if v.kind == "input"],
        outputs=outputs,
        nodes=reader.nodes,
        on_entry=reader.state.on_entry,
        updates=reader.state.updates(),
    )
    prune(program)
    reader.refusals.check(program)
    return program


class _Reader:
    """The walk through the operations."""

    def __init__(
        self, function: Any, variables: Sequence[Any], repeats: Mapping[Any, Repeat]
    ) -> None:
        self.library = Library(function.graph)
        self.repeats = repeats
        self.has_marks = False
        self.constants: set[Any] = set()
        self.state = State()
        self.nodes: list[Node] = []
        self.refusals = Refusals()
        self._variables = {id(handle_of(v)): v for v in variables}

    def arguments(self, function: Any) -> list[Value]:
        """Returns values of a function's arguments, then of what it captures."""
        captured = list(function.captured_inputs)
        first = len(function.inputs) - len(captured)
        values = [
            Value(shape_of(t), t.dtype, t.op.name, kind="input")
            for t in function.inputs[:first]
        ]
        for tensor, outer in zip(function.inputs[first:], captured):
            value = Value(shape_of(tensor), tensor.dtype, tensor.op.name)
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
        marks: Mapping[Any, Mark],
        prefix: str = "",
    ) -> list[Value]:
        """Reads a graph's operations, and returns the values of its results."""
        values = {p.ref(): v for p, v in zip(parameters, arguments)}
        operations = graph.get_operations()
        for operation in operations:
            outputs = [t.ref() for t in operation.outputs]
            if operation.type == "Placeholder" and all(t in values for t in outputs):
                continue
            if outputs and outputs[0] in marks:
                if outputs[0] not in values:
                    self._gradients(marks[outputs[0]], values)
                continue
            if has_rule(operation) and self._is_differentiated():
                path = prefix + operation.name
                produced, node = read_rule(self._read_into, operation, values, path)
                self.nodes.append(node)
            else:
                inputs = [self._operand(values, t, prefix) for t in operation.inputs]
                produced = self._read(operation, inputs, prefix + operation.name)
            values.update(zip(outputs, produced))
            for output in self.constants.intersection(outputs):
                values[output] = self._separate(values[output])
            if not prefix and outputs and outputs[0] in self.repeats:
                self._repeat(operations, self.repeats[outputs[0]], values, produced[0])
        return [values[t.ref()] for t in results]

    def _operand(
        self, values: Mapping[Any, Value], tensor: tf.Tensor, prefix: str
    ) -> Value:
        """Returns the value of an operand. TensorFlow's gradient of a loop makes the loop read
        lists that are created after it: they are refused.
        """
        if tensor.ref() not in values:
            self.refusals.concerns_later(tensor.op.type, prefix + tensor.op.name)
            return Value((), tensor.dtype, tensor.op.name)
        return values[tensor.ref()]

    def _is_differentiated(self) -> bool:
        """Whether a gradient of later operations may be taken: in a step whose gradients are
        marked, until the last one.
        """
        return bool(self.state.coming_gradients) or not self.has_marks

    def _gradients(self, mark: Mark, values: dict[Any, Value]) -> None:
        """Adds the node that computes the gradients of a mark."""
        self.state.coming_gradients -= 1
        inputs = [values[mark.loss.ref()]]
        for source in mark.sources:
            if isinstance(source, tf.Tensor):
                inputs.append(values[source.ref()])
            else:
                inputs.append(self.state.read(self._variables[id(handle_of(source))]))
        path = mark.gradients[0].op.name
        outputs = [Value(v.shape, v.dtype, path) for v in inputs[1:]]
        known = [values[t.ref()] for t in mark.constants]
        inputs += [v for v in known if v.constant is None]
        self.nodes.append(Node("Gradients", inputs, outputs, {}, path))
        values.update(zip((t.ref() for t in mark.gradients), outputs))

    def _separate(self, value: Value) -> Value:
        """Returns a value that is no other operation's: gradients that do not flow beyond it
        flow beyond the others, such as another read of the same variable.
        """
        if value.constant is not None:
            return value
        output = Value(value.shape, value.dtype, value.path)
        one = np.ones((), value.dtype.as_numpy_dtype)
        operands = [value, Value((), value.dtype, value.path, one, "constant")]
        self.nodes.append(
            Node("Mul", operands, [output], {}, value.path, definition_of("Mul"))
        )
        return output

    def _read(
        self, operation: tf.Operation, inputs: list[Value], path: str
    ) -> list[Value]:
        kind = operation.type
        if kind in CALLS:
            return self._call(operation.get_attr("f").name, inputs, path)
        if kind in _SAME:
            return inputs[: len(operation.outputs)]
        if kind in _NOTHING:
            return [Value(shape_of(t), t.dtype, path) for t in operation.outputs]
        if kind in VARIABLE_OPS:
            if inputs[0].variable is None:
                return self._unknown_resource(operation, path)
            return VARIABLE_OPS[kind](self.state, self.nodes, operation, inputs, path)
        outputs = [Value(shape_of(t), t.dtype, path) for t in operation.outputs]
        node = Node(
            kind,
            inputs,
            outputs,
            attributes_of(operation),
            path,
            operation.op_def,
            dict(operation.node_def.attr),
        )
        if kind == "Empty":
            node = zeros_for_empty(node)
        if kind in _BRANCHES and self._divides_rows(node):
            return self._branch(node, "else_branch")
        if kind in _LOOPS or kind in _BRANCHES:
            return self._with_bodies(node)
        if self.refusals.concerns(node):
            self.nodes.append(node)
            return outputs
        infer_shapes(node)
        if fold(node):
            return outputs
        if kind == "StopGradient":
            outputs[0].constant = inputs[0].constant
        self.nodes.append(node)
        return outputs

    def _repeat(
        self,
        operations: Sequence[tf.Operation],
        repeat: Repeat,
        values: Mapping[Any, Value],
        gradient: Value,
    ) -> None:
        """Reads operations again, with another gradient and other variables."""
        again = {repeat.gradient: gradient}
        for operation in operations[repeat.begin : repeat.end]:
            if operation.type == "Placeholder":
                continue
            inputs = []
            for tensor in operation.inputs:
                value = again.get(tensor.ref(), values[tensor.ref()])
                other = repeat.variables.get(id(value.variable))
                if value.dtype == tf.resource and other is not None:
                    value = dataclasses.replace(value, variable=other)
                inputs.append(value)
            produced = self._read(operation, inputs, operation.name)
            again.update(zip([t.ref() for t in operation.outputs], produced))

    def _divides_rows(self, node: Node) -> bool:
        """Whether a branch is that of Keras' division of rows (`tf.IndexedSlices`) by a tensor.

        If the divisor has zeros or NaNs somewhere, other rows become NaN as well: as many as
        there are. On a mesh sizes do not depend on values, so the other branch is taken.
        """
        if (
            all(is_known(v) for v in node.outputs)
            or "then_branch" not in node.attributes
        ):
            return False
        return any(
            n.kind == "Any" and n.outputs[0] is node.inputs[0] for n in self.nodes
        )

    def _branch(self, node: Node, name: str) -> list[Value]:
        """Reads one branch only, in place."""
        arguments = node.inputs[1:]
        graph, parameters, results = self.library.graph_of(
            node.attributes[name].name, [_tensor_shape(v) for v in arguments]
        )
        return self.walk(graph, parameters, arguments, results, {}, f"{node.path}/")

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

    def _graph_of(self, function: str, arguments: Sequence[Value]) -> FunctionGraph:
        return self.library.graph_of(function, [_tensor_shape(v) for v in arguments])

    def _with_bodies(self, node: Node) -> list[Value]:
        """Reads the bodies of a loop or branch. The variables that they use become its last
        inputs, with their present values, and its last outputs.
        """
        loops = node.kind in _LOOPS
        functions = body_functions(node.attributes, loops)
        arguments = node.inputs if loops else node.inputs[1:]
        branch = None if loops else taken_branch(node, len(functions))
        if branch is not None:
            return self._call(functions[branch][1], arguments, node.path)
        resources = [v.variable for v in node.inputs if v.dtype == tf.resource]
        variables = list({id(v): v for v in resources if v is not None}.values())
        graphs = {name: self._graph_of(f, arguments) for name, f in functions}
        if loops:
            fixed = unchanged_arguments(graphs["body"])
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
        self.nodes.append(node)
        for k, variable in enumerate(variables):
            entry = self.state.entry_of(variable)
            output = Value(entry.shape, entry.dtype, node.path)
            node.outputs.append(output)
            if any(b.outputs[count + k] is not entry_of(b, variable) for b in bodies):
                assign(self.state, self.nodes, variable, output, node.path)
        return node.outputs[:count]

    def _body(
        self,
        graph: FunctionGraph,
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
        self.state.coming_gradients = outer.coming_gradients
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

    def _unknown_resource(self, operation: tf.Operation, path: str) -> list[Value]:
        self.refusals.concerns_resource(operation.type, path)
        return [Value(shape_of(t), t.dtype, path) for t in operation.outputs]


def handle_of(variable: Any) -> Any:
    """Returns the resource of a TensorFlow or Keras variable."""
    if not isinstance(variable, tf.Variable):
        variable = variable.value
    return getattr(variable, "handle", None)


def _tensor_shape(value: Value) -> tf.TensorShape:
    if value.dtype == tf.resource:
        return tf.TensorShape([])
    return tf.TensorShape(value.shape)
