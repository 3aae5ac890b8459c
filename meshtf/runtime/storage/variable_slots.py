"""The slots of a variable. A slot stores one shard on one device.

    slots = slots_with(shards, placement, mesh, trainable=True)   # the slot of each position
    for region, slots_of_region in regions_of(slots, shape, placement, mesh):
        ...                          # a region of the variable, and all its slots

Mesh positions (elements of the mesh's grid) that are on the same device and have the same
shard share a slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf

from meshtf.mesh import Mesh, Placement
from meshtf.names import Shape
from meshtf.runtime.devices.resolve import devices_of
from meshtf.runtime.storage.sharding import ShardKey, region, shard_keys
from meshtf.runtime.storage.slot import Slot, TensorFlowSlot, make_slots
from meshtf.runtime.storage.write_times import record_write

# The region of a global array that a shard covers: a slice for each dimension.
Region = tuple[slice, ...]


def slots_with(
    shards: Sequence[Any],
    placement: Placement,
    mesh: Mesh,
    trainable: bool,
) -> list[TensorFlowSlot | None]:
    """Returns the slot of each position; positions of one device with equal shards share
    a slot.

    Args:
      shards: the initial value of each position's slot; None: the position has no slot.
      placement: the placement of the variable.
      mesh: the mesh of the variable.
      trainable: whether optimizers update the variable.
    """
    # Positions with equal keys share a slot; the shard key says which shard a position has.
    keys = list(zip(devices_of(mesh), shard_keys(placement, mesh)))
    value_of: dict[tuple[str, ShardKey], Any] = {}
    for key, shard in zip(keys, shards):
        if shard is not None:
            value_of.setdefault(key, shard)
    devices = [device for device, _shard_key in value_of]
    new_slots = make_slots(list(value_of.values()), devices, trainable)
    slot_of = dict(zip(value_of, new_slots))
    slots: list[TensorFlowSlot | None] = []
    for key, shard in zip(keys, shards):
        slots.append(None if shard is None else slot_of[key])
    return slots


class SlotHolder(Protocol):
    """The members of a variable that this module uses."""

    mesh: Mesh
    placement: Placement
    trainable: bool

    def slots(self) -> Sequence[Slot | None]:
        """Returns the slot of each position; None: the position has no shard."""

    def use_slots(self, slots: Sequence[Slot | None]) -> None:
        """Replaces the slots by `slots`, which have the values already."""

    def read(self) -> list[Any]:
        """Returns each position's shard as a TensorFlow tensor."""


def use_value_of(variable: Any, other: Any) -> None:
    """Makes the value of one variable that of another, of the same shape and placement, which
    must not be used any more.

    Args:
      variable: the `SlotHolder` whose value is replaced.
      other: the `SlotHolder` with the value.
    """
    record_write(variable)
    slots: Sequence[Slot | None] = variable.slots()
    if not all(slot is None or isinstance(slot, TensorFlowSlot) for slot in slots):
        variable.use_slots(other.slots())  # programs look slots up in each call
        return
    for slot, other_slot in zip(slots, other.slots()):
        if slot is not None:
            slot.assign(other_slot.value_on(slot.device))


def tensorflow_slots(variable: Any) -> Sequence[Any]:
    """Returns the `TensorFlowSlot` of each position; None: the position has no shard.

    If the variable is stored in slots of another class, its shards are moved to
    `TensorFlowSlot`s, and stay there.

    Args:
      variable: a `SlotHolder`, such as a `Variable`.
    """
    slots: Sequence[Any] = variable.slots()
    if all(slot is None or isinstance(slot, TensorFlowSlot) for slot in slots):
        return slots
    holder: SlotHolder = variable
    # Outside of any function that is being traced, so that the slots outlive it.
    with tf.init_scope():
        shards = holder.read()
        new_slots = slots_with(shards, holder.placement, holder.mesh, holder.trainable)
    holder.use_slots(new_slots)
    return new_slots


def regions_of(
    slots: Sequence[Slot | None],
    shape: Shape,
    placement: Placement,
    mesh: Mesh,
) -> list[tuple[Region, list[Slot]]]:
    """Returns (region, slots) for the distinct regions of a variable: a region, and all
    slots that store it.

    Args:
      slots: the slot of each position; None: the position has no shard.
      shape: the shape of the variable.
      placement: the placement of the variable.
      mesh: the mesh of the variable.
    """
    # {shard key: {id of a slot: slot}}: positions may share a slot.
    slots_of_shards: dict[ShardKey, dict[int, Slot]] = {}
    for key, slot in zip(shard_keys(placement, mesh), slots):
        if slot is not None:
            slots_of_shards.setdefault(key, {})[id(slot)] = slot
    regions = []
    for key, slots_of_shard in slots_of_shards.items():
        bounds = region(shape, placement, key, mesh)
        if all(dim.start < dim.stop for dim in bounds):  # it is not all padding
            regions.append((bounds, list(slots_of_shard.values())))
    return regions
