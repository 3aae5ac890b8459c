"""Warnings of layout rules and mesh axes that no program uses, most likely because of a
misspelt name.

    warn_of_unmatched(mesh, graph.nodes)

Called after a program is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshtf.errors import LayoutError, explain_error
from meshtf.graph import Node, ReadOp, WriteOp
from meshtf.graph.used_layouts import recorded_layout_use
from meshtf.mesh import LayoutUse, Mesh
from meshtf.mesh.layout_use import unused_axis_question, unused_axis_text
from meshtf.mesh.once_per_mesh import log_once, warn_once
from meshtf.ops.elementwise.where_cast_clip import Cast


def is_training_step(nodes: Sequence[Node]) -> bool:
    """Returns whether a program may be a training step: it writes variables, and does more
    than to copy values between them.

    Args:
      nodes: the recorded ops of the program.
    """
    ops = [node.op for node in nodes]
    computes = not all(isinstance(op, (ReadOp, WriteOp, Cast)) for op in ops)
    return computes and any(isinstance(op, WriteOp) for op in ops)


def warn_of_unmatched(mesh: Mesh, nodes: Sequence[Node]) -> None:
    """Warns of rules whose dimension no program had so far, and of axes that no rule
    names; once for each rule and axis of a mesh.

    A training step (see `is_training_step`) uses all of the layout. Another program may be a
    small part of the user's work: then only names that look misspelt are reported. An axis
    may be unused on purpose, so it is only logged, unless its name looks misspelt, or the
    layout has rules and shards nothing.

    Args:
      mesh: the mesh of the program.
      nodes: the recorded ops of the program.

    Raises:
      LayoutError: instead of a warning, under `Mesh(strict=True)`.
    """
    use = recorded_layout_use(mesh)
    trains = is_training_step(nodes)
    for name, similar in use.unmatched_rules(mesh).items():
        if trains or similar:
            text = _unmatched_rule(mesh, use, name=name, similar=similar)
            _warn(mesh, key=f"rule {name}", text=text)
    for axis, similar in use.unused_axes(mesh).items():
        headline = unused_axis_text(mesh, axis)
        if similar or (trains and use.shards_nothing(mesh)):
            text = _unused_axis(mesh, axis, headline=headline, similar=similar)
            _warn(mesh, key=f"axis {axis}", text=text)
        elif trains:
            log_once(mesh, headline)


def _unmatched_rule(mesh: Mesh, use: LayoutUse, name: str, similar: str) -> str:
    """Returns the warning of a rule that matches no dimension.

    Args:
      mesh: the mesh with the layout.
      use: the dimensions of all programs so far.
      name: the dimension of the rule.
      similar: names of dimensions that are similar; "" if there are none.
    """
    if similar:
        way_out = f"Did you mean {similar}?"
    else:
        way_out = "Delete the rule, or look for a misspelling."
    return explain_error(
        f'the layout has a rule for dimension "{name}", which the program never has.',
        layout=mesh.layout,
        dimensions=", ".join(sorted(use.dims)),
        way_out=way_out,
    )


def _unused_axis(mesh: Mesh, axis: str, headline: str, similar: str) -> str:
    """Returns the warning of an axis that no rule names.

    Args:
      mesh: the mesh with the layout.
      axis: the axis.
      headline: the first line of the warning.
      similar: names in the layout that are similar; "" if there are none.
    """
    if similar:
        way_out = unused_axis_question(mesh, axis, similar)
    else:
        way_out = f'Add a rule, such as "batch:{axis}", or take the axis away.'
    return explain_error(headline, mesh=str(mesh), layout=mesh.layout, way_out=way_out)


def _warn(mesh: Mesh, key: str, text: str) -> None:
    """Warns with a text, once for a mesh and a key.

    Raises:
      LayoutError: instead of the warning, if the mesh is strict.
    """
    if mesh.strict:
        raise LayoutError(text)
    warn_once(mesh, key, text)
