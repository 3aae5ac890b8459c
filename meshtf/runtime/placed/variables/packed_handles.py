"""Handles of variables, those that lie alike as one tensor for each position.

A function of hundreds of variables on each of many devices has thousands of inputs,
each an op of the graph. Between CPUs of one process a tensor can hold handles as it
holds numbers.

    handles = Handles(devices, stores)
    tensors, numbers = handles.of(cells)          # and which of the handles are whose
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import Store
from meshtf.runtime.storage.slot import TensorFlowSlot
from meshtf.runtime.storage.variable_slots import tensorflow_slots
from meshtf.runtime.tf_internals.variable_handles import pack_handles

Owners = tuple[
    int, ...
]  # the positions that hold slices of their own; the first of equal ones


class Handles:
    """The handles of stores' variables; where positions share one, it counts as the
    first's.

    Args:
      devices: of each position.
      stores: whose variables.
    """

    def __init__(self, devices: Sequence[str], stores: Sequence[Store]) -> None:
        self.devices = devices
        self._packs: dict[tuple[int, Owners], list[TensorFlowSlot]] = {}
        self._where: dict[
            TensorFlowSlot, tuple[tuple[int, Owners], int]
        ] = {}  # its pack, and which it is
        self._tensors: dict[tuple[int, Owners], Any] = {}
        for store in stores:
            first = {
                cell: p
                for p, cell in reversed(list(enumerate(tensorflow_slots(store))))
                if cell is not None
            }
            owners = tuple(sorted(first.values()))
            for cell, position in first.items():
                pack = self._packs.setdefault((position, owners), [])
                self._where[cell] = (position, owners), len(pack)
                pack.append(cell)

    def spread(self) -> bool:
        """Whether several positions have some."""
        return len({position for position, _ in self._packs}) > 1

    def of(self, cells: Sequence[TensorFlowSlot]) -> tuple[list[Any], list[int]]:
        """Returns tensors of handles, and the number of each cell's among all
        of these.
        """
        packs = dict.fromkeys(self._where[cell][0] for cell in cells)
        first, start = {}, 0
        for pack in packs:
            first[pack] = start
            start += len(self._packs[pack])
        numbers = [first[pack] + k for pack, k in (self._where[cell] for cell in cells)]
        return [self._tensor(pack) for pack in packs], numbers

    def _tensor(self, pack: tuple[int, Owners]) -> Any:
        if pack not in self._tensors:
            handles = [cell.handle for cell in self._packs[pack]]
            self._tensors[pack] = pack_handles(handles, self.devices[pack[0]])
        return self._tensors[pack]


def unpack_handles(handles: Any) -> list[Any]:
    """Returns the handles that a tensor holds."""
    if not handles.shape.rank:
        return [handles]
    return tf.raw_ops.Unpack(value=handles, num=handles.shape[0], axis=0)
