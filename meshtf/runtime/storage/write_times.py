"""When variables were written, so that a gradient that is taken later uses no newer
values.

    called = now()                       # a function is called, and reads v
    changed_since(v, called)             # has v another value by now?

A function that writes has one `Writes` for all its variables: a call costs one number.
"""

from __future__ import annotations

import itertools
from typing import Any

_clock = itertools.count(1)


def now() -> int:
    """Returns a number above those of all writes and calls so far."""
    return next(_clock)


class Writes:
    """When somebody, such as a function, last wrote its variables."""

    def __init__(self) -> None:
        self.time = 0

    def happen(self) -> None:
        """Says that it writes now."""
        self.time = now()


def written(store: Any) -> None:
    """Says that a variable is written now, by no function."""
    store.writers[0].happen()


def forget(store: Any, writes: Writes) -> None:
    """Says that a function writes a variable no more; when it last did is kept."""
    by_nobody = store.writers[0]
    by_nobody.time = max(by_nobody.time, writes.time)
    store.writers.remove(writes)


def changed_since(store: Any, time: int) -> bool:
    """Returns whether a variable was written after a time."""
    return any(writes.time > time for writes in getattr(store, "writers", ()))
