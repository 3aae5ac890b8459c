"""The clock of a calibration: wall time, or the processor time of this process.

    clock = clock_of("spmd:cpu:8")
    start = clock.now()
    seconds = clock.now() - start

Devices that share the cores of this machine take the processor time of all their work, divided
by the cores. Unlike wall time it does not count other programs.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple


class Clock(NamedTuple):
    """A clock.

    Attributes:
      name: "wall" or "processor".
      cores: by how many cores processor time is divided.
    """

    name: str
    cores: int = 1

    def now(self) -> float:
        """Returns seconds; only differences have a meaning."""
        if self.name == "wall":
            return time.perf_counter()
        return time.process_time() / self.cores


WALL = Clock("wall")


def clock_of(devices: str | None, num_devices: int) -> Clock:
    """Returns the processor clock for CPU devices, otherwise the wall clock.

    Args:
      devices: the devices, as `Mesh` takes them.
      num_devices: their count, which may be less than that of the cores.
    """
    if not on_cpus(devices):
        return WALL
    cores = len(os.sched_getaffinity(0))
    return Clock("processor", min(cores, num_devices))


def on_cpus(devices: str | None) -> bool:
    """Returns whether positions compute on CPUs; devices without a name are taken for some."""
    return not any(kind in (devices or "").lower() for kind in ("gpu", "cuda", "tpu"))
