"""What a conformance run did, and what it found.

Example:

    report = check_op(MyOp)
    print(report)                   # counts, and the first failures
    assert report                   # false if a case failed, or if nothing was compared
"""

from __future__ import annotations

import dataclasses

_SHOWN = 5


@dataclasses.dataclass
class Report:
    """Counts and failures of one or more conformance runs."""

    op: str
    seed: int
    cases: int = (
        0  # combinations of sample, mesh, layout and partial inputs that were compared
    )
    refused: int = 0  # illegal layouts, answered by LayoutError as they must be
    left_out: int = 0  # layouts that were not drawn
    failures: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: Report) -> None:
        """Takes in what another run of the same op found."""
        self.cases += other.cases
        self.refused += other.refused
        self.left_out += other.left_out
        self.failures += other.failures

    def require(self) -> Report:
        """Returns the report. Raises AssertionError where a case failed, or nothing was
        compared.
        """
        if not self:
            none = (
                "" if self.failures else ": nothing was compared. Give the op samples."
            )
            raise AssertionError(f"{self}{none}")
        return self

    def __bool__(self) -> bool:
        """Whether there were cases and all of them passed."""
        return bool(self.cases) and not self.failures

    def __str__(self) -> str:
        """Returns the counts, and below them the first failures."""
        counts = (
            f"{self.op}: {self.cases} cases, {self.refused} refused, {self.left_out} "
            f"left out, {len(self.failures)} failures (seed {self.seed})"
        )
        more = len(self.failures) - _SHOWN
        return "\n".join(
            [
                counts,
                *self.failures[:_SHOWN],
                *([f"and {more} more"] if more > 0 else []),
            ]
        )


def report_for(op: str, samples: int, seed: int) -> Report:
    """Returns an empty report on an op; one without samples has failed already."""
    report = Report(op, seed)
    if not samples:
        report.failures.append(
            f"{op} has no samples, so there is nothing to compare. Give the class "
            'some: samples = (Sample((), ("b:4;d:6",)),).'
        )
    return report
