"""Progress of a long run, and the remaining time.

    progress = Progress(total=40)
    progress.begin("softmax.Softmax")   # shows "  0%  softmax.Softmax"
    progress.done(4)
    progress.begin("softmax.Tail")      # shows " 10%  softmax.Tail, 2 min 05 s left"

A terminal shows one line that changes; a file or a pipe gets a line every few seconds.
"""

from __future__ import annotations

import sys
import time
from typing import TextIO

EVERY = 15.0  # seconds between lines if the output is no terminal


def spell_seconds(seconds: float) -> str:
    """Returns "9 s" or "2 min 05 s"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


class Progress:
    """Prints the name of the current task, the percentage done, and the remaining time.

    Args:
      total: the amount of work of the run.
      out: where to print; None: stderr.
    """

    def __init__(self, total: float, out: TextIO | None = None) -> None:
        self._total = total
        self._completed = 0.0
        self._out = out or sys.stderr
        self._start = time.monotonic()
        self._last_print = self._start
        self._width = 0  # of the line on the terminal

    def begin(self, name: str) -> None:
        """Shows the task that starts now."""
        now = time.monotonic()
        fraction = self._completed / self._total
        text = f"{fraction:4.0%}  {name}"
        if fraction:
            remaining = (now - self._start) * (1 / fraction - 1)
            text += f", {spell_seconds(remaining)} left"
        if self._out.isatty():
            print(
                f"\r{text:<{self._width}}",
                end="",
                file=self._out,
                flush=True,
            )
            self._width = len(text)
        elif now - self._last_print >= EVERY:
            print(text, file=self._out, flush=True)
            self._last_print = now

    def done(self, amount: float) -> None:
        """Adds an amount of completed work."""
        self._completed += amount

    def clear(self) -> None:
        """Clears the line, so that other output can be printed."""
        if self._out.isatty():
            print(
                "\r" + " " * self._width,
                end="\r",
                file=self._out,
                flush=True,
            )
