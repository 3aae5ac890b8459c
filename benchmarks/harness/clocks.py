"""Readings of two clocks: wall time, and the processor time of this process.

Example:

    start = now()
    run()
    seconds = now().since(start)     # Seconds(wall=2.0, processor=3.5): more than one thread
"""

from __future__ import annotations

import time
from typing import NamedTuple


class Seconds(NamedTuple):
    """Seconds by two clocks: a reading of both, or the time between two readings.

    Attributes:
      wall: the wall time.
      processor: the processor time, summed over all threads of the process.
    """

    wall: float
    processor: float

    def since(self, earlier: Seconds) -> Seconds:
        """Returns the time between an earlier reading and this one."""
        return Seconds(
            wall=self.wall - earlier.wall,
            processor=self.processor - earlier.processor,
        )


def now() -> Seconds:
    """Returns a reading of both clocks; only differences of readings have a meaning."""
    return Seconds(wall=time.perf_counter(), processor=time.process_time())
