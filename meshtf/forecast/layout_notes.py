"""What a forecast says of a layout that does not fit its program.

It is about this program alone, whatever ran on the mesh before.

    layout_notes(graph.nodes, mesh)
"""

from __future__ import annotations

from collections.abc import Sequence

from meshtf.graph import Node, WriteOp
from meshtf.graph.used_layouts import layout_use
from meshtf.mesh import Mesh
from meshtf.mesh.layout_use import unused_axis_text


def layout_notes(nodes: Sequence[Node], mesh: Mesh) -> list[str]:
    """Returns what does not fit between a program and the layout."""
    use = layout_use(nodes)
    writes = any(isinstance(node.op, WriteOp) for node in nodes)
    notes = list(use.notes(mesh))
    for rule, close in use.unmatched_rules(mesh).items():
        notes.append(
            f"layout rule {rule}: no dimension of this program is called so."
            + (f" Did you mean {close}?" if close else "")
        )
    for axis, close in use.unused_axes(mesh).items():
        if close or use.shards_nothing(mesh):
            notes.append(
                f"mesh axis {axis}: no rule of the layout names it."
                + (f" Did you mean {close}?" if close else "")
            )
        elif writes:
            notes.append(unused_axis_text(mesh, axis))
    return notes
