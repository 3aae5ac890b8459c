"""Which variables a loss depends on."""

from __future__ import annotations

from meshtf.tensorflow_import.graph.program import Program


def unreached(program: Program) -> set[int]:
    """Returns identities of the variables of `program.gradients` that the loss does not
    depend on, or only where gradients stop.
    """
    live = {id(program.loss)}
    for node in reversed(program.nodes):
        if node.kind in ("StopGradient", "PreventGradient"):
            continue
        if any(id(v) in live for v in node.outputs):
            live.update(id(v) for v in node.inputs)
    return {
        id(variable)
        for _, variable in program.gradients
        if id(program.on_entry[id(variable)]) not in live
    }
