"""Functions as protocol buffers, put in order after TensorFlow traced them.

    definition = definition_of(function)        # a FunctionDef, apart from TensorFlow's

- Equal constants are one: they are a quarter of all ops that a trace makes.
- Nodes have no stack traces. TensorFlow takes them apart for each device that runs a
  function, and they tell of meshtf's code alone: the user's line was recorded before.
- What must run is named in `control_ret`, whoever takes its results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def definition_of(function: Any, must_run: Sequence[str] = ()) -> Any:
    """Returns the FunctionDef of a concrete function, under a name of its own.

    Args:
      function: the concrete function; it may go afterwards.
      must_run: names of nodes that run whether or not their results are used.
    """
    definition = function.function_def
    definition.signature.name += "_meshtf"
    _share_constants(definition)
    for k, name in enumerate(must_run):
        definition.signature.control_output.append(f"must_run_{k}")
        definition.control_ret[f"must_run_{k}"] = name
    return definition


class _Constants:
    """The constants of a FunctionDef, of which equal ones on a device become one.

    What a constant waits for, those that take it wait for: TensorFlow has an op wait
    only where none of its inputs does, and a shared constant waits for nothing.
    """

    def __init__(self, nodes: Any) -> None:
        self.first: dict[str, str] = {}  # each constant -> the first that is equal
        self.waits: dict[str, list[str]] = {}  # and its control inputs
        equal: dict[tuple[str, bytes], str] = {}
        for node in nodes:
            if node.op == "Const":
                key = node.device, node.attr["value"].SerializeToString()
                self.first[node.name] = equal.setdefault(key, node.name)
                if node.input:
                    self.waits[node.name] = list(node.input)

    def inputs(self, node: Any) -> list[str]:
        """Returns what a node takes instead of its inputs, control inputs last."""
        if node.op == "Const":
            return []
        data = [self.renamed(x) for x in node.input if not x.startswith("^")]
        control: dict[str, None] = {}
        for x in node.input:
            name = x.removeprefix("^").partition(":")[0]
            if name in self.first:
                control.update(dict.fromkeys(self._waits(name)))
            elif x.startswith("^"):
                control[x] = None
        return [*data, *control]

    def _waits(self, name: str) -> list[str]:
        waits = self.waits.get(name, [])
        if not any(x[1:] in self.first for x in waits):
            return waits
        nested = (self._waits(x[1:]) if x[1:] in self.first else [x] for x in waits)
        return [x for some in nested for x in some]

    def renamed(self, x: str) -> str:
        """Returns the name of an output with that of the first equal constant."""
        name, colon, output = x.partition(":")
        return self.first.get(name, name) + colon + output


def _share_constants(definition: Any) -> None:
    """Lets nodes take one constant for all equal ones of a device."""
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
