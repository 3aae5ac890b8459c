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
from meshtf.forecast.time.merged_collectives import merged_reductions
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
        self._merged = self._merged_in(program)

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
        outer_merged = self._merged
        self._in_memory = self._values_in_memory(body)
        self._merged = self._merged_in(body)
        yield
        self._in_memory = outer_values
        self._merged = outer_merged

    def _values_in_memory(self, program: Program) -> set[Value] | None:
        """Returns the values that are written to memory; None: all."""
        if self._durations is None:
            return None
        return values_in_memory(program, self._durations.hardware.fuses)

    def _merged_in(self, program: Program) -> set[int]:
        """Returns the `id` of each reduction that runs together with an earlier one."""
        if self._durations is None or not self._durations.merges_collectives:
            return set()
        return merged_reductions(program.steps)

    def is_merged(self, step: Step) -> bool:
        """Returns whether a collective runs together with an earlier one, which has the latency."""
        return id(step) in self._merged

    def seconds(self, step: Step) -> float:
        """Returns the seconds of an op, once."""
        if self._durations is None:
            return 0.0
        if step.computation is not None:
            return float(self._durations.compute(step.computation, self._in_memory))
        return float(self._durations.write(step))
