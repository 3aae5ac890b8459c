"""The slots of a variable: one for each distinct shard on each device.

slots = slots_with(shards, placement, mesh, trainable=True)     # of each position
for region, holders in regions_of(slots, shape, placement, mesh):
  ...                                      # a region of the variable, and its slots
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
    shards: Sequence[Any], placement: Placement, mesh: Mesh, trainable: bool
) -> list[TensorFlowSlot | None]:
    """Returns each position's slot; positions of one device with equal shards share
    theirs.

    Args:
      shards: the initial value of each position's slot; None: it has no slot.
      placement: of the variable.
      mesh: where the slots lie.
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


class Holder(Protocol):
    """What is asked of a variable that has slots."""

    mesh: Mesh
    placement: Placement
    trainable: bool

    def slots(self) -> Sequence[Slot | None]:
        """Returns each position's slot."""

    def use_slots(self, slots: Sequence[Slot | None]) -> None:
        """Lets other slots hold it."""

    def read(self) -> list[Any]:
        """Returns each position's shard as a TensorFlow tensor."""


def tensorflow_slots(variable: Any) -> Sequence[Any]:
    """Returns each position's `TensorFlowSlot` of a variable; None: it has none.

    Shards in slots of another form are moved into such ones, and stay there.

    Args:
      variable: a `Holder`, which a `Store` is that ops write.
    """
    slots: Sequence[Any] = variable.slots()
    form = next((type(slot) for slot in slots if slot is not None), TensorFlowSlot)
    if form is TensorFlowSlot:  # slots of one variable have one form
        return slots
    holder: Holder = variable
    with tf.init_scope():
        shards = holder.read()
        new_slots = slots_with(shards, holder.placement, holder.mesh, holder.trainable)
    holder.use_slots(new_slots)
    return new_slots


def regions_of(
    slots: Sequence[Slot | None], shape: Shape, placement: Placement, mesh: Mesh
) -> list[tuple[Region, list[Slot]]]:
    """Returns the distinct regions of a variable, each with all slots that hold it.

    Args:
      slots: of each position.
      shape: of the variable.
      placement: how it is sharded.
      mesh: where the slots lie.
    """
    slots_of_shards: dict[tuple[int, ...], dict[int, Slot]] = {}
    for key, slot in zip(shard_keys(placement, mesh), slots):
        if slot is not None:
            slots_of_shards.setdefault(key, {})[id(slot)] = slot
    return [
        (region(shape, placement, key, mesh), list(holders.values()))
        for key, holders in slots_of_shards.items()
    ]
