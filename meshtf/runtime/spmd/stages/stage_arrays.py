"""Variables, arguments and results of a mesh with pipeline stages: a `jax.Array` for each
stage that has them.

    variable_arrays(variable)                    # {stage: VariableArray}
    argument_array(store, layout, mesh, stage)   # the jax.Array on one stage
    shards = StageShards(mesh, {1: DeviceShards(array, layout)})
    shards[5]                                    # the shard of mesh position 5
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from meshtf.graph import Store
from meshtf.mesh import Mesh
from meshtf.ops.variables.read_write import ScalarStore
from meshtf.runtime.spmd.live.device_arrays import ArrayLayout, DeviceShards
from meshtf.runtime.spmd.live.jax_errors import memory_errors
from meshtf.runtime.spmd.live.jax_slot import JaxSlot, VariableArray
from meshtf.runtime.spmd.stages.stage_meshes import (
    positions_on,
    stage_meshes,
    stages_of,
)
from meshtf.runtime.storage.argument_storage import ArrayStore


class StageShards(Sequence[Any]):
    """The shard of a value at each mesh position, as a sequence; None at positions whose
    stage does not have the value.

    Args:
      mesh: the mesh.
      shards_by_stage: {stage: its shards}, for the stages that have the value.
    """

    def __init__(self, mesh: Mesh, shards_by_stage: Mapping[int, DeviceShards]) -> None:
        self.shards_by_stage = shards_by_stage
        # {mesh position: (its stage, its position on the mesh of that stage)}
        self._positions_on_stages: dict[int, tuple[int, int]] = {}
        for stage in range(mesh.num_stages):
            for position_on_stage, position in enumerate(positions_on(mesh, stage)):
                self._positions_on_stages[position] = stage, position_on_stage

    def __len__(self) -> int:
        return len(self._positions_on_stages)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        position = range(len(self))[index]  # counts negative indices from the end
        stage, position_on_stage = self._positions_on_stages[position]
        if stage not in self.shards_by_stage:
            return None
        return self.shards_by_stage[stage][position_on_stage]

    def __iter__(self) -> Iterator[Any]:
        return (self[position] for position in range(len(self)))


def argument_array(store: Store, layout: ArrayLayout, mesh: Mesh, stage: int) -> Any:
    """Returns the `jax.Array` of an argument, or of a captured tensor, on a stage.

    Args:
      store: the store of the argument.
      layout: the layout of the array on the mesh of the stage.
      mesh: the mesh of all stages.
      stage: the stage.
    """
    if isinstance(store, ArrayStore):
        return layout.global_array(store.array)
    if isinstance(store, ScalarStore):
        return layout.global_array(np.asarray(store.value, layout.dtype))
    shards = store.read()
    if isinstance(shards, StageShards):
        return shards.shards_by_stage[stage].array
    return layout.array([shards[position] for position in positions_on(mesh, stage)])


def variable_arrays(variable: Any) -> dict[int, VariableArray]:
    """Returns the array of a variable on each stage that has it. A variable whose shards are
    in slots (storage of one shard) of another class is copied to the devices of its mesh,
    and has its value there from now on.

    Args:
      variable: a `storage.variable_slots.SlotHolder`.
    """
    mesh: Mesh = variable.mesh
    slots: Sequence[Any] = variable.slots()
    # The slots of one stage are of one class, and those on jax share one array.
    first_slots = {
        stage: slots[positions_on(mesh, stage)[0]]
        for stage in stages_of(mesh, variable.placement)
    }
    if all(isinstance(slot, JaxSlot) for slot in first_slots.values()):
        return {stage: slot.value for stage, slot in first_slots.items()}
    # Positions with equal shards share a slot, which is read once.
    shards: dict[int, np.ndarray] = {
        id(slot): slot.read() for slot in slots if slot is not None
    }
    arrays = arrays_of_stages(variable, [shards.get(id(slot)) for slot in slots])
    return use_arrays(variable, arrays)


def arrays_of_stages(variable: Any, shards: Sequence[Any]) -> dict[int, Any]:
    """Returns the `jax.Array` of a variable on each stage that has it.

    Args:
      variable: a `storage.variable_slots.SlotHolder`.
      shards: the shard of each position; None: its stage does not have the variable.
    """
    mesh: Mesh = variable.mesh
    arrays = {}
    for stage in stages_of(mesh, variable.placement):
        layout = ArrayLayout(
            variable.spec, variable.placement, stage_meshes(mesh)[stage]
        )
        with memory_errors(f"the variable {variable.name}"):
            arrays[stage] = layout.array(
                [shards[position] for position in positions_on(mesh, stage)]
            )
    return arrays


def use_arrays(variable: Any, arrays: Mapping[int, Any]) -> dict[int, VariableArray]:
    """Makes arrays the current value of a variable, and returns them as `VariableArray`s.

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
        for position_on_stage, position in enumerate(positions_on(mesh, stage)):
            slots[position] = JaxSlot(values[stage], position_on_stage)
    variable.use_slots(slots)
    return values
