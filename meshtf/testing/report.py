"""What a conformance run did, and what it found.

    report = check_op(MyOp)
    report.cases, report.refused, report.failures
"""

from __future__ import annotations

import dataclasses

_SHOWN = 5


@dataclasses.dataclass
class Report:
  """Counts and failures of one or more conformance runs."""

  op: str
  seed: int
  cases: int = 0        # combinations of sample, mesh, layout and partial inputs that were compared
  refused: int = 0      # illegal layouts, answered by LayoutError as they must be
  left_out: int = 0     # layouts that were not drawn
  failures: list[str] = dataclasses.field(default_factory=list)

  def add(self, other: Report) -> None:
    """Takes in what another run of the same op found."""
    self.cases += other.cases
    self.refused += other.refused
    self.left_out += other.left_out
    self.failures += other.failures

  def require(self) -> Report:
    """Returns the report. Raises AssertionError where a case failed, or nothing was compared."""
    if self.failures:
      shown = "\n".join(self.failures[:_SHOWN])
      raise AssertionError(f"{self}\n{shown}")
    if not self.cases:
      raise AssertionError(f"{self}: nothing was compared. Give the op samples.")
    return self

  def __str__(self) -> str:
    return (f"{self.op}: {self.cases} cases, {self.refused} refused, {self.left_out} left out, "
            f"{len(self.failures)} failures (seed {self.seed})")
