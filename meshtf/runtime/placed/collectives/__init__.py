"""Collectives over one group of devices, as plain TensorFlow ops between them.

Each takes the group's tensors and devices in order and returns the group's results.
`alias` computes once and shares, where devices see one memory; `ring` passes pieces
around, where they do not; `hierarchy` does so between hosts, where several devices of
each are in the group. `buckets` has several tensors go as one.

    totals = collectives_for(devices).all_reduce(parts, devices, "sum")
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from meshtf.runtime.devices.names import host_of
from meshtf.runtime.devices.resolve import share_memory
from meshtf.runtime.placed.collectives import (
    bucketed,
    hierarchical,
    ring,
    shared_memory,
)

__all__ = ["shared_memory", "bucketed", "collectives_for", "hierarchical", "ring"]


def collectives_for(devices: Sequence[str], separate: bool = False) -> ModuleType:
    """Returns the algorithms for a group: by where its devices are.

    Args:
      devices: names of the group's devices.
      separate: whether devices that see one memory are treated as if they did not.
    """
    if share_memory(devices) and not separate:
        return shared_memory
    return (
        hierarchical if 1 < len({host_of(d) for d in devices}) < len(devices) else ring
    )
