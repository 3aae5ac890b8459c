"""Variable handles, packed into few tensors for each mesh position.

A function of hundreds of variables that is called on many devices has thousands of inputs,
and each input is a node of the program. On CPUs of one process, a tensor of data type
resource can contain several handles, so a device needs few inputs.

A slot stores the shard of a variable at a mesh position (an element of the mesh's grid).
Positions of one device with equal shards share a slot; the first of them is called the
owner of the slot.

    handles = PackedHandles(devices, stores)
    tensors, indices = handles.locate(slots)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.graph import Store
from meshtf.runtime.storage.slot import TensorFlowSlot
from meshtf.runtime.storage.variable_slots import tensorflow_slots
from meshtf.runtime.tf_internals.variable_handles import pack_handles


class _Pack(NamedTuple):
    """The key of a tensor of handles: those of all slots with the same owner, in variables
    whose slots have the same set of owners.

    So the packs of these owners have the same variables in the same order: a handle's index
    does not depend on the position, and positions can call one traced function.

    Attributes:
      position: the owner of the slots.
      owners: the owners of all slots of each of the variables, in ascending order.
    """

    position: int
    owners: tuple[int, ...]


class PackedHandles:
    """The packed handles of variables.

    Args:
      devices: the device of each position.
      stores: the variables whose handles are packed.
    """

    def __init__(self, devices: Sequence[str], stores: Sequence[Store]) -> None:
        self.devices = devices
        self._slots_of: dict[_Pack, list[TensorFlowSlot]] = {}
        self._pack_of: dict[TensorFlowSlot, _Pack] = {}
        # The index of each slot's handle in its pack.
        self._index_of: dict[TensorFlowSlot, int] = {}
        # The tensor of each pack, once it was needed.
        self._tensors: dict[_Pack, Any] = {}
        for store in stores:
            owner_of: dict[TensorFlowSlot, int] = {}
            for position, slot in enumerate(tensorflow_slots(store)):
                # A position outside of the variable's pipeline stage has no slot.
                if slot is not None:
                    owner_of.setdefault(slot, position)
            owners = tuple(sorted(owner_of.values()))
            for slot, position in owner_of.items():
                self._add(slot, _Pack(position, owners))

    def _add(self, slot: TensorFlowSlot, pack: _Pack) -> None:
        """Adds the handle of a slot to a pack."""
        slots = self._slots_of.setdefault(pack, [])
        self._pack_of[slot] = pack
        self._index_of[slot] = len(slots)
        slots.append(slot)

    def on_several_positions(self) -> bool:
        """Returns whether more than one position owns handles."""
        return len({pack.position for pack in self._slots_of}) > 1

    def locate(self, slots: Sequence[TensorFlowSlot]) -> tuple[list[Any], list[int]]:
        """Returns (tensors of handles, index of each slot's handle in their
        concatenation). The tensors may also have handles of other slots.

        Args:
          slots: the slots that a function uses.
        """
        # The packs of the slots, each once, in the order of their first slots.
        packs = list(dict.fromkeys(self._pack_of[slot] for slot in slots))
        start_of: dict[_Pack, int] = {}
        num_handles = 0
        for pack in packs:
            start_of[pack] = num_handles
            num_handles += len(self._slots_of[pack])
        indices = [
            start_of[self._pack_of[slot]] + self._index_of[slot] for slot in slots
        ]
        return [self._tensor(pack) for pack in packs], indices

    def _tensor(self, pack: _Pack) -> Any:
        """Returns the tensor with the handles of a pack, on the device of its position."""
        if pack not in self._tensors:
            handles = [slot.handle for slot in self._slots_of[pack]]
            self._tensors[pack] = pack_handles(handles, self.devices[pack.position])
        return self._tensors[pack]


def unpack_handles(handles: Any) -> list[Any]:
    """Returns the handles of a tensor: a scalar, or a vector of several handles."""
    if handles.shape.rank == 0:
        return [handles]
    return tf.raw_ops.Unpack(value=handles, num=handles.shape[0], axis=0)
