"""The seconds of a program by kind of work, which its schedule adds up.

totals = Totals()
totals.add_work("matmul", seconds)
"""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class Totals:
    """Seconds of one device by kind of work, as the mean over the stages.

    Attributes:
      matmuls: seconds of matmuls.
      other_ops: seconds of all other ops.
      collectives: axes -> seconds of collectives.
      matmul_flops: FLOPs of matmuls.
      covered_flops: FLOPs of those matmuls of which similar ones were measured.
      work: kind of work -> seconds; the kinds are those of `Hardware.work_factors`.
    """

    matmuls: Any = 0.0
    other_ops: Any = 0.0
    collectives: dict[str, Any] = dataclasses.field(default_factory=dict)
    matmul_flops: Any = 0.0
    covered_flops: Any = 0.0
    work: dict[str, Any] = dataclasses.field(default_factory=dict)

    def add(self, other: Totals, times: Any) -> None:
        """Adds the totals of a body that runs `times` times."""
        self.matmuls = self.matmuls + other.matmuls * times
        self.other_ops = self.other_ops + other.other_ops * times
        self.matmul_flops = self.matmul_flops + other.matmul_flops * times
        self.covered_flops = self.covered_flops + other.covered_flops * times
        for axes, seconds in other.collectives.items():
            self.add_collective(axes, seconds * times)
        for kind, seconds in other.work.items():
            self.add_work(kind, seconds * times)

    def add_work(self, kind: str, seconds: Any) -> None:
        """Adds seconds of a kind of work."""
        self.work[kind] = self.work.get(kind, 0.0) + seconds

    def add_collective(self, axes: str, seconds: Any) -> None:
        """Adds the seconds of a collective along axes."""
        self.collectives[axes] = self.collectives.get(axes, 0.0) + seconds
