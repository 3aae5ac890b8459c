"""Functions as protocol buffers: cleaned up, or inserted into another function.

    definition = definition_of(function)        # a FunctionDef, independent of `function`

- Equal constants are merged: they are a quarter of all ops of a traced function.
- Stack traces of nodes are removed. TensorFlow parses them for each device that runs a
  function, and they show lines of meshtf only: the user's line was recorded before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

_READS = ("ReadVariableOp", "ResourceGather", "VariableShape")


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
      definition: the FunctionDef, which is modified.
      arguments: names of the tensors that replace its arguments.
      prefix: the prefix of the new names of its nodes.

    Attributes:
      nodes: the nodes, under their new names.
      results: names of the tensors that it returns.
      resources: names of the arguments that are handles of variables.
      must_run: names of nodes that must run even if nothing uses their outputs.
      host_effects: the nodes of `must_run` that use no variable, such as prints.
    """

    def __init__(
        self,
        definition: Any,
        arguments: Sequence[str],
        prefix: str,
    ) -> None:
        inputs = definition.signature.input_arg
        self._arguments = dict(zip((x.name for x in inputs), arguments, strict=True))
        self._prefix = prefix + "/"
        self.nodes = list(definition.node_def)
        for node_def in self.nodes:
            node_def.name = self._prefix + node_def.name
            node_def.input[:] = [self._renamed(x) for x in node_def.input]
            node_def.ClearField("experimental_debug_info")
            if "_class" in node_def.attr:  # the nodes with which it is colocated
                colocated = node_def.attr["_class"].list.s
                names = [x.removeprefix(b"loc:@") for x in colocated]
                colocated[:] = [b"loc:@" + self._prefix.encode() + x for x in names]
        outputs = definition.signature.output_arg
        results = [self._renamed(definition.ret[x.name]) for x in outputs]
        self.results = self._without_identities(results)
        self.must_run = [self._prefix + x for x in definition.control_ret.values()]
        handles = [x.name for x in inputs if x.type == tf.resource.as_datatype_enum]
        self.resources = list(dict.fromkeys(self._arguments[x] for x in handles))
        using = {name for x in self.resources for name in self.users(x)}
        self.host_effects = [x for x in self.must_run if x not in using]

    def users(self, resource: str) -> list[str]:
        """Returns the nodes that take a handle."""
        return [node.name for node in self.nodes if resource in node.input]

    def writes(self, resource: str) -> bool:
        """Returns whether a node may write a variable: any node that is not known to only
        read it.
        """
        return not all(
            node.op in _READS
            or resource not in node.input
            or _only_reads(node, resource)
            for node in self.nodes
        )

    def add_controls(self, names: Iterable[str], controls: Sequence[str]) -> None:
        """Makes nodes wait for nodes of the other function.

        Args:
          names: the nodes that wait.
          controls: names of nodes of the other function.
        """
        waiting = set(names)
        for node in self.nodes:
            if node.name in waiting:
                node.input.extend(f"^{name}" for name in controls)

    def _without_identities(self, results: Sequence[str]) -> list[str]:
        """Removes the identity nodes that TensorFlow adds to return results, and returns
        the names of their inputs.
        """
        used = {_node_of(x) for node in self.nodes for x in node.input}
        returning = {
            f"{node.name}:output:0": node
            for node in self.nodes
            if _only_passes(node) and node.name not in used
        }
        dropped = {returning[x].name for x in results if x in returning}
        self.nodes = [node for node in self.nodes if node.name not in dropped]
        return [returning[x].input[0] if x in returning else x for x in results]

    def _renamed(self, x: str) -> str:
        """Returns the name of an input in the other function."""
        is_control = x.startswith("^")
        name = x.removeprefix("^")
        tensor = self._arguments.get(name, self._prefix + name)
        return f"^{_node_of(tensor)}" if is_control else tensor


def _node_of(x: str) -> str:
    """Returns the node that an input refers to."""
    return x.removeprefix("^").partition(":")[0]


def _only_passes(node: Any) -> bool:
    """Returns whether a node is an identity without a device and control inputs."""
    return node.op == "Identity" and not node.device and len(node.input) == 1


def _only_reads(node: Any, resource: str) -> bool:
    """Returns whether a node that calls functions is marked as only reading a variable."""
    attribute = "_read_only_resource_inputs"
    if attribute not in node.attr:
        return False
    reads = set(node.attr[attribute].list.i)
    uses = {k for k, x in enumerate(node.input) if x == resource}
    return uses <= reads


class _Constants:
    """The constants of a FunctionDef; equal ones on a device are merged.

    The control inputs of a constant are moved to the nodes that use it. They are needed:
    TensorFlow adds control inputs only to ops none of whose inputs has them. The merged
    constant has none.
    """

    def __init__(self, nodes: Any) -> None:
        self.equal_to: dict[str, str] = {}  # constant -> the first equal constant
        self.controls: dict[str, list[str]] = {}  # constant -> its control inputs
        names: dict[tuple[str, bytes], str] = {}
        for node in nodes:
            if node.op == "Const":
                key = node.device, node.attr["value"].SerializeToString()
                self.equal_to[node.name] = names.setdefault(key, node.name)
                if node.input:
                    self.controls[node.name] = list(node.input)

    def inputs(self, node: Any) -> list[str]:
        """Returns the new inputs of a node, control inputs last."""
        if node.op == "Const":
            return []
        data = [self.renamed(x) for x in node.input if not x.startswith("^")]
        control: dict[str, None] = {}
        for x in node.input:
            name = x.removeprefix("^").partition(":")[0]
            if name in self.equal_to:
                control.update(dict.fromkeys(self._controls_of(name)))
            elif x.startswith("^"):
                control[x] = None
        return [*data, *control]

    def _controls_of(self, name: str) -> list[str]:
        """Returns the control inputs of a constant; constants among them are replaced by
        their own control inputs.
        """
        controls: list[str] = []
        for x in self.controls.get(name, ()):
            is_constant = x[1:] in self.equal_to
            controls += self._controls_of(x[1:]) if is_constant else [x]
        return controls

    def renamed(self, x: str) -> str:
        """Returns the name of an output, of the first equal constant if it is one."""
        name, colon, output = x.partition(":")
        return self.equal_to.get(name, name) + colon + output


def share_constants(definition: Any) -> None:
    """Merges equal constants on the same device."""
    nodes = definition.node_def
    constants = _Constants(nodes)
    for node in nodes:
        inputs = constants.inputs(node)
        if inputs != list(node.input):
            node.input[:] = inputs
    for k in reversed(range(len(nodes))):
        if constants.renamed(nodes[k].name) != nodes[k].name:
            del nodes[k]
    for key, x in list(definition.ret.items()):
        definition.ret[key] = constants.renamed(x)
