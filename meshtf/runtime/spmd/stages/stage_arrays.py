"""Variables, arguments and results of a live mesh: a `jax.Array` for each pipeline stage that
has them. A mesh without an axis of stages has one stage, 0.

    variable_arrays(variable)                    # {stage: VariableArray}
    use_shards(variable, shards)                 # the same, after an assignment
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
    return _array_on_stage(store.read(), layout, mesh, stage)


def _array_on_stage(
    shards: Sequence[Any], layout: ArrayLayout, mesh: Mesh, stage: int
) -> Any:
    """Returns the `jax.Array` of a stage, given the shards of all mesh positions: those of a
    program's result are on the devices already, others are tensors on the host.
    """
    if isinstance(shards, DeviceShards):
        return shards.array
    if isinstance(shards, StageShards):
        return shards.shards_by_stage[stage].array
    return layout.array([shards[position] for position in positions_on(mesh, stage)])


class _Slots(list[JaxSlot | None]):
    """The slots (storage of one shard) of a variable, one for each mesh position; None: its
    stage does not have the variable.

    Args:
      mesh: the mesh of the variable.
      arrays: {stage: the array of the variable}, for the stages that have it.
    """

    def __init__(self, mesh: Mesh, arrays: dict[int, VariableArray]) -> None:
        super().__init__([None] * mesh.size)
        self.arrays = arrays
        for stage, array in arrays.items():
            for position_on_stage, position in enumerate(positions_on(mesh, stage)):
                self[position] = JaxSlot(array, position_on_stage)


def variable_arrays(variable: Any) -> dict[int, VariableArray]:
    """Returns the array of a variable on each stage that has it. A variable whose shards are
    in slots of another class is copied to the devices of its mesh, and has its value there
    from now on.

    Args:
      variable: a `storage.variable_slots.SlotHolder`.
    """
    slots: Sequence[Any] = variable.slots()
    if isinstance(slots, _Slots):
        return slots.arrays
    # Positions with equal shards share a slot, which is read once.
    shards: dict[int, np.ndarray] = {
        id(slot): slot.read() for slot in slots if slot is not None
    }
    return use_shards(variable, [shards.get(id(slot)) for slot in slots])


def use_shards(variable: Any, shards: Sequence[Any]) -> dict[int, VariableArray]:
    """Makes shards the current value of a variable, and returns its array on each stage that
    has it.

    Args:
      variable: a `storage.variable_slots.SlotHolder`.
      shards: the shard of each mesh position: those of a program's result, whose array the
        variable takes, or tensors on the host. None: its stage does not have the variable.
    """
    mesh: Mesh = variable.mesh
    arrays = {}
    for stage in stages_of(mesh, variable.placement):
        layout = ArrayLayout(
            variable.spec, variable.placement, stage_meshes(mesh)[stage]
        )
        with memory_errors(f"the variable {variable.name}"):
            array = _array_on_stage(shards, layout, mesh, stage)
        arrays[stage] = VariableArray(layout, array, mesh)
    variable.use_slots(_Slots(mesh, arrays))
    return arrays
