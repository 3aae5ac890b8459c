"""The memory of a program for many sizes of axes and dimensions at once: one plan, and arrays
in place of sizes.

timelines = timelines_of(program, hardware)
memory_of(timelines, durations)          # bytes [sizes]
"""

from __future__ import annotations

from typing import Any

from meshtf.forecast.memory.allocations import Allocation
from meshtf.forecast.memory.peak_memory import Timelines, by_stage
from meshtf.forecast.time.durations import Durations
from meshtf.graph import Store
from meshtf.hardware import Hardware
from meshtf.mesh import Mesh
from meshtf.partition import Program, Value, walk
from meshtf.partition.cost import local_bytes


def timelines_of(program: Program, hardware: Hardware) -> Timelines:
    """Returns when each value of a program is live."""
    return Timelines(program, set(), hardware.fuses, hardware.platform)


def memory_of(timelines: Timelines, durations: Durations) -> Any:
    """Returns the bytes of a device at the moment of the plan's peak, for all sizes."""
    peaks = [peak.everything for peak in timelines.peaks()]
    stage = peaks.index(max(peaks))
    total = _stored_bytes(timelines.program, durations, stage)
    for live in timelines.live(stage):
        total = total + _live_bytes(live, timelines.mesh, durations)
    return total


def _live_bytes(live: Allocation, mesh: Mesh, durations: Durations) -> Any:
    """Returns the bytes on a device of a value that is live, which was planned for a mesh, for
    all sizes.
    """
    if live.spec is None:
        return live.bytes
    # XLA may store fewer bytes than the shard has, which does not depend on sizes.
    planned_bytes = local_bytes(live.spec, live.placement, mesh)
    shard_bytes = durations.shard_bytes(live.spec, live.placement)
    return shard_bytes * (live.bytes / planned_bytes)


def _stored_bytes(program: Program, durations: Durations, stage: int) -> Any:
    """Returns the bytes of variables and arguments on a device of a stage, for all sizes."""
    # A program that was recorded on another mesh only knows the placements of its reads.
    stored: dict[Store, Value] = {}
    for step, _ in walk(program):
        stored.update(zip(step.reads, step.outputs))
        for store in step.writes:
            stored.setdefault(store, Value(store.spec, store.placement))
    of_stage = by_stage(stored.values(), program.mesh)[stage]
    total: Any = 0.0
    for value in of_stage:
        total = total + durations.local_bytes(value)
    return total
