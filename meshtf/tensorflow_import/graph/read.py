"""Reads a concrete function: calls are inlined, shapes and constants folded, assignments gone.

Algorithm: the operations are walked in their order of creation, which is the order of the
function's own statements. A loop or branch that reads or assigns variables gets their present
values as more inputs, and returns their new ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import tensorflow as tf

from meshtf.tensorflow_import.graph.constants import fold, zeros_for_empty
from meshtf.tensorflow_import.graph.custom_gradients import has_rule, read_rule
from meshtf.tensorflow_import.graph.effects import (
    EFFECTS,
    Effects,
    computable,
    takes_second_body,
)
from meshtf.tensorflow_import.graph.functions import (
    CALLS,
    FunctionGraph,
    Library,
    body_functions,
    taken_branch,
    unchanged_arguments,
)
from meshtf.tensorflow_import.graph.infer import infer_shapes, is_known
from meshtf.tensorflow_import.graph.patterns.moving_slices import as_moving_slice
from meshtf.tensorflow_import.graph.patterns.recompute_grad import first_recomputed
from meshtf.tensorflow_import.graph.program import (
    Body,
    Mark,
    Node,
    Program,
    Repeat,
    Section,
    Sections,
    Value,
)
from meshtf.tensorflow_import.graph.prune import prune
from meshtf.tensorflow_import.graph.raw_ops import attributes_of
from meshtf.tensorflow_import.graph.refusals import Refusals
from meshtf.tensorflow_import.graph.state import (
    VARIABLE_OPS,
    State,
    entry_of,
    shape_of,
)

# By the reference of a tensor.
_Values = MutableMapping[Any, Value]
_LOOPS = ("While", "StatelessWhile")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
# Pass a value on.
_SAME = ("Identity", "IdentityN", "CheckNumerics", "EnsureShape", "Print", "Snapshot")
_NOTHING = ("NoOp", "Assert", "PrintV2", "VarIsInitializedOp")


def read_function(
    function: Any,
    variables: Sequence[Any],
    marks: Sequence[Mark] = (),
    repeats: Mapping[Any, Repeat] | None = None,
    sections: Sections | None = None,
    keeps_effects: bool = False,
) -> Program:
    """Returns the program of a concrete function.

    Args:
        function: A `tf.types.experimental.ConcreteFunction` whose arguments have known shapes.
        variables: TensorFlow or Keras variables that it may use.
        marks: Tensors of the function's graph that stand for gradients.
        repeats: By reference of a tensor that is a gradient, what is repeated with it.
        sections: Which operations have settings of their own.
        keeps_effects: Whether prints and assertions run; otherwise a warning tells them.

    Raises:
        ArgumentError: It does what no named program can (strings, files, tables); all such
            places are listed.
    """
    reader = _Reader(function.graph, variables, marks, repeats or {}, sections or {})
    reader.effects = Effects(keeps_effects)
    arguments = reader.arguments(function)
    graph = (function.graph, function.inputs, function.outputs)
    outputs = reader.walk(graph, arguments)
    program = Program(
        inputs=[v for v in arguments if v.kind == "input"],
        outputs=outputs,
        nodes=reader.state.nodes,
        on_entry=reader.state.on_entry,
        updates=reader.state.updates(),
    )
    is_refused = reader.refusals.has
    program.nodes[:] = computable(program.nodes, reader.effects, is_refused)
    prune(program)
    reader.refusals.check(program)
    reader.effects.warn()
    return program


class _Reader:
    """The walk through the operations."""

    def __init__(
        self,
        graph: tf.Graph,
        variables: Sequence[Any],
        marks: Sequence[Mark],
        repeats: Mapping[Any, Repeat],
        sections: Sections,
    ) -> None:
        self.library = Library(graph)
        self.marks = {tensor.ref(): mark for mark in marks for tensor in mark.gradients}
        self.sections = sections
        self.repeats = repeats
        self.constants = {tensor.ref() for mark in marks for tensor in mark.constants}
        self.state = State(len(marks))
        self.refusals = Refusals()
        self.effects = Effects(keep=False)
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
        self, function: FunctionGraph, arguments: Sequence[Value], prefix: str = ""
    ) -> list[Value]:
        """Reads a graph's operations, and returns the values of its results."""
        graph, parameters, results = function
        values = {p.ref(): v for p, v in zip(parameters, arguments)}
        sections = self.sections.get(self.library.name_of(graph), {})
        self._read_all(graph.get_operations(), values, prefix, sections)
        return [values[t.ref()] for t in results]

    def _read_all(
        self,
        operations: Sequence[tf.Operation],
        values: _Values,
        prefix: str,
        sections: Mapping[str, Section],
    ) -> None:
        """Reads operations, and adds what they make to the values of their graph's tensors."""
        starts: dict[str, int] = {}  # by operation, the index of its first node
        for operation in operations:
            starts[operation.name] = len(self.state.nodes)
            outputs = [t.ref() for t in operation.outputs]
            if operation.type == "Placeholder" and all(t in values for t in outputs):
                continue
            if outputs and outputs[0] in self.marks:
                if outputs[0] not in values:
                    self._gradients(self.marks[outputs[0]], values)
                continue
            path = prefix + operation.name
            if self._has_own_gradient(operation, starts):
                produced, node = read_rule(self._nodes_of, operation, values, path)
                self.state.nodes.append(node)
            else:
                produced = self._read(operation, values, path)
            self._set_section(starts[operation.name], sections.get(operation.name))
            values.update(zip(outputs, produced))
            for output in self.constants.intersection(outputs):
                values[output] = self.state.separate(values[output])
            if outputs and outputs[0] in self.repeats:
                repeat = self.repeats[outputs[0]]
                repeated = operations[repeat.begin : repeat.end]
                again = self._values_again(repeated, repeat, values, produced[0])
                self._read_all(repeated, again, "", sections)

    def _nodes_of(
        self, operations: Sequence[tf.Operation], values: _Values, prefix: str
    ) -> list[Node]:
        """Reads the operations of a rule into a list of nodes of its own. (Rules within rules
        would have no end.)
        """
        outer, self.state.nodes = self.state.nodes, []
        for operation in operations:
            with self.effects.within_body():
                produced = self._read(operation, values, prefix + operation.name)
            values.update(zip([t.ref() for t in operation.outputs], produced))
        nodes, self.state.nodes = self.state.nodes, outer
        return nodes

    def _operand(self, values: _Values, tensor: tf.Tensor) -> Value:
        """Returns the value of an operand. TensorFlow's gradient of a loop makes the loop read
        lists that are created after it: they are refused.
        """
        if tensor.ref() not in values:
            self.refusals.concerns_later(tensor.op.type, tensor.op.name)
            return Value((), tensor.dtype, tensor.op.name)
        return values[tensor.ref()]

    def _is_differentiated(self) -> bool:
        """Whether a gradient of later operations may be taken: in a step whose gradients are
        marked, until the last one.
        """
        return bool(self.state.coming_gradients) or not self.marks

    def _has_own_gradient(
        self, operation: tf.Operation, starts: Mapping[str, int]
    ) -> bool:
        """Whether an operation's gradient is a rule of the function's own. (That of
        `tf.recompute_grad` is none: what it computes again becomes a section.)
        """
        if not has_rule(operation) or not self._is_differentiated():
            return False
        first = first_recomputed(operation)
        if first is not None:
            self._set_section(starts[first], Section(recomputed=object()))
        return first is None

    def _set_section(self, start: int, section: Section | None) -> None:
        """Says to which section the last nodes belong, those of sections within it as well."""
        if section is not None:
            for node in self.state.nodes[start:]:
                node.enclose(section)

    def _gradients(self, mark: Mark, values: _Values) -> None:
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
        self.state.nodes.append(Node("Gradients", inputs, outputs, {}, path))
        values.update(zip((t.ref() for t in mark.gradients), outputs))

    def _read(self, operation: tf.Operation, values: _Values, path: str) -> list[Value]:
        """Reads an operation, and returns the values of its outputs."""
        kind = operation.type
        inputs = [self._operand(values, t) for t in operation.inputs]
        if kind in CALLS:
            return self._call(operation.get_attr("f").name, inputs, path)
        if kind in EFFECTS:
            effect = Node(kind, inputs, [], attributes_of(operation), path)
            self.state.nodes += self.effects.read(effect)
        if kind in _SAME:
            return inputs[: len(operation.outputs)]
        outputs = [Value(shape_of(t), t.dtype, path) for t in operation.outputs]
        if kind in _NOTHING:
            return outputs
        attributes, raw_attributes = {}, None
        # Most operations are reads and assignments, which need no attributes.
        if kind not in VARIABLE_OPS or kind == "ResourceGather":
            attributes = attributes_of(operation)
            raw_attributes = dict(operation.node_def.attr)
        definition = operation.op_def
        node = Node(kind, inputs, outputs, attributes, path, definition, raw_attributes)
        if kind in VARIABLE_OPS:
            if inputs[0].variable is not None:
                return VARIABLE_OPS[kind](self.state, node)
            self.refusals.concerns_resource(kind, path)
            return outputs
        if kind == "Empty":
            node = zeros_for_empty(node)
        self.effects.note_text(node)
        if takes_second_body(node, self.state.nodes, self.library.kinds_of):
            name = node.attributes["else_branch"].name
            return self._call(name, node.inputs[1:], node.path)
        if kind in _LOOPS or kind in _BRANCHES:
            return self._with_bodies(node)
        if kind == "StridedSlice":
            moving = as_moving_slice(node, self.state.nodes)
            if moving is not None:
                self.state.nodes.append(moving)
                return moving.outputs
        if self.refusals.concerns(node):
            fold(node)  # assertions show texts
            self.state.nodes.append(node)
            return outputs
        infer_shapes(node)
        if fold(node):
            return outputs
        if kind == "StopGradient":
            outputs[0].constant = inputs[0].constant
        self.state.nodes.append(node)
        return outputs

    def _values_again(
        self,
        operations: Sequence[tf.Operation],
        repeat: Repeat,
        values: _Values,
        gradient: Value,
    ) -> _Values:
        """Returns values for operations that are read again: another gradient, other variables."""
        again: _Values = {}
        for tensor in [t for x in operations for t in (*x.inputs, *x.outputs)]:
            value = values[tensor.ref()]
            other = repeat.variables.get(id(value.variable))
            if value.dtype == tf.resource and other is not None:
                value = dataclasses.replace(value, variable=other)
            again[tensor.ref()] = value
        again[repeat.gradient] = gradient
        return again

    def _call(self, function: str, inputs: list[Value], path: str) -> list[Value]:
        return self.walk(self.library.graph_of(function, inputs), inputs, path + "/")

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
        graphs = {name: self.library.graph_of(f, arguments) for name, f in functions}
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
        self.state.nodes.append(node)
        for k, variable in enumerate(variables):
            entry = self.state.entry_of(variable)
            output = Value(entry.shape, entry.dtype, node.path)
            node.outputs.append(output)
            if any(b.outputs[count + k] is not entry_of(b, variable) for b in bodies):
                self.state.assign(variable, output, node.path)
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
            dataclasses.replace(
                v, path=path, constant=v.constant if is_fixed else None, kind="carried"
            )
            for v, is_fixed in zip(arguments, fixed)
        ]
        outer = self.state
        self.state = State(outer.coming_gradients)
        entries = [self.state.entry_of(v) for v in variables]
        with self.effects.within_body():
            outputs = self.walk(graph, inputs, path + "/")
        outputs += [self.state.read(v) for v in variables]
        body = Body([*inputs, *entries], outputs, self.state.nodes)
        for value in entries:
            value.kind = "carried"
        self.state = outer
        return body


def handle_of(variable: Any) -> Any:
    """Returns the resource of a TensorFlow or Keras variable."""
    if not isinstance(variable, tf.Variable):
        variable = variable.value
    return getattr(variable, "handle", None)
