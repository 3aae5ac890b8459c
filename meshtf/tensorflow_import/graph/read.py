"""Reads a concrete function: calls are inlined, shapes and constants folded, assignments gone.

Algorithm: the operations are walked in their order of creation, which is the order of the
function's own statements. A loop or branch that reads or assigns variables gets their present
values as more inputs, and returns their new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from meshtf.tensorflow_import.graph.constants import fold
from meshtf.tensorflow_import.graph.custom_gradients import has_rule, rule_of
from meshtf.tensorflow_import.graph.functions import CALLS, Library
from meshtf.tensorflow_import.graph.infer import infer_shapes, is_known
from meshtf.tensorflow_import.graph.program import Body, Mark, Node, Program, Value
from meshtf.tensorflow_import.graph.prune import prune
from meshtf.tensorflow_import.graph.raw_ops import attributes_of
from meshtf.tensorflow_import.graph.resources import (
    RESOURCE_OPERATIONS,
    ResourceReader,
    shape_of,
)
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
    marks: Sequence[Mark] = (),
) -> Program:
    """Returns the program of a concrete function.

    Args:
        function: A `tf.types.experimental.ConcreteFunction` whose arguments have known shapes.
        variables: TensorFlow or Keras variables that it may use.
        marks: Tensors of the function's graph that stand for gradients.

    Raises:
        ArgumentError: It does what no named program can (strings, files, tables); all such
            places are listed.
    """
    reader = _Reader(function, variables, len(marks))
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


class _Reader(ResourceReader):
    """The walk through the operations."""

    def __init__(self, function: Any, variables: Sequence[Any], marks: int) -> None:
        super().__init__(marks)
        self.library = Library(function.graph)
        self._variables = {id(_handle(v)): v for v in variables}

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
        for operation in graph.get_operations():
            outputs = [t.ref() for t in operation.outputs]
            if operation.type == "Placeholder" and all(t in values for t in outputs):
                continue
            if outputs and outputs[0] in marks:
                if outputs[0] not in values:
                    self._gradients(marks[outputs[0]], values)
                continue
            path = prefix + operation.name
            if has_rule(operation):
                produced = self._with_rule(operation, values, path)
            else:
                inputs = [values[t.ref()] for t in operation.inputs]
                produced = self._read(operation, inputs, path)
            values.update(zip(outputs, produced))
        return [values[t.ref()] for t in results]

    def _gradients(self, mark: Mark, values: dict[Any, Value]) -> None:
        """Adds the node that computes the gradients of a mark."""
        self.coming_gradients -= 1
        inputs = [values[mark.loss.ref()]]
        for source in mark.sources:
            if isinstance(source, tf.Tensor):
                inputs.append(values[source.ref()])
            else:
                inputs.append(self.state.read(self._variables[id(_handle(source))]))
        path = mark.gradients[0].op.name
        outputs = [Value(v.shape, v.dtype, path) for v in inputs[1:]]
        self.nodes.append(Node("Gradients", inputs, outputs, {}, path))
        values.update(zip((t.ref() for t in mark.gradients), outputs))

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
        special = RESOURCE_OPERATIONS.get(kind)
        if special is not None:
            return special(self, operation, inputs, path)
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

    def _with_rule(
        self, operation: tf.Operation, values: dict[Any, Value], path: str
    ) -> list[Value]:
        """Reads an IdentityN whose gradient is the user's rule. What the rule uses of the
        function follows the operands.
        """
        inputs = [values[t.ref()] for t in operation.inputs]
        rule = rule_of(operation)
        if rule is None:
            self.refusals.concerns_rule(path)
            return inputs
        cotangents = [
            Value(shape_of(t), t.dtype, path, kind="carried")
            for t in rule.cotangents.values()
        ]
        inner = dict(values)
        inner |= {t.ref(): v for t, v in zip(rule.cotangents.values(), cotangents)}
        outer_nodes, self.nodes = self.nodes, []
        for each in rule.operations:
            operands = [inner[t.ref()] for t in each.inputs]
            produced = self._read(each, operands, f"{path}/{each.name}")
            inner.update(zip([t.ref() for t in each.outputs], produced))
        nodes, self.nodes = self.nodes, outer_nodes
        results = [inner[t.ref()] for t in rule.results.values()]
        within = {id(v) for n in nodes for v in n.outputs}
        within |= {id(v) for v in cotangents}
        used = [*results, *(v for n in nodes for v in n.inputs)]
        captured = {id(v): v for v in used if id(v) not in within}
        outputs = [Value(shape_of(t), t.dtype, path) for t in operation.outputs]
        node = Node(
            "CustomGradient",
            [*inputs, *captured.values()],
            outputs,
            {"cotangents": list(rule.cotangents), "results": list(rule.results)},
            path,
        )
        node.bodies["rule"] = Body(cotangents, results, nodes)
        self.nodes.append(node)
        return outputs

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
        node.inputs.extend([self.present(v) for v in variables])
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
    is_plain = isinstance(variable, tf.Variable)
    return getattr(variable if is_plain else variable.value, "handle", None)


def _tensor_shape(value: Value) -> tf.TensorShape:
    if value.dtype == tf.resource:
        return tf.TensorShape([])
    return tf.TensorShape(value.shape)
