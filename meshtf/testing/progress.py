"""How far a long run is, and how long it still takes.

    progress = Progress(total=40)
    progress.begin("softmax.Softmax")   # shows "  0%  softmax.Softmax"
    progress.done(4)
    progress.begin("softmax.Tail")      # shows " 10%  softmax.Tail, 2 min 05 s left"

A terminal sees one line that changes; a file or a pipe gets a line now and then.
"""

from __future__ import annotations

import sys
import time
from typing import TextIO

EVERY = 15.0  # seconds between lines where there is no terminal


def spell_seconds(seconds: float) -> str:
    """Returns "9 s" or "2 min 05 s"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


class Progress:
    """Says on stderr which part of a run is on, and when it will end if all parts take
    alike.
    """

    def __init__(self, total: float, out: TextIO | None = None) -> None:
        self._total, self._did, self._start = total, 0.0, time.monotonic()
        self._out = out or sys.stderr
        self._shown, self._width = self._start, 0

    def begin(self, name: str) -> None:
        """Shows what runs now."""
        now, share = time.monotonic(), self._did / self._total
        left = (
            f", {spell_seconds((now - self._start) * (1 / share - 1))} left"
            if share
            else ""
        )
        text = f"{share:4.0%}  {name}{left}"
        if self._out.isatty():
            print(f"\r{text:<{self._width}}", end="", file=self._out, flush=True)
            self._width = len(text)
        elif now - self._shown >= EVERY:
            print(text, file=self._out, flush=True)
            self._shown = now

    def done(self, amount: float) -> None:
        """Counts work that is done."""
        self._did += amount

    def clear(self) -> None:
        """Takes the line away, for something else to be printed."""
        if self._out.isatty():
            print("\r" + " " * self._width, end="\r", file=self._out, flush=True)
