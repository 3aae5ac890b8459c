"""The exposed communication of a compiled step, as text: a table of its collectives by kind and
origin, and a line with the sums."""

from __future__ import annotations

import dataclasses

from meshtf.runtime.spmd.compiled.hlo_schedule import HloSchedule

_MIB = 2**20
_MAX_ROWS = 10  # those with the longest exposed time; the last one sums up all others
_HEADER = ["collective", "from", "MiB", "exposed MiB", "ms", "exposed ms"]


@dataclasses.dataclass
class _Sum:
    """The sum of some collectives in a step.

    Attributes:
      num_bytes: the bytes that a device receives.
      exposed_bytes: those that it receives while no matrix product runs.
      seconds: the time on the links.
      exposed_seconds: the part of it in which kernels wait.
    """

    num_bytes: float = 0.0
    exposed_bytes: float = 0.0
    seconds: float = 0.0
    exposed_seconds: float = 0.0

    def add(self, addend: _Sum) -> None:
        """Adds another sum to this one."""
        self.num_bytes += addend.num_bytes
        self.exposed_bytes += addend.exposed_bytes
        self.seconds += addend.seconds
        self.exposed_seconds += addend.exposed_seconds

    def cells(self) -> list[str]:
        """Returns the sum as cells of the table."""
        return [
            f"{self.num_bytes / _MIB:,.1f}",
            f"{self.exposed_bytes / _MIB:,.1f}",
            f"{self.seconds * 1e3:,.2f}",
            f"{self.exposed_seconds * 1e3:,.2f}",
        ]


def exposed_communication(schedule: HloSchedule) -> list[str]:
    """Returns the lines of text about a modelled step: without collectives, only its time."""
    step = f"step modelled {schedule.seconds * 1e3:,.1f} ms"
    if not schedule.collectives:
        return [step]
    communication = f"{schedule.communication_seconds * 1e3:,.1f}"
    exposed = f"{schedule.exposed_seconds * 1e3:,.1f}"
    return [
        *_aligned([_HEADER, *_rows(schedule)]),
        f"communication {communication} ms, of which {exposed} ms exposed; {step}",
    ]


def _rows(schedule: HloSchedule) -> list[list[str]]:
    """Returns the cells of each row, by falling exposed time."""
    sums: dict[tuple[str, str], _Sum] = {}
    for collective in schedule.collectives:
        addend = _Sum(
            collective.total_bytes,
            collective.exposed_bytes,
            collective.seconds * collective.times,
            collective.exposed_seconds * collective.times,
        )
        key = collective.kind, collective.origin
        sums.setdefault(key, _Sum()).add(addend)

    def exposed_first(item: tuple[tuple[str, str], _Sum]) -> tuple[float, float]:
        return -item[1].exposed_seconds, -item[1].seconds

    ordered = sorted(sums.items(), key=exposed_first)
    listed = ordered if len(ordered) <= _MAX_ROWS else ordered[: _MAX_ROWS - 1]
    rows = [[kind, origin, *total.cells()] for (kind, origin), total in listed]
    remaining = ordered[len(listed) :]
    if remaining:
        total = _Sum()
        for _, addend in remaining:
            total.add(addend)
        rows.append([f"{len(remaining)} others", "", *total.cells()])
    return rows


def _aligned(rows: list[list[str]]) -> list[str]:
    """Returns rows as lines: two columns of text to the left, those of numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if index < 2 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(cells))
    return lines
