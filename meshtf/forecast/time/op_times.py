"""Seconds of the ops of a program, while its steps are visited in order.

times = OpTimes(program, hardware)
with times.within(body):            # of a loop, branch or call
    times.seconds(step)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from meshtf.forecast.time.durations import Durations
from meshtf.forecast.time.local_sizes import durations_of
from meshtf.forecast.time.memory_traffic import values_in_memory
from meshtf.hardware import CollectiveTimes, Hardware
from meshtf.partition import Program, Step, Value


class OpTimes:
    """Predicts the seconds of ops; 0 if the hardware is unknown.

    Args:
      program: the program.
      hardware: the profile of the devices; None: unknown.
    """

    def __init__(self, program: Program, hardware: Hardware | None) -> None:
        self._durations: Durations | None = None
        if hardware is not None:
            self._durations = durations_of(program, hardware)
        self._in_memory = self._values_in_memory(program)

    @property
    def collectives(self) -> CollectiveTimes | None:
        """Predicts the seconds of collectives; None: the hardware is unknown."""
        if self._durations is None:
            return None
        return self._durations.collectives

    @contextlib.contextmanager
    def within(self, body: Program) -> Iterator[None]:
        """Within this context, steps belong to a body of the program."""
        outer_values = self._in_memory
        self._in_memory = self._values_in_memory(body)
        yield
        self._in_memory = outer_values

    def _values_in_memory(self, program: Program) -> set[Value] | None:
        """Returns the values that are written to memory; None: all."""
        if self._durations is None:
            return None
        return values_in_memory(program, self._durations.hardware.fuses)

    def seconds(self, step: Step) -> float:
        """Returns the seconds of an op, once."""
        if self._durations is None:
            return 0.0
        if step.computation is not None:
            return float(self._durations.compute(step.computation, self._in_memory))
        return float(self._durations.write(step))
