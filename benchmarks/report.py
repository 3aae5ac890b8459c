"""Rows of measurements as a table of ratios, and whether their losses agree."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

_TOLERANCE = 1e-4


@dataclasses.dataclass(frozen=True)
class Row:
  """What was measured of one case."""

  name: str
  group: str
  losses: list[float]
  step: dict[str, list[float]]      # seconds of each step: wall and cpu, in turn with the others'
  start: dict[str, float]           # first, first_cpu: seconds; memory: MB

  def numbers(self) -> dict[str, Any]:
    """Returns everything, for a file."""
    return dataclasses.asdict(self)


def table(rows: list[Row]) -> str:
  """Returns a table; the first row is what the others are divided by."""
  plain = rows[0]
  head = (f"{plain.group:34}{'step':>9}{'ratio':>7}{'cpu':>6}{'first':>9}{'ratio':>7}{'cpu':>6}"
          f"{'memory':>10}{'ratio':>7}{'loss off by':>13}")
  return "\n".join([head, *(_line(row, plain) for row in rows)])


def _line(row: Row, plain: Row) -> str:
  start, base = row.start, plain.start
  return (f"{row.name:34}{statistics.median(row.step['wall']) * 1e3:6.0f} ms"
          f"{_ratio(row, plain, 'wall'):7.2f}{_ratio(row, plain, 'cpu'):6.2f}"
          f"{start['first']:7.2f} s{start['first'] / base['first']:7.2f}"
          f"{start['first_cpu'] / base['first_cpu']:6.2f}"
          f"{start['memory']:7.0f} MB{start['memory'] / max(base['memory'], 1):7.2f}"
          f"{apart(row.losses, plain.losses):13.1e}")


def _ratio(row: Row, plain: Row, what: str) -> float:
  """Returns the median of the ratios within a round: steps that were taken one after the other."""
  return statistics.median(x / y for x, y in zip(row.step[what], plain.step[what], strict=True))


def apart(losses: list[float], others: list[float]) -> float:
  """Returns the largest relative difference."""
  return max(abs(x - y) / abs(y) for x, y in zip(losses, others, strict=True))


def agreement(rows: list[Row]) -> list[str]:
  """Returns what disagrees in a group of rows, in words."""
  return [f"  {row.group}: {row.name}: {row.losses}, {rows[0].name}: {rows[0].losses}"
          for row in rows if not apart(row.losses, rows[0].losses) < _TOLERANCE]
