"""A simulation of tasks: each runs on some units, takes a while, and starts when its units are
free and what it waits for exists.

>>> simulation = Simulation()
>>> start, simulation.ready["loss"] = simulation.run(["device 0"], 2)
>>> simulation.run(["device 0", "device 1"], 3, after=[simulation.ready_at(["loss"])])
(2, 5)
>>> simulation.run(["device 1"], 1)
(5, 6)

Units do one task after another, in the order in which tasks are run. Times start at 0 and have
the unit of the durations. They are exact if these are integers or fractions, and arrays if these
are arrays, with an entry for each of many programs that are compared.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np


class Simulation:
    """The state of a simulation.

    Attributes:
      free: unit -> when it has run its tasks.
      ready: result of a task -> when it exists; who runs the task sets it.
    """

    def __init__(self) -> None:
        self.free: dict[Hashable, Any] = collections.defaultdict(int)
        self.ready: dict[Hashable, Any] = {}

    def run(
        self, units: Sequence[Hashable], duration: Any, after: Iterable[Any] = ()
    ) -> tuple[Any, Any]:
        """Runs a task on all of these units at once, and returns its start and its end.

        Args:
          units: the units, such as a device, or all links of a mesh axis.
          duration: how long the task takes.
          after: times before which the task does not start.
        """
        start = latest([*after, *[self.free[unit] for unit in units]])
        end = start + duration
        self.free.update(dict.fromkeys(units, end))
        return start, end

    def ready_at(self, results: Iterable[Hashable]) -> Any:
        """Returns when all of these results exist; those that no task computes exist at 0."""
        return latest([self.ready[x] for x in results if x in self.ready])


def latest(times: Iterable[Any]) -> Any:
    """Returns the latest of some times that are not negative; 0 if there are none."""
    scalar: Any = 0
    arrays: list[np.ndarray] = []
    for time in times:
        if not isinstance(time, np.ndarray):
            scalar = max(scalar, time)
        # The same array twice would only cost another maximum.
        elif not any(time is array for array in arrays):
            arrays.append(time)
    if not arrays:
        return scalar
    latest_of_arrays = functools.reduce(np.maximum, arrays)
    return np.maximum(latest_of_arrays, scalar) if scalar else latest_of_arrays
