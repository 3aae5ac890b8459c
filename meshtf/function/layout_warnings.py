"""Warnings of layouts that do not fit what programs have: most likely something is
misspelt.

Example:

    warn_of_unmatched(mesh, writes=True)       # once a program is recorded
"""

from __future__ import annotations

import warnings

from meshtf.errors import LayoutError, LayoutWarning, explain_error
from meshtf.mesh import Mesh
from meshtf.mesh.axes import level_outside


def warn_of_unmatched(mesh: Mesh, writes: bool) -> None:
    """Warns of rules whose dimension no program had so far, and of axes that no rule
    names.

    A program that writes nothing is perhaps but a small part of what the layout is for:
    of such a one only what looks like a misspelling gets a warning. An axis may be idle
    on purpose, so it gets a note, unless it looks like a misspelling or all are idle
    although there are rules.

    Raises:
      LayoutError: a warning under `Mesh(strict=True)`.
    """
    for name, close in mesh.unmatched_rules().items():
        if writes or close:
            _warn(
                mesh,
                name,
                explain_error(
                    f'the layout has a rule for dimension "{name}", which the program '
                    "never has.",
                    layout=mesh.layout,
                    dimensions=", ".join(sorted(mesh.seen_dims)),
                    way_out=(
                        f"Did you mean {close}?"
                        if close
                        else "Delete the rule, or look for a misspelling."
                    ),
                ),
            )
    for axis, close in mesh.unused_axes().items():
        headline = (
            f"no rule of the layout names mesh axis {axis!r}: its {mesh.axes[axis]} "
            "positions compute the same."
        )
        if close or writes and mesh.lies_idle:
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
            mesh.note(headline)


def _warn(mesh: Mesh, what: str, text: str) -> None:
    if what in mesh.warned:
        return
    if mesh.strict:
        raise LayoutError(text)
    mesh.warned.add(what)
    warnings.warn(text, LayoutWarning, stacklevel=level_outside())
