"""Leaves out the nodes that no result needs."""

from __future__ import annotations

from collections.abc import Iterable

from meshtf.tensorflow_import.graph.effects import EFFECTS
from meshtf.tensorflow_import.graph.program import Node, Program, Value


def prune(program: Program) -> None:
    """Leaves out nodes that no output, update, print or assertion needs, in bodies as well."""
    required = [*program.outputs, *program.updates.values()]
    program.nodes[:] = _needed(program.nodes, required)


def _needed(nodes: list[Node], required: Iterable[Value]) -> list[Node]:
    live, remaining = {id(v) for v in required}, []
    for node in reversed(nodes):
        if node.kind in EFFECTS:
            needed = True
        elif node.kind == "Assign":
            needed = id(node.inputs[1]) in live
        else:
            needed = any(id(v) in live for v in node.outputs)
        if needed:
            remaining.append(node)
            live.update(id(v) for v in node.inputs)
            for body in node.bodies.values():
                body.nodes[:] = _needed(body.nodes, body.outputs)
    return remaining[::-1]
