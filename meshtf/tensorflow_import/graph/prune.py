"""Leaves out the nodes that no result needs."""

from __future__ import annotations

from collections.abc import Iterable

from meshtf.tensorflow_import.graph.program import Node, Program, Value


def prune(program: Program) -> None:
    """Leaves out nodes that neither outputs, updates nor the loss need, in bodies as well."""
    wanted = [*program.outputs, *program.updates.values()]
    if program.loss is not None:
        wanted.append(program.loss)
    program.nodes = _needed(program.nodes, wanted)


def _needed(nodes: list[Node], wanted: Iterable[Value]) -> list[Node]:
    live, kept = {id(v) for v in wanted}, []
    for node in reversed(nodes):
        if node.kind == "Assign":
            needed = id(node.inputs[1]) in live
        else:
            needed = any(id(v) in live for v in node.outputs)
        if needed:
            kept.append(node)
            live.update(id(v) for v in node.inputs)
            for body in node.bodies.values():
                body.nodes = _needed(body.nodes, body.outputs)
    return kept[::-1]
