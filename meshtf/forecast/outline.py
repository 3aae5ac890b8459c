"""The outline of a forecast: time, memory and bytes received of a whole program, without its
ops. It takes a third of the time of a forecast.

    outline(build(nodes, results, mesh), hardware).peak
"""

from __future__ import annotations

import dataclasses

from meshtf.forecast.communication import received_bytes
from meshtf.forecast.memory.peak_memory import Timelines, by_stage
from meshtf.forecast.report_data import StepTime
from meshtf.forecast.time.local_sizes import durations_of
from meshtf.forecast.time.schedule import Schedule
from meshtf.forecast.time.step_time import time_of
from meshtf.hardware import Hardware
from meshtf.partition import Program, with_overlap
from meshtf.partition.cost import local_bytes


@dataclasses.dataclass(frozen=True)
class Outline:
    """What a program needs on one device.

    Attributes:
      time: the predicted time of a step.
      peak: the bytes at the peak of memory, at the stage that needs the most.
      received: the bytes that a device receives, as the mean over the stages.
    """

    time: StepTime
    peak: float
    received: float


def outline(program: Program, hardware: Hardware) -> Outline:
    """Returns the outline of a program's forecast.

    Args:
      program: the planned program.
      hardware: the profile of the devices.
    """
    program = with_overlap(program, hardware.platform)
    schedule = Schedule(program, durations_of(program, hardware))
    return Outline(
        time=time_of(schedule),
        peak=_peak_bytes(program, hardware),
        received=received_bytes(program),
    )


def _peak_bytes(program: Program, hardware: Hardware) -> float:
    """Returns the bytes at the peak of memory, those of variables and arguments included."""
    mesh = program.mesh
    timelines = Timelines(program, set(), hardware.fuses, hardware.platform)
    return max(
        peak.everything + sum(local_bytes(x.spec, x.placement, mesh) for x in stored)
        for peak, stored in zip(
            timelines.peaks(), by_stage(program.stores, mesh), strict=True
        )
    )
