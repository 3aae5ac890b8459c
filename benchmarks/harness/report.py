"""Rows of measurements as a table of ratios, and whether their losses agree."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any


@dataclasses.dataclass(frozen=True)
class Row:
    """What was measured of one case."""

    name: str
    group: str
    losses: list[float]
    step: dict[
        str, list[float]
    ]  # seconds of each step: wall and cpu, in turn with the others'
    start: dict[str, float]  # first, compile, both with _cpu: s; memory, forecast: MB

    def as_dict(self) -> dict[str, Any]:
        """Returns everything, for a file."""
        return dataclasses.asdict(self)


def table(rows: list[Row], begin: str = "first") -> str:
    """Returns a table; the first row is what the others are divided by.

    Args:
      rows: of one group.
      begin: which part of the start is told: "first" is all, "compile" what came after
        building.
    """
    plain = rows[0]
    head = (
        f"{plain.group:46}{'step':>9}{'ratio':>7}{'cpu':>6}{begin:>9}{'ratio':>7}{'cpu':>6}"
        f"{'memory':>10}{'ratio':>7}{'loss off by':>13}"
    )
    return "\n".join([head, *(_line(row, plain, begin) for row in rows)])


def _line(row: Row, plain: Row, begin: str) -> str:
    start, base = row.start, plain.start
    return (
        f"{row.name:46}{statistics.median(row.step['wall']) * 1e3:6.0f} ms"
        f"{ratio(row, plain, 'wall'):7.2f}{ratio(row, plain, 'cpu'):6.2f}"
        f"{start[begin]:7.2f} s{start[begin] / base[begin]:7.2f}"
        f"{start[begin + '_cpu'] / base[begin + '_cpu']:6.2f}"
        f"{start['memory']:7.0f} MB{start['memory'] / max(base['memory'], 1):7.2f}"
        f"{largest_difference(row.losses, plain.losses):13.1e}"
    )


def memory_table(rows: list[Row]) -> str:
    """Returns peaks beside those of forecasts, where there are any, both over those of
    the first.
    """
    forecast_rows = [row for row in rows if "forecast" in row.start]
    if len(forecast_rows) < 2:
        return ""
    head = (
        f"{'peak of memory':46}{'measured':>12}{'ratio':>7}{'forecast':>12}{'ratio':>7}"
    )
    return "\n".join(
        [
            head,
            *(
                f"{row.name:46}"
                + "".join(
                    f"{row.start[kind]:9.0f} "
                    f"MB{row.start[kind] / max(forecast_rows[0].start[kind], 1):7.2f}"
                    for kind in ("memory", "forecast")
                )
                for row in forecast_rows
            ),
        ]
    )


def ratio(row: Row, plain: Row, clock: str) -> float:
    """Returns the median of the ratios within a round: steps that were taken one after
    the other.
    """
    return statistics.median(
        x / y for x, y in zip(row.step[clock], plain.step[clock], strict=True)
    )


def largest_difference(losses: list[float], expected: list[float]) -> float:
    """Returns the largest relative difference."""
    return max(abs(x - y) / abs(y) for x, y in zip(losses, expected, strict=True))


def agreement(rows: list[Row], tolerance: float = 1e-4) -> list[str]:
    """Returns what disagrees in a group of rows, in words; tolerance is relative."""
    return [
        f"  {row.group}: {row.name}: {row.losses}, {rows[0].name}: {rows[0].losses}"
        for row in rows
        if not largest_difference(row.losses, rows[0].losses) < tolerance
    ]
