"""Warnings of layouts that do not fit what programs have: most likely something is
misspelt.

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

    A program that writes nothing is perhaps but a small part of what the layout is for:
    of such a one only what looks like a misspelling gets a warning. An axis may be idle
    on purpose, so it is logged, unless it looks like a misspelling or all are idle
    although there are rules.

    Args:
      mesh: the program's.
      use: what this program and all before have to do with layouts.
      writes: whether the program writes variables.

    Raises:
      LayoutError: a warning under `Mesh(strict=True)`.
    """
    for name, close in use.unmatched_rules(mesh).items():
        if writes or close:
            _warn(
                mesh,
                f"rule {name}",
                explain_error(
                    f'the layout has a rule for dimension "{name}", which the program '
                    "never has.",
                    layout=mesh.layout,
                    dimensions=", ".join(sorted(use.dims)),
                    way_out=(
                        f"Did you mean {close}?"
                        if close
                        else "Delete the rule, or look for a misspelling."
                    ),
                ),
            )
    for axis, close in use.unused_axes(mesh).items():
        headline = unused_axis_text(mesh, axis)
        if close or writes and use.shards_nothing(mesh):
            _warn(
                mesh,
                f"axis {axis}",
                explain_error(
                    headline,
                    mesh=repr(mesh),
                    layout=mesh.layout,
                    way_out=(
                        f"Did you mean {close}?"
                        if close
                        else f'Add a rule, such as "batch:{axis}", or take the axis '
                        "away."
                    ),
                ),
            )
        elif writes:
            log_once(mesh, headline)


def _warn(mesh: Mesh, what: str, text: str) -> None:
    if mesh.strict:
        raise LayoutError(text)
    warn_once(mesh, what, text)
