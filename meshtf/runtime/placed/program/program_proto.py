"""Functions as protocol buffers (FunctionDef): cleaned up, or inserted into another
function.

    definition = definition_of(function)        # a FunctionDef, independent of `function`

A FunctionDef is a list of nodes. An input of a node is a name: "x" is an argument of the
function, "n:output:0" an output of node n, and "^n" a control input (run after node n).

- Equal constants are merged: they are a quarter of all ops of a traced function.
- Stack traces of inserted nodes are removed. TensorFlow parses them for each device that
  runs a function, and they show lines of meshtf only: `Node.source` has the user's line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

# The ops that take a variable handle and never write the variable.
_READ_OPS = ("ReadVariableOp", "ResourceGather", "VariableShape")


def function_def(name: str) -> Any:
    """Returns a FunctionDef without arguments, nodes and results."""
    definition = tf.compat.v1.GraphDef().library.function.add()
    definition.signature.name = name
    return definition


def definition_of(function: Any) -> Any:
    """Returns the FunctionDef of a concrete function under a new name, so that the
    concrete function may be deleted.
    """
    definition = function.function_def
    definition.signature.name += "_meshtf"
    share_constants(definition)
    return definition


class SectionNodes:
    """The nodes of a traced function, prepared to be inserted into another function.

    Args:
      definition: the FunctionDef of the traced function, which is modified.
      arguments: the names of the tensors that replace the arguments of the function.
      prefix: the prefix of the new names of the nodes.

    Attributes:
      nodes: the nodes, with their new names.
      results: the names of the tensors that the function returns.
      resources: the names of the arguments that are variable handles.
      must_run: the names of nodes that must run even if no node uses their outputs.
      host_effects: those of `must_run` that use no variable, such as prints.
    """

    def __init__(
        self,
        definition: Any,
        arguments: Sequence[str],
        prefix: str,
    ) -> None:
        parameters = definition.signature.input_arg
        parameter_names = [parameter.name for parameter in parameters]
        self._arguments = dict(zip(parameter_names, arguments, strict=True))
        self._prefix = prefix + "/"
        self.nodes = list(definition.node_def)
        for node_def in self.nodes:
            self._prepare(node_def)
        results = [
            self._renamed(definition.ret[output.name])
            for output in definition.signature.output_arg
        ]
        self.results = self._without_identities(results)
        self.must_run = [
            self._prefix + name for name in definition.control_ret.values()
        ]
        handle_type = tf.resource.as_datatype_enum
        handles = [
            parameter.name for parameter in parameters if parameter.type == handle_type
        ]
        self.resources = list(dict.fromkeys(self._arguments[name] for name in handles))
        # For each variable handle, the nodes that take it.
        self._users: dict[str, list[Any]] = {x: [] for x in self.resources}
        resource_users = set()
        for node in self.nodes:
            for resource in self._users.keys() & set(node.input):
                self._users[resource].append(node)
                resource_users.add(node.name)
        self._nodes_by_name = {node.name: node for node in self.nodes}
        self.host_effects = [
            name for name in self.must_run if name not in resource_users
        ]

    def _prepare(self, node_def: Any) -> None:
        """Renames a node and its inputs, and removes its stack trace."""
        node_def.name = self._prefix + node_def.name
        node_def.input[:] = [self._renamed(name) for name in node_def.input]
        node_def.ClearField("experimental_debug_info")
        # The attribute "_class" has the names of colocated nodes, as b"loc:@name".
        if "_class" in node_def.attr:
            colocated_nodes = node_def.attr["_class"].list.s
            names = [node.removeprefix(b"loc:@") for node in colocated_nodes]
            prefix = b"loc:@" + self._prefix.encode()
            colocated_nodes[:] = [prefix + name for name in names]

    def users(self, resource: str) -> list[str]:
        """Returns the names of the nodes that take a variable handle."""
        return [node.name for node in self._users[resource]]

    def writes(self, resource: str) -> bool:
        """Returns whether a node may write a variable: a node that takes the handle and is
        not known to only read.
        """
        return any(
            node.op not in _READ_OPS and not _only_reads(node, resource)
            for node in self._users[resource]
        )

    def add_controls(self, names: Iterable[str], controls: Sequence[str]) -> None:
        """Adds control inputs: nodes of this function run after nodes of the other one.

        Args:
          names: the names of nodes of this function.
          controls: the names of nodes of the other function, after which they run.
        """
        control_inputs = [f"^{name}" for name in controls]
        for name in set(names):
            if name in self._nodes_by_name:
                self._nodes_by_name[name].input.extend(control_inputs)

    def _without_identities(self, results: Sequence[str]) -> list[str]:
        """Removes the identity nodes that TensorFlow adds for results; returns the results
        with the input of such a node in place of its output.
        """
        used_nodes = {_node_of(name) for node in self.nodes for name in node.input}
        # {name of the output: identity node}, for nodes whose output no node uses.
        identities = {
            f"{node.name}:output:0": node
            for node in self.nodes
            if _is_plain_identity(node) and node.name not in used_nodes
        }
        removed_names = set()
        new_results = []
        for result in results:
            if result in identities:
                removed_names.add(identities[result].name)
                new_results.append(identities[result].input[0])
            else:
                new_results.append(result)
        self.nodes = [node for node in self.nodes if node.name not in removed_names]
        return new_results

    def _renamed(self, input_name: str) -> str:
        """Returns the name of a node's input in the other function."""
        name = input_name.removeprefix("^")
        tensor = self._arguments.get(name, self._prefix + name)
        if input_name.startswith("^"):
            return f"^{_node_of(tensor)}"
        return tensor


