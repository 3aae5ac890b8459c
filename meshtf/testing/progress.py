"""A progress line of a long run, with the estimated remaining time.

    progress = Progress(total=40)
    progress.begin("softmax.Softmax")   # shows "  0%  softmax.Softmax"
    progress.done(4)
    progress.begin("softmax.Tail")      # shows " 10%  softmax.Tail, 2 min 05 s left"

On a terminal the line is overwritten. To a file or a pipe a line is written at most every
`EVERY` seconds.
"""

from __future__ import annotations

import sys
import time
from typing import TextIO

EVERY = 15.0  # seconds between lines if the output is not a terminal


def duration_text(seconds: float) -> str:
    """Returns a duration as text, such as "9 s" or "2 min 05 s"."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes:
        return f"{minutes} min {rest:02d} s"
    return f"{rest} s"


class Progress:
    """Prints the name of the current task, the percentage done, and the remaining time.

    Args:
      total: the amount of work of the run, in any unit.
      out: the stream to print to; None: stderr.
    """

    def __init__(self, total: float, out: TextIO | None = None) -> None:
        self._total = total
        self._completed = 0.0
        self._out = out or sys.stderr
        self._start = time.monotonic()
        self._last_print = self._start
        self._width = 0  # the width of the line that a terminal shows

    def begin(self, name: str) -> None:
        """Shows the name of the task that starts now."""
        now = time.monotonic()
        fraction = self._completed / self._total
        text = f"{fraction:4.0%}  {name}"
        if fraction:
            remaining_seconds = (now - self._start) * (1 / fraction - 1)
            text += f", {duration_text(remaining_seconds)} left"
        if self._out.isatty():
            # Padded with spaces, which overwrite the rest of a longer previous line.
            padded_text = f"{text:<{self._width}}"
            print(f"\r{padded_text}", end="", file=self._out, flush=True)
            self._width = len(text)
        elif now - self._last_print >= EVERY:
            print(text, file=self._out, flush=True)
            self._last_print = now

    def done(self, amount: float) -> None:
        """Adds an amount of completed work, in the unit of `total`."""
        self._completed += amount

    def clear(self) -> None:
        """Clears the line on a terminal, so that other output can be printed."""
        if self._out.isatty():
            blank_line = " " * self._width
            print(f"\r{blank_line}", end="\r", file=self._out, flush=True)
