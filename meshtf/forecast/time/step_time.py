"""The predicted time of a step, as a forecast has it.

time, timeline = step_time(program, hardware)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshtf.forecast.report_data import StepTime, TimelineSpan
from meshtf.forecast.time.durations import Durations
from meshtf.forecast.time.local_sizes import durations_of
from meshtf.forecast.time.model_flops import model_flops
from meshtf.forecast.time.schedule import Schedule, Span
from meshtf.hardware import Hardware
from meshtf.partition import Program, walk


def step_time(
    program: Program,
    hardware: Hardware | None,
) -> tuple[StepTime | None, tuple[TimelineSpan, ...]]:
    """Returns the predicted time of a program, and what its stages do when.

    Args:
      program: the planned program.
      hardware: the profile of the devices; None: the time is not known.
    """
    if hardware is None:
        return None, ()
    spans: list[Span] = []
    schedule = Schedule(program, durations_of(program, hardware), spans)
    return time_of(schedule), tuple(map(_plain_span, spans))


def time_of(schedule: Schedule) -> StepTime:
    """Returns the predicted time of a simulated program."""
    program, durations = schedule.program, schedule.durations
    hardware = durations.hardware
    dtype = peak_dtype(program, durations)
    times = step_times(schedule, dtype)
    plain = {name: float(value) for name, value in times.items()}
    peak = hardware.peak_flops(dtype) * program.mesh.size
    flops_at_peak = peak * max(plain["seconds"], 1e-30)
    collectives = {axes: float(s) for axes, s in schedule.totals.collectives.items()}
    ordered = sorted(collectives.items(), key=lambda item: -item[1])
    calls = plain["seconds"] - float(schedule.end)
    totals = {**schedule.totals.work, "call": calls}
    work = sorted(totals.items(), key=lambda item: -item[1])
    return StepTime(
        hardware=hardware.name,
        source=hardware.sources.get("matmul_flops", ""),
        work=tuple((kind, float(s)) for kind, s in work if s),
        collectives=tuple((axes, s) for axes, s in ordered if s),
        mfu=model_flops(program, durations) / flops_at_peak,
        **plain,
    )


def _plain_span(span: Span) -> TimelineSpan:
    """Returns a span as plain data."""
    path = ""
    line = ""
    if span.node is not None:
        path = "/".join(span.node.path)
        source = span.node.source
        line = f"{source.file}:{source.line}" if source.file else ""
    return TimelineSpan(
        stage=span.stage,
        kind=span.kind,
        title=span.title,
        path=path,
        line=line,
        start=float(span.start),
        end=float(span.end),
        runs=span.runs,
    )


def step_seconds(schedule: Schedule, end: Any = None) -> Any:
    """Returns the seconds of a step, with those of its call; an array if the schedule has
    arrays.

    Args:
      schedule: the simulated program.
      end: when its last step ends; None: as the schedule says.
    """
    if end is None:
        end = schedule.end
    hardware = schedule.durations.hardware
    calls = hardware.call_seconds + hardware.array_seconds * _num_stores(schedule)
    calls = calls * hardware.work_factor("call")
    # Where devices compute on their own, the host prepares the next call meanwhile.
    if hardware.overlaps:
        return np.maximum(end, calls)
    return end + calls


def step_times(schedule: Schedule, dtype: str) -> dict[str, Any]:
    """Returns the values of `StepTime` that are numbers, by name; arrays if the schedule has
    arrays.

    Args:
      schedule: the simulated program.
      dtype: the dtype of its matmuls.
    """
    totals = schedule.totals
    hardware = schedule.durations.hardware
    seconds = step_seconds(schedule)
    busy: Any = sum(schedule.busy) / len(schedule.busy)
    computes = totals.matmuls + totals.other_ops
    idle = np.maximum(schedule.end - busy, 0.0)
    has_stages = len(schedule.busy) > 1
    peak = hardware.peak_flops(dtype)
    flops = np.maximum(totals.matmul_flops, 1e-9)
    return {
        "seconds": seconds,
        "matmuls": totals.matmuls,
        "other_ops": totals.other_ops,
        "exposed": np.maximum(
            schedule.end - computes - (idle if has_stages else 0.0), 0.0
        ),
        "bubble": idle / np.maximum(seconds, 1e-30) if has_stages else 0.0,
        "matmul_flops": totals.matmul_flops,
        "peak_share": totals.matmul_flops / (peak * np.maximum(seconds, 1e-30)),
        "measured_share": totals.covered_flops / flops,
    }


def _num_stores(schedule: Schedule) -> int:
    """Returns how many variables and arguments a program reads or writes."""
    steps = schedule.program.steps
    return len({store for step in steps for store in (*step.reads, *step.writes)})


def peak_dtype(program: Program, durations: Durations) -> str:
    """Returns the dtype of most FLOPs of a program's matmuls; "float32" if it has none."""
    flops: dict[str, float] = {}
    for step, times in walk(program):
        if step.computation is not None:
            shape = durations.matmul_shape(step.computation)
            if shape is not None:
                amount = float(np.max(shape.flops)) * times
                flops[shape.dtype] = flops.get(shape.dtype, 0.0) + amount
    return max(flops, key=flops.__getitem__, default="float32")
