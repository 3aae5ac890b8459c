"""The variables of a Keras model on a mesh, and the names of their dimensions."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshtf.errors import LayoutError, explain_error
from meshtf.graph import Tensor
from meshtf.keras.check import check_processes, has_processes
from meshtf.keras.layer_settings.patterns import LayerSettings
from meshtf.keras.layer_settings.region_names import RegionNames
from meshtf.keras.layout_map import VariableLayouts
from meshtf.keras.variables import OnMesh, put_on_mesh, state_of
from meshtf.mesh import NO_CHANGES, Layout, Mesh
from meshtf.names import Shape
from meshtf.runtime.storage.asarray import asarray
from meshtf.runtime.variable import Variable
from meshtf.tensorflow_import.dimensions.check_names import check_layout, check_rules
from meshtf.tensorflow_import.dimensions.hints import Hints
from meshtf.tensorflow_import.dimensions.names import unused_name
from meshtf.tensorflow_import.graph.program import Program, Value
from meshtf.tensorflow_import.graph.state import path_of
from meshtf.tensorflow_import.named_program import NamedProgram
from meshtf.tensorflow_import.repeats.stacks import LAYERS, Repeated

_SEED = "Call keras.utils.set_random_seed with one number in all of them, before the model is made."


class PlacedVariables:
    """Variables of a model on a mesh.

    Attributes:
        mesh: The mesh.
        names: New names of dimensions.
        known_names: For each variable, by identity, the names of its dimensions: those of the
            first trace stay.
        variables: By identity of a Keras variable, the mesh's variable.
        slots: Identities of the optimizer's variables.
        settings: Those of layers.
    """

    def __init__(
        self,
        mesh: Mesh,
        names: Mapping[str, str],
        layouts: VariableLayouts,
        settings: LayerSettings,
    ) -> None:
        """Prepares a place for variables.

        Args:
            mesh: The mesh.
            names: New names of dimensions.
            layouts: Layouts of single variables.
            settings: Those of layers.
        """
        self.settings = settings
        self.mesh = mesh
        self.names = dict(names)
        self._layouts = layouts
        self._region_names = RegionNames(settings)
        self._all_names: set[str] = set()
        self.known_names: dict[int, list[str]] = {}
        self.variables: dict[int, Variable] = {}
        self.slots: set[int] = set()
        self._states: dict[int, OnMesh] = {}
        self._references: dict[int, weakref.ref] = {}
        self._count = 0

    def state_of(self, key: int) -> OnMesh:
        """Returns where a variable's value is newest, by the variable's identity."""
        return self._states[key]

    def name(
        self, program: Program, hints: Hints, repeated: Sequence[Repeated] = ()
    ) -> NamedProgram:
        """Names a program's dimensions. Those of its variables keep these names in later ones.

        Args:
            program: The program.
            hints: Names for arguments and variables.
            repeated: Groups of layers that it repeats.

        Raises:
            ArgumentError: A dimension that was to be renamed does not exist.
            LayoutError: The mesh's layout has a rule for a dimension that does not exist, or a
                region one that its layers do not have.
        """
        named = NamedProgram(program, self.names, self.known_names, hints, repeated)
        self._all_names.update(named.names.values())
        if named.repeats is not None:
            self._all_names.add(LAYERS)
        check_layout(self.mesh, self._all_names, self.names)
        for pattern, changes in self.settings.regions.items():
            label = f'the region "{pattern}"'
            check_rules(changes, self._all_names, self.names, label)
        self._region_names.add(named)
        for key, value in program.on_entry.items():
            self.known_names.setdefault(key, named.names_of(value))
            self._references[key] = weakref.ref(value.variable)
        return named

    def layout_of(self, named: NamedProgram, mesh: Mesh, value: Value) -> Layout | None:
        """Returns the layout of a variable of a program; None: that of the mesh.

        Raises:
            LayoutError: Those of repeated layers differ.
        """
        stack = named.stack_of(value)
        values = [value] if stack is None else stack.present
        layouts = [self._layouts.of(named, v) for v in values]
        if any(layout is not None for layout in layouts):
            return self._same_layout(values, layouts, mesh)
        regions = [self.layout_by_region(mesh, v) for v in values]
        return self._same_layout(values, regions, mesh)

    def _same_layout(
        self, values: Sequence[Value], layouts: Sequence[Layout | None], mesh: Mesh
    ) -> Layout | None:
        layout = layouts[0]
        for value, other in zip(values, layouts):
            if other != layout:
                raise LayoutError(
                    explain_error(
                        "the repeated layers have one variable for all of them, and rules of "
                        "their own for it.",
                        variables=f"{values[0].path}, {value.path}",
                        layouts=f"{layout}; {other}",
                        way_out="Let patterns of the LayoutMap and of `regions` match this "
                        "variable in all repeated layers, or in none.",
                    )
                )
        if layout is None or len(values) == 1:
            return layout
        axes = mesh.variable_layout.axes(LAYERS)
        return layout.override({LAYERS: "+".join(axes)}) if axes else layout

    def layout_by_region(self, mesh: Mesh, value: Value) -> Layout | None:
        """Returns the layout that a variable has by the region of its layer, and as a slot of
        an optimizer; None: that of the mesh.
        """
        is_slot = id(value.variable) in self.slots
        owner = self._layouts.owner_of(value) if is_slot else id(value.variable)
        region = self.settings.region_of_variable(owner)
        if is_slot:
            return mesh.layout_in(region, "slot")
        return mesh.layout_in(region, "variable") if region != NO_CHANGES else None

    def own_layouts(self, named: NamedProgram) -> list[tuple[str, Layout]]:
        """Returns the layouts that regions and single variables have of their own: the axes of
        their dimensions, if these are not the mesh's.
        """
        mesh = self.mesh
        layouts = []
        for pattern, changes in self.settings.regions.items():
            names = self._region_names.of(pattern)
            rules = _differences(mesh.layout_in(changes), mesh.layout, names)
            layouts.append((pattern, rules))
        for value in named.program.on_entry.values():
            layout = self._layouts.of(named, value)
            if layout is not None and id(value.variable) not in self.slots:
                names = set(named.names_of(value))
                rules = _differences(layout, mesh.variable_layout, names)
                layouts.append((value.path, rules))
        return layouts

    def adopt(self, named: NamedProgram) -> None:
        """Puts a program's variables on the mesh, those that are not there.

        Raises:
            ClusterError: Several processes have other values of a variable.
        """
        is_compared = has_processes(self.mesh)
        used_names = {variable.name for variable in self.variables.values()}
        arrays: dict[str, np.ndarray] = {}
        for key, value in named.program.on_entry.items():
            if key in self.variables and not self._states[key].is_elsewhere:
                continue
            stack = named.stack_of(value)
            together = [value.variable] if stack is None else stack.variables
            present = state_of(value.variable)
            sizes = Shape(named.variable_shape_of(value)).sizes
            if present is not None and self._fits(present, together, sizes):
                self.variables[key] = present.variable
                self._states[key] = present
                continue
            path = path_of(value.variable).replace("/", ".")
            name = unused_name(path, used_names.__contains__)
            used_names.add(name)
            array = np.stack([np.asarray(v.numpy()) for v in together])
            if is_compared:
                arrays[f"the variable {path_of(value.variable)}"] = array
            variable = named.variable(
                self.mesh,
                value,
                name,
                functools.partial(np.asarray, array),
                self.layout_of(named, self.mesh, value),
            )
            self.variables[key] = variable
            self._states[key] = put_on_mesh(together, variable)
        check_processes(self.mesh, arrays, _SEED)

    def _fits(
        self, state: OnMesh, together: Sequence[Any], sizes: Sequence[int]
    ) -> bool:
        """Whether a variable that is on this mesh can be shared: another model has put it there,
        or another one of repeated layers.
        """
        variable = state.variable
        is_same = all(state_of(v) is state for v in together)
        is_same = is_same and len(state.hosts) == len(together)
        is_here = variable.mesh is self.mesh and not state.is_elsewhere
        return is_same and is_here and list(variable.shape.sizes) == list(sizes)

    def drop_unused(self) -> None:
        """Drops variables that nobody has any more, as those of a replaced optimizer: others
        may get their identities.
        """
        for key, reference in list(self._references.items()):
            if reference() is None:
                for table in (self.variables, self._states, self.known_names):
                    table.pop(key, None)
                del self._references[key]

    def next_seed(self) -> Tensor:
        """Returns the seed of the next step, of what draws without a seed: TensorFlow's own
        random operations. (Keras' layers draw by the variables of their seed generators.)
        """
        self._count += 1
        return asarray(self.mesh, np.int32(self._count), "")


def _differences(layout: Layout, outer: Layout, names: set[str]) -> Layout:
    """Returns the rules of a layout that are not those of another one, for some names."""
    rules = {}
    for name in sorted(names):
        axes = layout.axes(name)
        if axes != outer.axes(name):
            rules[name] = "+".join(axes)
    return Layout(rules)
