"""The result of a search: a table of the best layouts."""

from __future__ import annotations

import dataclasses
from typing import Any

from meshtf.errors import MeshtfError
from meshtf.forecast.reports.units import bytes_text, seconds_text
from meshtf.search.candidates import Candidate
from meshtf.search.problem import Problem
from meshtf.search.space import Structure


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """The best layouts that a search found, the fastest first.

    Attributes:
      problem: what was searched for.
      best: the candidates, planned in full.
      front: (seconds, bytes, text) of those that no other candidate beats in both; estimates.
      num_priced: how many candidates were priced.
      num_planned: how many plans they share.
      refused: (structure, error) of those that the program does not allow.
      seconds: the duration of the search.
    """

    problem: Problem
    best: tuple[Candidate, ...]
    front: tuple[tuple[float, float, str], ...]
    num_priced: int
    num_planned: int
    refused: tuple[tuple[Structure, MeshtfError], ...]
    seconds: float

    def __repr__(self) -> str:
        return f"SearchResult({self.num_priced:,} priced, best={self.best[0]!r})"

    def __str__(self) -> str:
        problem = self.problem
        lines = [
            f"{self.num_priced:,} layouts on {problem.devices:,} devices "
            f"({problem.hardware.name}, {bytes_text(problem.memory)} each) priced by "
            f"{self.num_planned:,} plans in {self.seconds:.1f} s",
            self._proof(),
            "",
        ]
        rows = [self._columns(candidate) for candidate in self.best]
        titles = ("", "step", "memory", "of peak", "received", "waits", "layout")
        rows.insert(0, titles)
        widths = [max(len(row[i]) for row in rows) for i in range(len(titles) - 1)]
        for row in rows:
            cells = [cell.rjust(width) for cell, width in zip(row, widths)]
            lines.append("  ".join([*cells, row[-1]]))
        return "\n".join(lines)

    def _proof(self) -> str:
        """Returns how far the estimates and the plans of the best agree."""
        error = max(abs(c.estimated / c.seconds - 1) for c in self.best)
        return (
            f"the best {len(self.best)} are planned in full: estimates differ from their "
            f"times by {error:.1%} at most"
        )

    def _columns(self, candidate: Candidate) -> tuple[str, ...]:
        """Returns the columns of a candidate."""
        forecast = candidate.forecast
        assert forecast.time is not None
        rank = self.best.index(candidate) + 1
        return (
            f"{rank}",
            seconds_text(candidate.seconds),
            bytes_text(forecast.memory.peak),
            f"{forecast.time.peak_share:.1%}",
            bytes_text(forecast.bytes_moved()),
            seconds_text(forecast.time.exposed),
            _layout_text(candidate),
        )


def _layout_text(candidate: Candidate) -> str:
    """Returns the settings of a candidate in one line."""
    parts: list[Any] = [candidate.axes, candidate.layout]
    if candidate.variable_layout:
        parts.append(f"variables {candidate.variable_layout}")
    if candidate.optimizer_layout:
        parts.append(f"slots {candidate.optimizer_layout}")
    parts.extend(f"{name}={value}" for name, value in candidate.choices.items())
    return " | ".join(parts)
