"""Collectives over a group of devices, written with plain TensorFlow ops.

Each function takes a list with the tensor of each device of a group, and returns a list with
the result of each device, in the same order. Four modules have these functions:

    shared_memory   for devices that share one memory: one device computes the result
    ring            for devices with separate memories: chunks are sent around a ring
    hierarchical    for groups with several devices on each of several hosts
    bucketed        several tensors in one collective of another module

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

__all__ = ["bucketed", "collectives_for", "hierarchical", "ring", "shared_memory"]


def collectives_for(devices: Sequence[str], separate: bool = False) -> ModuleType:
    """Returns the module with the algorithms for a group of devices.

    Args:
      devices: the names of the group's devices.
      separate: whether to treat devices that share one memory as if each had its own.
    """
    if share_memory(devices) and not separate:
        return shared_memory
    num_hosts = len({host_of(d) for d in devices})
    if 1 < num_hosts < len(devices):
        return hierarchical
    return ring
