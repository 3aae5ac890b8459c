"""Variables, arguments and results of a mesh with pipeline stages: an array for each stage
that has them.

    variable_arrays(variable)            # {stage: VariableArray}
    argument_array(store, layout, mesh, stage)
    StageShards(mesh, {1: DeviceShards(array, layout)})[5]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from meshtf.graph import Store
from meshtf.mesh import Mesh
from meshtf.runtime.spmd.live.device_arrays import ArrayLayout, DeviceShards
from meshtf.runtime.spmd.live.jax_slot import JaxSlot, VariableArray
from meshtf.runtime.spmd.stages.stage_meshes import (
    num_stages,
    positions_on,
    stage_meshes,
    stages_of,
)
from meshtf.runtime.storage.argument_storage import ArrayStore


class StageShards(Sequence[Any]):
    """The shards of a value at each position; None: its stage does not have the value.

    Args:
      mesh: the mesh.
      shards: {stage: its shards}, for the stages that have the value.
    """

    def __init__(self, mesh: Mesh, shards: Mapping[int, DeviceShards]) -> None:
        self.shards = shards
        # The stage of each position, and its index on the mesh of that stage.
        self._positions: dict[int, tuple[int, int]] = {}
        for stage in range(num_stages(mesh)):
            for index, position in enumerate(positions_on(mesh, stage)):
                self._positions[position] = stage, index

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        stage, index_on_stage = self._positions[range(len(self))[index]]
        if stage not in self.shards:
            return None
        return self.shards[stage][index_on_stage]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))


def argument_array(store: Store, layout: ArrayLayout, mesh: Mesh, stage: int) -> Any:
    """Returns the `jax.Array` of an argument, or of a captured tensor, on a stage.

    Args:
      store: the store of the argument.
      layout: how the array consists of shards, on the mesh of the stage.
      mesh: the mesh of all stages.
      stage: the stage.
    """
    if isinstance(store, ArrayStore):
        return layout.global_array(store.array)
    shards = store.read()
    if isinstance(shards, StageShards):
        return shards.shards[stage].array
    return layout.array([shards[p] for p in positions_on(mesh, stage)])


def variable_arrays(variable: Any) -> dict[int, VariableArray]:
    """Returns the array of a variable on each stage that has it. If its shards are in slots
    of another class, they are moved to the devices of its mesh, and stay there.

    Args:
      variable: a `storage.variable_slots.SlotHolder`.
    """
    mesh: Mesh = variable.mesh
    slots: Sequence[Any] = variable.slots()
    slots_of_stages = {
        stage: [slots[p] for p in positions_on(mesh, stage)]
        for stage in stages_of(mesh, variable.placement)
    }
    if all(isinstance(xs[0], JaxSlot) for xs in slots_of_stages.values()):
        return {stage: xs[0].value for stage, xs in slots_of_stages.items()}
    arrays = {}
    for stage, stage_slots in slots_of_stages.items():
        shards: dict[int, np.ndarray] = {id(x): x.read() for x in stage_slots}
        layout = ArrayLayout(
            variable.spec, variable.placement, stage_meshes(mesh)[stage]
        )
        arrays[stage] = layout.array([shards[id(x)] for x in stage_slots])
    return use_arrays(variable, arrays)


def use_arrays(variable: Any, arrays: Mapping[int, Any]) -> dict[int, VariableArray]:
    """Makes arrays the present value of a variable.

    Args:
      variable: a `storage.variable_slots.SlotHolder`.
      arrays: the `jax.Array` of each stage that has the variable.
    """
    mesh: Mesh = variable.mesh
    slots: list[JaxSlot | None] = [None] * mesh.size
    values = {}
    for stage, array in arrays.items():
        layout = ArrayLayout(
            variable.spec, variable.placement, stage_meshes(mesh)[stage]
        )
        values[stage] = VariableArray(layout, array, mesh)
        for index, position in enumerate(positions_on(mesh, stage)):
            slots[position] = JaxSlot(values[stage], index)
    variable.use_slots(slots)
    return values
