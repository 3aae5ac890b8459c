"""The order of calls that read and write variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Order:
    """The order of calls that read and write variables; TensorFlow would look through
    all ops.

    Attributes:
      writes: ops that a program is to run, whoever takes what they return.
    """

    def __init__(self) -> None:
        self.writes: list[Any] = []
        self._written: dict[int, Any] = {}  # by tensor of handles, the last op
        self._read: dict[int, list[Any]] = {}  # and those that read since

    def before(self, handles: Sequence[Any], writes: bool) -> list[Any]:
        """Returns the ops after which a call with these handles may run."""
        found = [self._written[id(h)] for h in handles if id(h) in self._written]
        return [
            *found,
            *(op for h in handles for op in self._read.get(id(h), ()) if writes),
        ]

    def add(self, op: Any, handles: Sequence[Any], writes: bool) -> None:
        """Adds a call."""
        if writes:
            self.writes.append(op)
        for handle in map(id, handles):
            if writes:
                self._written[handle], self._read[handle] = op, []
            else:
                self._read.setdefault(handle, []).append(op)
