"""Times of the last writes of variables. A gradient that is computed later needs to know
whether a variable still has the value of the forward pass.

    called_at = next_time()              # a function is called, and reads v
    changed_since(v, called_at)          # whether v was written after the call

Times are counts, not seconds. A variable has a list `writers`: the first `WriteTime` is
for all writes outside of functions, and each function that writes the variable adds one.
A function has one `WriteTime` for all its variables, so that a call updates one integer,
however many variables the function writes. A `store` below is a variable or, in
`changed_since`, an argument of a function.
"""

from __future__ import annotations

import itertools
from typing import Any

_clock = itertools.count(1)


def next_time() -> int:
    """Returns a time later than those of all writes and calls so far."""
    return next(_clock)


class WriteTime:
    """The time at which a writer, such as a function, last wrote its variables; 0:
    never.
    """

    def __init__(self) -> None:
        self.time = 0

    def record(self) -> None:
        """Records a write at the current time."""
        self.time = next_time()


def record_write(store: Any) -> None:
    """Records that a variable is written outside of functions."""
    outside_functions = store.writers[0]
    outside_functions.record()


def remove_writer(store: Any, write_time: WriteTime) -> None:
    """Removes a function from the writers of a variable; its last write still counts."""
    outside_functions = store.writers[0]
    outside_functions.time = max(outside_functions.time, write_time.time)
    store.writers.remove(write_time)


def changed_since(store: Any, time: int) -> bool:
    """Returns whether a store was written after a time; False for an argument, which has
    no writers.
    """
    writers = getattr(store, "writers", ())
    return any(write_time.time > time for write_time in writers)
