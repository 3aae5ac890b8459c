"""Notes of a forecast about a layout that does not match its program.

    layout_notes(graph.nodes, mesh)

The notes are about this program only; programs that ran on the mesh before do not count.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshtf.graph import Node, WriteOp
from meshtf.graph.used_layouts import layout_use
from meshtf.mesh import Mesh
from meshtf.mesh.layout_use import unused_axis_question, unused_axis_text


def layout_notes(nodes: Sequence[Node], mesh: Mesh) -> list[str]:
    """Returns notes about layout rules that match no dimension, and about unused mesh axes.

    Args:
      nodes: the recorded ops.
      mesh: the mesh with the layout.
    """
    use = layout_use(nodes)
    has_updates = any(isinstance(node.op, WriteOp) for node in nodes)
    notes = list(use.notes(mesh))
    # `similar` lists the names that a rule or axis resembles; "" if there are none.
    for rule, similar in use.unmatched_rules(mesh).items():
        notes.append(
            f"layout rule {rule}: no dimension of this program is called so."
            + _suggestion(similar)
        )
    for axis, similar in use.unused_axes(mesh).items():
        if similar or use.shards_nothing(mesh):
            note = f"mesh axis {axis}: no rule of the layout names it."
            if similar:
                note += f" {unused_axis_question(mesh, axis, similar)}"
            notes.append(note)
        elif has_updates:
            notes.append(unused_axis_text(mesh, axis))
    return notes


def _suggestion(similar: str) -> str:
    """Returns the end of a note: a question that proposes similar names, if any."""
    return f" Did you mean {similar}?" if similar else ""
