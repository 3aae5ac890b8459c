"""`keras.distribution`'s meshes and layouts as meshtf's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from meshtf.errors import ArgumentError, LayoutError, explain_error, near_misses
from meshtf.mesh import Layout, Mesh
from meshtf.tensorflow_import.graph.program import Value
from meshtf.tensorflow_import.named_program import NamedProgram


def as_mesh(mesh: Any) -> Mesh:
    """Returns a mesh; of a `keras.distribution.DeviceMesh` one of the same axes, along the
    first of which batches are sharded.

    Raises:
        ArgumentError: It is neither.
    """
    if isinstance(mesh, Mesh):
        return mesh
    if not isinstance(mesh, keras.distribution.DeviceMesh):
        raise ArgumentError(
            f"a model is distributed over a mtf.Mesh or a keras.distribution.DeviceMesh, not "
            f"a {type(mesh).__name__}"
        )
    axes = list(zip(mesh.axis_names, (int(size) for size in mesh.shape)))
    names = [str(name) for name in mesh.devices.flatten()]
    devices = None
    if not all(name.startswith("cpu") for name in names):
        devices = [name.upper() for name in names]
    return Mesh(axes, f"batch:{axes[0][0]}", devices=devices)


def check_axes(mesh: Mesh, layouts: Iterable[Layout]) -> None:
    """Checks that the axes of layouts are there.

    Args:
        mesh: The mesh.
        layouts: Its layouts, or changes of them.

    Raises:
        LayoutError: A rule names an axis that the mesh lacks and that is not optional. (On a
            mesh of one position all axes may be absent.)
    """
    if mesh.size == 1:
        return
    known = {*mesh.axes, *mesh.optional_axes}
    for layout in layouts:
        for name, axes in layout.items():
            for axis in set(axes).difference(known):
                raise LayoutError(
                    explain_error(
                        f'the layout rule {name}:{axis} names axis "{axis}", which the mesh '
                        "lacks.",
                        mesh=mesh,
                        similar=near_misses(axis, mesh.axes) or "none",
                        way_out="Name one of the mesh's axes. If this one may be absent: "
                        f'mtf.Mesh(..., optional_axes="{axis}").',
                    )
                )


class VariableLayouts:
    """The layouts of variables that a `keras.distribution.LayoutMap` has rules for."""

    def __init__(self, layout_map: Any, model: Any, mesh: Mesh) -> None:
        """Checks a map's rules.

        Args:
            layout_map: The map; None: it has no rules.
            model: The model, which must be built.
            mesh: Where it runs.

        Raises:
            ArgumentError: It is no map.
            LayoutError: A rule matches no variable, or has another number of axes than one
                that it matches, or names an axis that the mesh lacks.
        """
        self._axes: dict[int, Sequence[Any]] = {}
        self._paths = {
            variable.path.replace("/", "_"): (tuple(variable.shape), id(variable))
            for variable in model.variables
        }
        if layout_map is None:
            return
        if not isinstance(layout_map, keras.distribution.LayoutMap):
            raise ArgumentError(
                "`layout` is a keras.distribution.LayoutMap, not "
                f"{type(layout_map).__name__}; give a layout of names to the mesh"
            )
        matched = set()
        for variable in model.variables:
            rule = layout_map[variable.path]
            if rule is not None:
                matched.add(id(rule))
                _check_rule(rule.axes, variable, mesh)
                self._axes[id(variable)] = rule.axes
        for pattern in layout_map:
            if id(layout_map[pattern]) not in matched:
                raise _unmatched(pattern, model)

    def of(self, named: NamedProgram, value: Value) -> Layout | None:
        """Returns the layout of a variable; None: that of the mesh. A slot of an optimizer has
        that of its variable.
        """
        axes = self._axes.get(id(value.variable))
        if axes is None and self._axes:
            axes = self._of_slot(value)
        if axes is None:
            return None
        rules: dict[str, str] = {}
        for axis, atoms in zip(axes, named.analysis.of(value)):
            if axis is not None and atoms:
                rules[named.names[atoms[0]]] = axis
        return Layout(rules)

    def _of_slot(self, value: Value) -> Sequence[Any] | None:
        if id(value.variable) in {key for _, key in self._paths.values()}:
            return None
        return self._axes.get(self.owner_of(value) or 0)

    def owner_of(self, value: Value) -> int | None:
        """Returns the identity of the variable that an optimizer's slot belongs to; None if
        there is none.
        """
        path = value.path.replace("/", "_")
        owners = {
            text: key
            for text, (shape, key) in self._paths.items()
            if text in path and shape == tuple(value.shape)
        }
        return owners[max(owners, key=len)] if owners else None


def _check_rule(axes: Sequence[Any], variable: Any, mesh: Mesh) -> None:
    if len(axes) != len(variable.shape):
        raise LayoutError(
            explain_error(
                f"a rule of the LayoutMap has {len(axes)} axes, but {variable.path} has "
                f"{len(variable.shape)}.",
                rule=tuple(axes),
                shape=tuple(variable.shape),
                way_out="Give the rule an axis, or None, for each axis of the variable.",
            )
        )
    for axis in axes:
        if axis is not None and axis not in mesh.axes:
            raise LayoutError(
                explain_error(
                    f'a rule of the LayoutMap names axis "{axis}", which the mesh lacks.',
                    mesh=mesh,
                    similar=near_misses(axis, mesh.axes) or "none",
                )
            )


def similar_paths(pattern: str, paths: Sequence[str]) -> str:
    """Returns the paths whose ends are close to a pattern, "none" if there are none."""
    plain = re.sub(r"\W*[.][*+]|\\d[*+]?", "", pattern)
    ends = {"/".join(path.split("/")[-k:]): path for path in paths for k in (1, 2, 3)}
    near = near_misses(plain, ends)
    similar = dict.fromkeys(ends[end] for end in near.split(", ") if end)
    return ", ".join(similar) or "none"


def _unmatched(pattern: str, model: Any) -> LayoutError:
    paths = [variable.path for variable in model.variables]
    return LayoutError(
        explain_error(
            f'the LayoutMap has a rule "{pattern}" that matches no variable.',
            similar=similar_paths(pattern, paths[::-1]),
            variables=", ".join(paths[:5]) + (", ..." if len(paths) > 5 else ""),
            way_out="Correct it or delete it. Rules for the outputs of layers are rules of "
            'the mesh here, by names of dimensions: mtf.Mesh(..., "heads:model").',
        )
    )
