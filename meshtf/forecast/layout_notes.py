"""Notes of a forecast about a layout that does not match its program.

They depend on this program only, not on others that ran on the mesh before.

    layout_notes(graph.nodes, mesh)
"""

from __future__ import annotations

from collections.abc import Sequence

from meshtf.graph import Node, WriteOp
from meshtf.graph.used_layouts import layout_use
from meshtf.mesh import Mesh
from meshtf.mesh.layout_use import idle_axis


def layout_notes(nodes: Sequence[Node], mesh: Mesh) -> list[str]:
    """Returns notes about layout rules that match no dimension, and mesh axes that are
    not used.
    """
    use = layout_use(nodes)
    has_updates = any(isinstance(node.op, WriteOp) for node in nodes)
    notes = list(use.notes(mesh))
    for rule, similar in use.unmatched_rules(mesh).items():
        notes.append(
            f"layout rule {rule}: no dimension of this program is called so."
            + _suggestion(similar)
        )
    for axis, similar in use.unused_axes(mesh).items():
        if similar or use.lies_idle(mesh):
            notes.append(
                f"mesh axis {axis}: no rule of the layout names it."
                + _suggestion(similar)
            )
        elif has_updates:
            notes.append(idle_axis(mesh, axis))
    return notes


def _suggestion(similar: str) -> str:
    return f" Did you mean {similar}?" if similar else ""
