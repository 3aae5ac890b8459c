"""How a program uses layouts, and mismatches: rules for dimensions that the program
lacks, axes of the mesh that no rule names.

>>> from meshtf.mesh import LayoutUse, Mesh
>>> mesh = Mesh("data:2;model:2", "batch:data;dff:data")
>>> use = LayoutUse(frozenset({"batch", "d_ff"}))
>>> use.unmatched_rules(mesh), use.unused_axes(mesh), use.shards_nothing(mesh)
({'dff': 'd_ff'}, {'model': ''}, False)
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from meshtf.errors import near_misses
from meshtf.mesh.mesh import Mesh, missing_axis_notes

Rule: TypeAlias = tuple[str, tuple[str, ...]]  # the name of a dimension, axes


@dataclasses.dataclass(frozen=True)
class LayoutUse:
    """How a program uses layouts.

    Attributes:
      dims: the names of its dimensions.
      rules: the rules that apply in its regions, beyond those of the mesh.
    """

    dims: frozenset[str] = frozenset()
    rules: frozenset[Rule] = frozenset()

    def __or__(self, other: LayoutUse) -> LayoutUse:
        """Returns the use of two programs together."""
        return LayoutUse(self.dims | other.dims, self.rules | other.rules)

    def __le__(self, other: LayoutUse) -> bool:
        """Whether this use is a subset of another."""
        return self.dims <= other.dims and self.rules <= other.rules

    def notes(self, mesh: Mesh) -> tuple[str, ...]:
        """Returns remarks on rules that name axes which the mesh lacks."""
        notes = missing_axis_notes(mesh, sorted(self.rules))
        return tuple(dict.fromkeys((*mesh.notes, *notes)))

    def unmatched_rules(self, mesh: Mesh) -> dict[str, str]:
        """Returns the rules whose dimension the program lacks, each with similar names."""
        return {
            name: near_misses(name, self.dims)
            for name, _ in self._all_rules(mesh)
            if name not in self.dims
        }

    def unused_axes(self, mesh: Mesh) -> dict[str, str]:
        """Returns the axes that neither a rule nor `stages` names.

        Each comes with similar names, of axes that rules, `stages` or `optional_axes`
        name but the mesh lacks.
        """
        rules = self._all_rules(mesh)
        named = {mesh.stages, *(axis for _, axes in rules for axis in axes)}
        lacking = {*named, *mesh.optional_axes}.difference(mesh.axes)
        return {
            axis: near_misses(axis, lacking)
            for axis, size in mesh.axes.items()
            if size > 1 and axis not in named
        }

    def shards_nothing(self, mesh: Mesh) -> bool:
        """Whether there are rules, but none names an axis of the mesh."""
        axes = {axis for axis, size in mesh.axes.items() if size > 1}
        if not axes or not self._all_rules(mesh):
            return False
        return axes == set(self.unused_axes(mesh))

    def _all_rules(self, mesh: Mesh) -> list[Rule]:
        layouts = (mesh.layout, mesh.variable_layout, mesh.optimizer_layout)
        rules = [rule for layout in layouts for rule in layout.items()]
        return list(dict.fromkeys((*rules, *sorted(self.rules))))


def unused_axis_text(mesh: Mesh, axis: str) -> str:
    """Returns a message about an axis that no rule names."""
    return (
        f"no rule of the layout names mesh axis {axis!r}: its {mesh.axes[axis]} "
        "positions compute the same."
    )
