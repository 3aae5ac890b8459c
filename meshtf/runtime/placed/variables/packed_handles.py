"""Variable handles, packed into few tensors for each mesh position.

A function of hundreds of variables on each of many devices has thousands of inputs, each
of them a node of the program. Among CPUs of one process a tensor of data type resource
can hold several handles.

    handles = Handles(devices, stores)
    tensors, indices = handles.of(slots)
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
    """The key of a tensor of handles: it has the handles that one position owns, of all
    variables with the same owners.

    The owner of a slot is the first position that has it.
    """

    position: int
    owners: tuple[int, ...]


class Handles:
    """The packed handles of variables.

    Args:
      devices: the device of each position.
      stores: the variables.
    """

    def __init__(self, devices: Sequence[str], stores: Sequence[Store]) -> None:
        self.devices = devices
        self._slots: dict[_Pack, list[TensorFlowSlot]] = {}
        self._pack: dict[TensorFlowSlot, _Pack] = {}
        self._index: dict[TensorFlowSlot, int] = {}  # within its pack
        self._tensors: dict[_Pack, Any] = {}
        for store in stores:
            owner: dict[TensorFlowSlot, int] = {}
            for position, slot in enumerate(tensorflow_slots(store)):
                if slot is not None:
                    owner.setdefault(slot, position)
            owners = tuple(sorted(owner.values()))
            for slot, position in owner.items():
                self._add(slot, _Pack(position, owners))

    def _add(self, slot: TensorFlowSlot, pack: _Pack) -> None:
        slots = self._slots.setdefault(pack, [])
        self._pack[slot] = pack
        self._index[slot] = len(slots)
        slots.append(slot)

    def on_several_positions(self) -> bool:
        """Returns whether more than one position owns handles."""
        return len({pack.position for pack in self._slots}) > 1

    def of(self, slots: Sequence[TensorFlowSlot]) -> tuple[list[Any], list[int]]:
        """Returns tensors of handles, and the index of each slot's handle in their
        concatenation.
        """
        packs = list(dict.fromkeys(self._pack[slot] for slot in slots))
        start: dict[_Pack, int] = {}
        count = 0
        for pack in packs:
            start[pack] = count
            count += len(self._slots[pack])
        indices = [start[self._pack[slot]] + self._index[slot] for slot in slots]
        return [self._tensor(pack) for pack in packs], indices

    def _tensor(self, pack: _Pack) -> Any:
        if pack not in self._tensors:
            handles = [slot.handle for slot in self._slots[pack]]
            self._tensors[pack] = pack_handles(handles, self.devices[pack.position])
        return self._tensors[pack]


def unpack_handles(handles: Any) -> list[Any]:
    """Returns the handles that a tensor holds."""
    if not handles.shape.rank:
        return [handles]
    return tf.raw_ops.Unpack(value=handles, num=handles.shape[0], axis=0)
