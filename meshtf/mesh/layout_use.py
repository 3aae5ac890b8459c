"""What programs use of a layout, and what does not match: rules for dimensions that no
program has, mesh axes that no rule names.

>>> from meshtf.mesh import LayoutUse, Mesh
>>> mesh = Mesh("data:2;model:2", "batch:data;dff:data")
>>> use = LayoutUse(dims=frozenset({"batch", "d_ff"}))
>>> use.unmatched_rules(mesh), use.unused_axes(mesh), use.shards_nothing(mesh)
({'dff': 'd_ff'}, {'model': ''}, False)
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from typing import TypeAlias

from meshtf.errors import near_misses
from meshtf.mesh.mesh import Mesh
from meshtf.mesh.mesh_text import missing_axis_notes

Rule: TypeAlias = tuple[str, tuple[str, ...]]  # (name of a dimension, mesh axes)
# `Mesh(stages=...)` where the user says nothing, so that only what is nearly the same, such as
# "stge", is taken for a misspelling of it.
_DEFAULT_STAGES = "stage"
_VERY_SIMILAR = 0.75  # a ratio of `difflib`


@dataclasses.dataclass(frozen=True)
class LayoutUse:
    """What a program can use of a layout: its dimensions, and its changes of the layout.

    Attributes:
      dims: the names of the dimensions of the program's tensors and variables.
      rules: the rules of the program's layout changes, which are not those of the mesh.
    """

    dims: frozenset[str] = frozenset()
    rules: frozenset[Rule] = frozenset()

    def __or__(self, other: LayoutUse) -> LayoutUse:
        """Returns the use of two programs together."""
        return LayoutUse(self.dims | other.dims, self.rules | other.rules)

    def __le__(self, other: LayoutUse) -> bool:
        """Returns whether another use has all dimensions and rules of this one."""
        return self.dims <= other.dims and self.rules <= other.rules

    def notes(self, mesh: Mesh) -> tuple[str, ...]:
        """Returns notes about rules with an axis that the mesh lacks, each once."""
        program_notes = missing_axis_notes(mesh.axes, sorted(self.rules))
        return tuple(dict.fromkeys((*mesh.notes, *program_notes)))

    def unmatched_rules(self, mesh: Mesh) -> dict[str, str]:
        """Returns the rules whose dimension the program lacks, as a dict from the dimension
        to similar names of the program's dimensions, as text; "" if there are none.
        """
        return {
            name: near_misses(name, self.dims)
            for name, _ in self._all_rules(mesh)
            if name not in self.dims
        }

    def unused_axes(self, mesh: Mesh) -> dict[str, str]:
        """Returns the mesh axes that neither a rule nor `stages` names, as a dict from the
        axis to similar names as text; "" if there are none.

        The similar names are those that rules, `stages` or `optional_axes` name although the
        mesh lacks them: perhaps they are misspelt.
        """
        named_axes = {mesh.stages} - {""}
        for _dim, axes in self._all_rules(mesh):
            named_axes.update(axes)
        missing_axes = {*named_axes, *mesh.optional_axes}.difference(mesh.axes)
        return {
            axis: _similar_to_axis(axis, missing_axes)
            for axis, size in mesh.axes.items()
            if size > 1 and axis not in named_axes
        }

    def shards_nothing(self, mesh: Mesh) -> bool:
        """Returns whether there are rules, but none of them names an axis of the mesh."""
        axes = {axis for axis, size in mesh.axes.items() if size > 1}
        if not axes or not self._all_rules(mesh):
            return False
        return axes == set(self.unused_axes(mesh))

    def _all_rules(self, mesh: Mesh) -> list[Rule]:
        """Returns the rules of the mesh and of the program, each once."""
        layouts = (mesh.layout, mesh.variable_layout, mesh.optimizer_layout)
        rules = [rule for layout in layouts for rule in layout.items()]
        return list(dict.fromkeys((*rules, *sorted(self.rules))))


def unused_axis_text(mesh: Mesh, axis: str) -> str:
    """Returns a message about an axis that no rule names."""
    return (
        f"no rule of the layout names mesh axis {axis!r}: its {mesh.axes[axis]} "
        "positions compute the same."
    )


def unused_axis_question(mesh: Mesh, axis: str, similar: str) -> str:
    """Returns a question about which name is misspelt: that of an axis that no rule names, or
    one that the mesh lacks.

    Args:
      mesh: the mesh.
      axis: the axis that no rule names.
      similar: names that the mesh lacks, as `LayoutUse.unused_axes` tells them.
    """
    if set(similar.split(", ")) <= {mesh.stages, *mesh.optional_axes}:
        return f"Did you mean {similar}?"  # the user says that these are axes
    return f'Did you mean "{axis}" where a rule names {similar}?'


def _similar_to_axis(axis: str, missing_axes: Iterable[str]) -> str:
    """Returns those of some names that the mesh lacks that are similar to an axis, as text."""
    names = set(missing_axes)
    if not difflib.get_close_matches(axis, [_DEFAULT_STAGES], cutoff=_VERY_SIMILAR):
        names.discard(_DEFAULT_STAGES)
    return near_misses(axis, names)
