"""Collectives over one group of devices, as plain TensorFlow ops between them.

Each function takes the tensors and the devices of a group, in order, and returns the
tensor of each device.

    shared_memory   devices share one memory: compute once, return the result to all
    ring            devices have their own memories: chunks go around a ring
    hierarchical    groups with several devices on each of several hosts
    bucketed        several tensors in one collective

    totals = collectives_for(devices).all_reduce(partial_sums, devices, "sum")
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
    """Returns the module with the algorithms for a group of devices.

    Args:
      devices: names of the group's devices.
      separate: whether to treat devices that share one memory as if they did not.
    """
    if share_memory(devices) and not separate:
        return shared_memory
    num_hosts = len({host_of(d) for d in devices})
    return hierarchical if 1 < num_hosts < len(devices) else ring
