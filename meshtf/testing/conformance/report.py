"""The report of a conformance run: counts and failures.

Example:

    report = check_op(MyOp)
    print(report)                   # counts, and the first failures
    assert report                   # false if a case failed, or if nothing was compared
"""

from __future__ import annotations

import dataclasses

_MAX_SHOWN = 5  # the count of failures that are printed
_MAX_LINES = 20  # the maximum count of lines of a repr


@dataclasses.dataclass(repr=False)
class Report:
    """Counts and failures of one or more conformance runs of an op.

    Attributes:
      op: the label of the op, such as "gather.Gather".
      seed: the seed of the random values and layouts.
      cases: the count of compared combinations of sample, mesh, layout and partial inputs.
      refused: the count of illegal layouts that raised LayoutError, as they must.
      left_out: the count of layouts that were not among those drawn.
      failures: a message for each failure.
    """

    op: str
    seed: int
    cases: int = 0
    refused: int = 0
    left_out: int = 0
    failures: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: Report) -> None:
        """Adds the report of another run of the same op."""
        self.cases += other.cases
        self.refused += other.refused
        self.left_out += other.left_out
        self.failures += other.failures

    def require(self) -> Report:
        """Returns the report itself.

        Raises:
          AssertionError: a case failed, or nothing was compared.
        """
        if self:
            return self
        if self.failures:
            raise AssertionError(str(self))
        raise AssertionError(f"{self}: nothing was compared. Give the op samples.")

    def __bool__(self) -> bool:
        """Returns whether there were cases and all of them passed."""
        return bool(self.cases) and not self.failures

    def __repr__(self) -> str:
        """Returns the first lines of the report."""
        lines = str(self).split("\n")
        if len(lines) > _MAX_LINES:
            lines = [*lines[: _MAX_LINES - 1], "..."]
        return "\n".join(lines)

    def __str__(self) -> str:
        """Returns the counts, and the first failures."""
        counts = (
            f"{self.op}: {self.cases} cases, {self.refused} refused, {self.left_out} "
            f"left out, {len(self.failures)} failures (seed {self.seed})"
        )
        lines = [counts, *self.failures[:_MAX_SHOWN]]
        num_hidden = len(self.failures) - _MAX_SHOWN
        if num_hidden > 0:
            lines.append(f"and {num_hidden} more")
        return "\n".join(lines)


def report_for(op: str, num_samples: int, seed: int) -> Report:
    """Returns a report of an op before any case has run; if the op has no samples, that is
    a failure.
    """
    report = Report(op, seed)
    if not num_samples:
        report.failures.append(
            f"{op} has no samples, so there is nothing to compare. Give the class some: "
            'conformance_samples = (mtf.graph.Sample((), ("b:4;d:6",)),).'
        )
    return report
