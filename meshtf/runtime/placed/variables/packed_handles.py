"""Handles of variables, several as one tensor for each position.

A function of hundreds of variables on each of many devices has thousands of inputs,
each a node of the program. Between CPUs of one process a tensor can hold handles as it
holds numbers.

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
    """Which handles are one tensor: those of one position whose variables have the same
    owners.

    A position owns a shard if it has it and no position before it shares its slot.
    """

    position: int
    owners: tuple[int, ...]


class Handles:
    """The handles of stores' variables; one that positions share belongs to the first.

    Args:
      devices: of each position.
      stores: whose variables.
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
        """Whether several positions own some."""
        return len({pack.position for pack in self._slots}) > 1

    def of(self, slots: Sequence[TensorFlowSlot]) -> tuple[list[Any], list[int]]:
        """Returns tensors of handles, and the index of each slot's among all that these
        hold.
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
