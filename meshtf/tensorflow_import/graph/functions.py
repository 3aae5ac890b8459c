"""Functions within a graph (called ones, bodies of loops, branches) as graphs of their own.

A graph holds them as `FunctionDef`s, without shapes. Each operation is created again on
inputs of known shapes, so TensorFlow infers all others; calls are inlined on the way. Only
public names of TensorFlow are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from meshtf.tensorflow_import.graph.program import Node, Value

# A graph, its arguments and its results.
FunctionGraph = tuple[tf.Graph, list[tf.Tensor], list[tf.Tensor]]
CALLS = ("PartitionedCall", "StatefulPartitionedCall")


class Library:
    """The functions of a graph."""

    def __init__(self, graph: tf.Graph) -> None:
        self._library = graph.as_graph_def().library
        self._functions = {f.signature.name: f for f in self._library.function}
        self._names = {id(graph): getattr(graph, "name", "")}

    def name_of(self, graph: tf.Graph) -> str:
        """Returns the name of the function whose graph this is."""
        return self._names[id(graph)]

    def graph_of(self, name: str, arguments: Sequence[Value]) -> FunctionGraph:
        """Returns the graph of a function for arguments of these types and shapes."""
        function = self._functions[name]
        graph = tf.Graph()
        self._names[id(graph)] = name
        with graph.as_default():
            if self._library.function:
                tf.graph_util.import_graph_def(
                    tf.compat.v1.GraphDef(library=self._library), name=""
                )
            inputs = [
                tf.raw_ops.Placeholder(
                    dtype=value.dtype,
                    shape=() if value.dtype == tf.resource else value.shape,
                    name=argument.name,
                )
                for argument, value in zip(function.signature.input_arg, arguments)
            ]
            outputs = self._emit(graph, function, inputs)
        return graph, inputs, outputs

    def kinds_of(self, name: str) -> set[str]:
        """Returns the kinds of a function's operations."""
        return {node.op for node in self._functions[name].node_def}

    def _emit(
        self, graph: tf.Graph, function: Any, inputs: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Creates the operations of a function in a graph, and returns its results."""
        tensors: dict[str, tf.Tensor] = {
            argument.name: tensor
            for argument, tensor in zip(function.signature.input_arg, inputs)
        }
        for node in _in_order(function.node_def):
            required = [
                tensors[name] for name in node.input if not name.startswith("^")
            ]
            callee = self._callee(node)
            if callee is not None:
                with tf.name_scope(_scope(node.name)):
                    results = self._emit(graph, callee, required)
                for k, tensor in enumerate(results):
                    tensors[f"{node.name}:output:{k}"] = tensor
                    name = callee.signature.output_arg[k].name
                    tensors[f"{node.name}:{name}:0"] = tensor
                continue
            operation = graph.create_op(
                node.op,
                required,
                attrs=dict(node.attr.items()),
                name=_scope(node.name),
            )
            if node.op in ("While", "StatelessWhile"):
                for tensor, entry in zip(operation.outputs, required):
                    tensor.set_shape(entry.shape)
            for name, tensor in _named_outputs(operation):
                tensors[f"{node.name}:{name}"] = tensor
        return [
            tensors[function.ret[argument.name]]
            for argument in function.signature.output_arg
        ]

    def _callee(self, node: Any) -> Any:
        """Returns the function that a node calls: by an attribute, or as its kind."""
        name = node.attr["f"].func.name if node.op in CALLS else node.op
        return self._functions.get(name)


def _scope(name: str) -> str:
    """Returns a node's name as one that an operation may have."""
    return name.lstrip("_/") or "function"


def _in_order(nodes: Sequence[Any]) -> list[Any]:
    """Returns nodes of a function, each after those that it reads."""
    by_name = {node.name: node for node in nodes}
    done: dict[str, Any] = {}
    for node in nodes:
        stack = [node]
        while stack:
            at = stack[-1]
            before = (by_name.get(name.lstrip("^").split(":")[0]) for name in at.input)
            left = [n for n in before if n is not None and n.name not in done]
            if left:
                stack.extend(left)
            else:
                done.setdefault(stack.pop().name, at)
    return list(done.values())


def _named_outputs(operation: tf.Operation) -> list[tuple[str, tf.Tensor]]:
    """Returns an operation's outputs as functions name them: "values:0"."""
    named, first = [], 0
    for argument in operation.op_def.output_arg:
        if argument.number_attr:
            count = operation.get_attr(argument.number_attr)
        elif argument.type_list_attr:
            count = len(operation.get_attr(argument.type_list_attr))
        else:
            count = 1
        for k in range(count):
            named.append((f"{argument.name}:{k}", operation.outputs[first + k]))
        first += count
    return named


def body_functions(attributes: Mapping[str, Any], loops: bool) -> list[tuple[str, str]]:
    """Returns names of a node's bodies, and of their functions."""
    if "branches" in attributes:
        return [(f"branch_{k}", f.name) for k, f in enumerate(attributes["branches"])]
    names = ("cond", "body") if loops else ("then_branch", "else_branch")
    return [(name, attributes[name].name) for name in names]


def taken_branch(node: Node, count: int) -> int | None:
    """Returns which of a node's branches runs, if that is known."""
    predicate = node.inputs[0].constant
    if predicate is None:
        return None
    if node.kind.endswith("If"):
        return 0 if predicate else 1
    index = int(predicate)
    return index if 0 <= index < count else count - 1


def unchanged_arguments(body: FunctionGraph) -> list[bool]:
    """Returns for each argument of a loop's body whether it is returned as it is."""
    _, parameters, results = body

    def source(tensor: tf.Tensor) -> tf.Tensor:
        while tensor.op.type == "Identity":
            tensor = tensor.op.inputs[0]
        return tensor

    return [
        source(result) is parameter for parameter, result in zip(parameters, results)
    ]
