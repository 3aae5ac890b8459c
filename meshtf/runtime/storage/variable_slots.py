"""The slots of a variable: one for each distinct shard on each device.

slots = slots_with(shards, placement, mesh, trainable=True)     # one for each position
for region, slots_of_region in regions_of(slots, shape, placement, mesh):
  ...                                  # a region of the variable, and its slots
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf

from meshtf.mesh import Mesh, Placement
from meshtf.names import Shape
from meshtf.runtime.devices.resolve import devices_of
from meshtf.runtime.storage.sharding import region, shard_keys
from meshtf.runtime.storage.slot import Slot, TensorFlowSlot, make_slots

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
      shards: the initial value of each position's slot; None: it has no slot.
      placement: the placement of the variable.
      mesh: the mesh of the variable.
      trainable: whether optimizers update them.
    """
    keys = list(zip(devices_of(mesh), shard_keys(placement, mesh)))
    values: dict[tuple[str, tuple[int, ...]], Any] = {}
    for key, shard in zip(keys, shards):
        if shard is not None:
            values.setdefault(key, shard)
    devices = [device for device, _ in values]
    new_slots = make_slots(list(values.values()), devices, trainable)
    slots = dict(zip(values, new_slots))
    return [None if shard is None else slots[key] for key, shard in zip(keys, shards)]


class SlotHolder(Protocol):
    """The members of a variable that this module uses."""

    mesh: Mesh
    placement: Placement
    trainable: bool

    def slots(self) -> Sequence[Slot | None]:
        """Returns the slot of each position."""

    def use_slots(self, slots: Sequence[Slot | None]) -> None:
        """Replaces the slots."""

    def read(self) -> list[Any]:
        """Returns each position's shard as a TensorFlow tensor."""


def tensorflow_slots(variable: Any) -> Sequence[Any]:
    """Returns each position's `TensorFlowSlot` of a variable; None: it has no shard.

    If the variable is stored in slots of another class, its shards are moved to
    `TensorFlowSlot`s, and stay there.

    Args:
      variable: a `SlotHolder`: a variable that ops can write.
    """
    slots: Sequence[Any] = variable.slots()
    slot_type = next((type(slot) for slot in slots if slot is not None), TensorFlowSlot)
    if slot_type is TensorFlowSlot:  # all slots of a variable have the same class
        return slots
    holder: SlotHolder = variable
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
    """Returns the distinct regions of a variable, each with all slots that hold it.

    Args:
      slots: the slot of each position; None: it has no shard.
      shape: the shape of the variable.
      placement: its placement.
      mesh: its mesh.
    """
    slots_of_shards: dict[tuple[int, ...], dict[int, Slot]] = {}
    for key, slot in zip(shard_keys(placement, mesh), slots):
        if slot is not None:
            slots_of_shards.setdefault(key, {})[id(slot)] = slot
    return [
        (region(shape, placement, key, mesh), list(slots_of_shard.values()))
        for key, slots_of_shard in slots_of_shards.items()
    ]