def _node_of(input_name: str) -> str:
    """Returns the name of the node to which an input refers: "^n" and "n:output:0" to n."""
    return input_name.removeprefix("^").partition(":")[0]


def _is_plain_identity(node: Any) -> bool:
    """Returns whether a node is an identity without a device and control inputs."""
    return node.op == "Identity" and not node.device and len(node.input) == 1


def _only_reads(node: Any, resource: str) -> bool:
    """Returns whether TensorFlow has marked a node that calls functions as only reading a
    variable.
    """
    attribute = "_read_only_resource_inputs"
    if attribute not in node.attr:
        return False
    read_only_inputs = set(node.attr[attribute].list.i)
    resource_inputs = {
        index for index, name in enumerate(node.input) if name == resource
    }
    return resource_inputs <= read_only_inputs


class _Constants:
    """The constants of a FunctionDef; equal constants on a device are merged.

    A merged constant has no control inputs: those of a constant are moved to the nodes
    that use it. These nodes need them, since TensorFlow adds control inputs to a node only
    if none of the node's inputs has control inputs.

    Attributes:
      equal_to: {name of a constant: name of the first constant that is equal}.
      controls: {name of a constant: its control inputs}.
    """

    def __init__(self, nodes: Any) -> None:
        self.equal_to: dict[str, str] = {}
        self.controls: dict[str, list[str]] = {}
        first_names: dict[tuple[str, bytes], str] = {}
        for node in nodes:
            if node.op == "Const":
                key = node.device, node.attr["value"].SerializeToString()
                self.equal_to[node.name] = first_names.setdefault(key, node.name)
                if node.input:
                    self.controls[node.name] = list(node.input)

    def inputs(self, node: Any) -> list[str]:
        """Returns the new inputs of a node, control inputs last."""
        if node.op == "Const":
            return []
        data_inputs = [
            self.renamed(input_name)
            for input_name in node.input
            if not input_name.startswith("^")
        ]
        control_inputs: dict[str, None] = {}  # an ordered set
        for input_name in node.input:
            name = _node_of(input_name)
            if name in self.equal_to:
                control_inputs.update(dict.fromkeys(self._controls_of(name)))
            elif input_name.startswith("^"):
                control_inputs[input_name] = None
        return [*data_inputs, *control_inputs]

    def _controls_of(self, name: str) -> list[str]:
        """Returns the control inputs of a constant. A constant among them is replaced by
        the control inputs of that constant.
        """
        controls: list[str] = []
        for control in self.controls.get(name, ()):
            control_node = _node_of(control)
            if control_node in self.equal_to:
                controls += self._controls_of(control_node)
            else:
                controls.append(control)
        return controls

    def renamed(self, name: str) -> str:
        """Returns the name of a node or of its output, "n" or "n:output:0"; for a constant,
        that of the first constant that is equal.
        """
        node_name, colon, output = name.partition(":")
        return self.equal_to.get(node_name, node_name) + colon + output


def share_constants(definition: Any) -> None:
    """Merges equal constants of a FunctionDef that are on the same device."""
    nodes = definition.node_def
    constants = _Constants(nodes)
    for node in nodes:
        inputs = constants.inputs(node)
        if inputs != list(node.input):
            node.input[:] = inputs
    # Backwards, so that deletions do not change the indices of the remaining nodes.
    for index in reversed(range(len(nodes))):
        if constants.renamed(nodes[index].name) != nodes[index].name:
            del nodes[index]
    for result, name in list(definition.ret.items()):
        definition.ret[result] = constants.renamed(name)
