"""The predicted time of a step as rows of a table, for text and HTML."""

from __future__ import annotations

import collections
from collections.abc import Mapping

from meshtf.forecast.report_data import ForecastData, StepTime
from meshtf.forecast.reports.units import seconds_text

MAX_LINES = 8  # of the user's program, those that take the most time


def time_headline(time: StepTime) -> str:
    """Returns the time of a step, with its uncertainty and the share of the peak."""
    uncertain = ""
    if time.uncertainty > 0.01:
        uncertain = f" +- {time.uncertainty:.0%}"
    return (
        f"{seconds_text(time.seconds)}{uncertain}, MFU {time.mfu:.1%}, "
        f"{time.peak_share:.1%} of peak FLOPs"
    )


def time_rows(time: StepTime) -> list[tuple[str, str]]:
    """Returns rows (label, seconds): what a device does in a step, one kind a row."""
    rows = [
        ("matmuls", seconds_text(time.matmuls)),
        ("other ops", seconds_text(time.other_ops)),
    ]
    for axes, seconds in time.collectives:
        rows.append((f"collectives {axes}", seconds_text(seconds)))
    if time.collectives:
        rows.append(("waiting for collectives", seconds_text(time.exposed)))
    if time.bubble:
        rows.append(("idle in the pipeline", f"{time.bubble:.1%}"))
    return rows


def slowest_lines(
    forecast: ForecastData, paths: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Returns rows (seconds, line): the lines of the user's program whose ops and collectives
    take the most time of a device.

    Args:
      forecast: the forecast.
      paths: the short path of each file.
    """
    sums: dict[str, float] = collections.defaultdict(float)
    for op in forecast.ops:
        line = op.function
        if op.file:
            line += f" at {paths.get(op.file, op.file)}:{op.line}"
        sums[line] += op.seconds * op.times
        for collective in op.collectives:
            sums[f"{collective.kind} {collective.axis} for {line}"] += (
                collective.seconds * collective.times
            )
    slowest = sorted(sums, key=sums.__getitem__, reverse=True)[:MAX_LINES]
    return [(seconds_text(sums[line]), line) for line in slowest if sums[line]]
