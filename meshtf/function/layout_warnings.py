"""Warnings of layout rules and mesh axes that no program uses, most likely because of a
misspelt name.

Example:

    warn_of_unmatched(mesh, earlier_use(mesh), writes=True)    # once a program is recorded
"""

from __future__ import annotations

from meshtf.errors import LayoutError, explain_error
from meshtf.mesh import LayoutUse, Mesh
from meshtf.mesh.layout_use import unused_axis_text
from meshtf.mesh.once_per_mesh import log_once, warn_once


def warn_of_unmatched(mesh: Mesh, use: LayoutUse, writes: bool) -> None:
    """Warns of rules whose dimension no program had so far, and of axes that no rule
    names; once for each rule and axis of a mesh.

    A program that writes nothing may be a small part of the work that the layout is for:
    then only names that look misspelt are reported. An axis may be unused on purpose, so
    it is logged, unless it looks misspelt, or all axes are unused although there are
    rules.

    Args:
      mesh: the mesh of the program.
      use: the dimensions and rules of this program and all earlier ones.
      writes: whether the program writes variables.

    Raises:
      LayoutError: instead of a warning, under `Mesh(strict=True)`.
    """
    for name, close in use.unmatched_rules(mesh).items():
        if writes or close:
            _warn(mesh, f"rule {name}", _unmatched_rule(mesh, use, name, close))
    for axis, close in use.unused_axes(mesh).items():
        headline = unused_axis_text(mesh, axis)
        if close or (writes and use.shards_nothing(mesh)):
            _warn(mesh, f"axis {axis}", _unused_axis(mesh, axis, headline, close))
        elif writes:
            log_once(mesh, headline)


def _unmatched_rule(mesh: Mesh, use: LayoutUse, name: str, close: str) -> str:
    """Returns the warning of a rule; `close` has similar names, if there are any."""
    if close:
        way_out = f"Did you mean {close}?"
    else:
        way_out = "Delete the rule, or look for a misspelling."
    return explain_error(
        f'the layout has a rule for dimension "{name}", which the program never has.',
        layout=mesh.layout,
        dimensions=", ".join(sorted(use.dims)),
        way_out=way_out,
    )


def _unused_axis(mesh: Mesh, axis: str, headline: str, close: str) -> str:
    """Returns the warning of an axis; `close` has similar names, if there are any."""
    if close:
        way_out = f"Did you mean {close}?"
    else:
        way_out = f'Add a rule, such as "batch:{axis}", or take the axis away.'
    return explain_error(headline, mesh=str(mesh), layout=mesh.layout, way_out=way_out)


def _warn(mesh: Mesh, key: str, text: str) -> None:
    """Warns once for a mesh and key. Raises LayoutError if the mesh is strict."""
    if mesh.strict:
        raise LayoutError(text)
    warn_once(mesh, key, text)
