"""A forecast, compared with what XLA makes of the same program."""

from __future__ import annotations

import dataclasses

from meshtf.forecast import Forecast
from meshtf.runtime.spmd import CompiledProgram, exposed_communication

_MIB = 2**20
# Kind of reshard in a plan -> the kind of collective that XLA runs for it, if the names
# differ.
_PLANNED_KINDS = {"window": "collective_permute", "gather_statistics": "all_gather"}


@dataclasses.dataclass(frozen=True)
class CompiledForecast:
    """What XLA makes of a program for devices that need not be there, and the forecast of
    the program. Prints both in one table, and then what of the compiled program's
    communication is exposed.

    Attributes:
      compiled: peak of memory, collectives, modelled time, and the scheduled program.
      forecast: the forecast.
    """

    compiled: CompiledProgram
    forecast: Forecast

    def __str__(self) -> str:
        compiled = self.compiled
        lines = [
            f"compiled for {compiled.topology}, {compiled.mesh}, in "
            f"{compiled.seconds:.1f} s",
            f"{'':20}{'forecast':>14}{'XLA':>14}{'forecast / XLA':>16}",
            _row("peak MiB", self.forecast.memory.peak, compiled.peak),
        ]
        planned_bytes = self.planned_bytes
        compiled_bytes = self.compiled_bytes
        for kind in sorted({*planned_bytes, *compiled_bytes}):
            planned = planned_bytes.get(kind, 0)
            lines.append(_row(f"{kind} MiB", planned, compiled_bytes.get(kind, 0)))
        if compiled_bytes:
            lines.append(
                f"{len(compiled.schedule.collectives)} collectives in the program; "
                f"{self.overlapped:.0%} of their bytes move while a matrix product runs"
            )
        lines += exposed_communication(compiled.schedule)
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    @property
    def planned_bytes(self) -> dict[str, float]:
        """The bytes that a device receives, by kind of collective, as planned."""
        received: dict[str, float] = {}
        for collective in self.forecast.collectives:
            kind = _PLANNED_KINDS.get(collective.kind, collective.kind)
            if collective.total:
                received[kind] = received.get(kind, 0.0) + collective.total
        return received

    @property
    def compiled_bytes(self) -> dict[str, float]:
        """The bytes that a device receives, by kind of collective, as compiled."""
        received: dict[str, float] = {}
        for collective in self.compiled.schedule.collectives:
            kind = collective.kind
            received[kind] = received.get(kind, 0.0) + collective.total_bytes
        return received

    @property
    def overlapped(self) -> float:
        """The fraction of the bytes of the compiled program that move while a matrix
        product runs; 0 without collectives.
        """
        collectives = self.compiled.schedule.collectives
        exposed_bytes = sum(x.exposed_bytes for x in collectives)
        total_bytes = sum(x.total_bytes for x in collectives)
        return 1 - exposed_bytes / total_bytes if total_bytes else 0.0


def _row(label: str, planned: float, compiled: float) -> str:
    """Returns a row of the table: two numbers of bytes in MiB, and their ratio."""
    ratio = f"{planned / compiled:.2f}" if compiled else "-"
    planned_mib = f"{planned / _MIB:,.1f}"
    compiled_mib = f"{compiled / _MIB:,.1f}"
    return f"{label:20}{planned_mib:>14}{compiled_mib:>14}{ratio:>16}"
