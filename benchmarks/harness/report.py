"""Measurements of cases as a table of ratios, and whether their losses agree.

print(table(rows))             # ratios to the first row, the baseline
for line in agreement(rows):   # rows whose losses differ from those of the first row
  print(line)
"""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any


@dataclasses.dataclass(frozen=True)
class Row:
    """The measurements of one case.

    Attributes:
      name: the name of the case.
      group: the name of its group.
      losses: the losses of its first steps from fixed weights.
      step: seconds of the step in each round, by clock: "wall" and "cpu".
      start: seconds until the first step is done ("first", and "compile" without building
        the model; both also with "_cpu"), and megabytes ("memory", "forecast").
    """

    name: str
    group: str
    losses: list[float]
    step: dict[str, list[float]]
    start: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Returns all measurements, for a JSON file."""
        return dataclasses.asdict(self)


def table(rows: list[Row], start_time: str = "first") -> str:
    """Returns a table. Ratios are to the first row.

    Args:
      rows: the rows of one group.
      start_time: the start time that is shown: "first", from the beginning, or "compile",
        from when the model is built.
    """
    baseline = rows[0]
    header = (
        f"{baseline.group:46}{'step':>9}{'ratio':>7}{'cpu':>6}"
        f"{start_time:>9}{'ratio':>7}{'cpu':>6}"
        f"{'memory':>10}{'ratio':>7}{'loss off by':>13}"
    )
    return "\n".join([header, *(_line(row, baseline, start_time) for row in rows)])


def _line(row: Row, baseline: Row, start_time: str) -> str:
    """Returns a line of `table`, with ratios to the baseline."""
    start = row.start
    base = baseline.start
    start_cpu = f"{start_time}_cpu"
    return (
        f"{row.name:46}{statistics.median(row.step['wall']) * 1e3:6.0f} ms"
        f"{ratio(row, baseline, 'wall'):7.2f}{ratio(row, baseline, 'cpu'):6.2f}"
        f"{start[start_time]:7.2f} s{start[start_time] / base[start_time]:7.2f}"
        f"{start[start_cpu] / base[start_cpu]:6.2f}"
        f"{start['memory']:7.0f} MB{start['memory'] / max(base['memory'], 1):7.2f}"
        f"{largest_difference(row.losses, baseline.losses):13.1e}"
    )


def memory_table(rows: list[Row]) -> str:
    """Returns measured and forecast peaks of memory, with ratios to the first row; "" if fewer
    than two rows have forecasts.
    """
    forecast_rows = [row for row in rows if "forecast" in row.start]
    if len(forecast_rows) < 2:
        return ""
    lines = [
        f"{'peak of memory':46}{'measured':>12}{'ratio':>7}{'forecast':>12}{'ratio':>7}"
    ]
    base = forecast_rows[0].start
    for row in forecast_rows:
        line = f"{row.name:46}"
        for kind in ("memory", "forecast"):
            megabytes = row.start[kind]
            line += f"{megabytes:9.0f} MB{megabytes / max(base[kind], 1):7.2f}"
        lines.append(line)
    return "\n".join(lines)


def ratio(row: Row, baseline: Row, clock: str) -> float:
    """Returns the median over rounds of the step time of a row over that of the baseline.

    Args:
      row: a row.
      baseline: the row that it is compared with.
      clock: the clock, "wall" or "cpu".
    """
    rounds = zip(row.step[clock], baseline.step[clock], strict=True)
    return statistics.median(seconds / base_seconds for seconds, base_seconds in rounds)


def largest_difference(losses: list[float], expected: list[float]) -> float:
    """Returns the largest relative difference of two lists of losses."""
    return max(abs(x - y) / abs(y) for x, y in zip(losses, expected, strict=True))


def agreement(rows: list[Row], tolerance: float = 1e-4) -> list[str]:
    """Returns a line for each row of a group whose losses differ from the losses of the first
    row by more than a relative tolerance.
    """
    return [
        f"  {row.group}: {row.name}: {row.losses}, {rows[0].name}: {rows[0].losses}"
        for row in rows
        if not largest_difference(row.losses, rows[0].losses) < tolerance
    ]
