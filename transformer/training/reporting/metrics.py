"""What a run tells: a JSON lines file, TensorBoard events, and a line of progress.

    with Metrics(folder, first_step=1000) as metrics:      # drops later lines
      progress = Progress(last_step=2000, tokens_per_step=2048)
      ...
      rate = progress.report(step, loss)                   # step 1200/2000  loss 2.1034 ...
      metrics.write(step, loss=loss, tokens_per_second=rate)
    print(curve(folder))

Every line of `metrics.jsonl` is a whole JSON object and is on disk before the next step
begins:

    {"step": 1200, "loss": 2.1034, "tokens_per_second": 10412.0}
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import tensorflow as tf

FILE = "metrics.jsonl"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
BARS = "▁▂▃▄▅▆▇█"


def say_now(line: str) -> None:
    """Prints a line at once, also into a pipe; a full disk below it is no reason to
    stop.
    """
    try:
        print(line, flush=True)
    except OSError as error:
        if error.errno not in _FULL:
            raise


class Metrics:
    """Writes named numbers of steps to `folder`: to metrics.jsonl, and as TensorBoard
    events.

    A line of step s tells of the s-th step, counted from 1; so after restoring a
    checkpoint taken after 1000 steps, `first_step=1000` keeps the lines up to 1000 and
    drops later ones. (Events that TensorBoard has got stay; it draws both runs.)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        first_step: int = 0,
        say: Callable[[str], None] = say_now,
    ):
        self._path, self._say = Path(folder, FILE), say
        self._path.parent.mkdir(parents=True, exist_ok=True)
        _keep(self._path, first_step)
        self._file = open(self._path, "ab", buffering=0)
        self._late = b""  # what a full disk did not take
        self._told = _numbers_of(self._path, first_step)
        self._events: Any = None
        if importlib.util.find_spec(
            "tensorboard"
        ):  # without it `tf.summary.scalar` raises
            self._events = tf.summary.create_file_writer(str(folder))
        else:
            say(
                "TensorBoard is not installed, so there are no events for it; "
                f"{self._path} has all the numbers. To have both: pip install "
                "tensorboard"
            )

    def write(self, step: int, **numbers: float) -> None:
        """Writes the numbers of a step; what is no finite number becomes null in the
        file.

        A number that was written for this step before, as by a run that this one goes
        on with, is left out. What a full disk does not take is written later.
        """
        numbers = {
            name: x
            for name, x in numbers.items()
            if (int(step), name) not in self._told
        }
        if not numbers:
            return
        self._told = {(s, name) for s, name in self._told if s == step} | {
            (step, n) for n in numbers
        }
        line = {
            "step": int(step),
            **{name: _finite(number) for name, number in numbers.items()},
        }
        self._append((json.dumps(line, allow_nan=False) + "\n").encode())
        if self._events is not None:
            with (
                self._events.as_default(int(step)),
                contextlib.suppress(tf.errors.OpError),
            ):
                for name, number in numbers.items():
                    tf.summary.scalar(name, float(number))
                self._events.flush()

    def _append(self, text: bytes) -> None:
        full, self._late = bool(self._late), self._late + text
        try:
            while self._late:
                self._late = self._late[self._file.write(self._late) :]
        except OSError as error:
            if not full:
                self._say(
                    f"{self._path} cannot be written: {error.strerror}. The work goes "
                    "on, and what is missing there is written once that is possible."
                )

    def close(self) -> None:
        """Closes the files."""
        self._file.close()
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> Metrics:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Progress:
    """Prints lines such as `step 1200/2000  loss 2.1034  10,412 tokens/s  1 min 17 s left`.

    The rate is that of the steps since the line before. The first line tells no rate:
    its steps hold the tracing of the program.
    """

    def __init__(
        self,
        last_step: int,
        tokens_per_step: int,
        say: Callable[[str], None] = say_now,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._last, self._tokens = last_step, tokens_per_step
        self._say, self._clock = say, clock
        self._before: tuple[int, float] | None = None

    def report(self, step: int, loss: float) -> float | None:
        """Prints a line; returns tokens per second, or None if this is the
        first line.
        """
        line = f"step {step:>{len(str(self._last))}}/{self._last}  loss {loss:.4f}"
        now, rate = self._clock(), None
        if self._before is not None and step > self._before[0]:
            seconds = max(now - self._before[1], 1e-9) / (step - self._before[0])
            rate = self._tokens / seconds
            line += f"  {rate:,.0f} tokens/s  {duration((self._last - step) * seconds)} left"
        self._before = (step, now)
        self._say(line)
        return rate


def duration(seconds: float) -> str:
    """Returns seconds as people say them.

    >>> duration(0.4), duration(77), duration(3700), duration(200000)
    ('0 s', '1 min 17 s', '1 h 1 min', '55 h 33 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def read(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Returns the lines of metrics.jsonl; a last line that was cut off by a crash is
    left out.
    """
    return [line for _, line in _lines(Path(folder, FILE))]


def curve(folder: str | os.PathLike[str], name: str = "loss", width: int = 60) -> str:
    """Returns a line of bars that shows how a number went, or "" if it was never
    written.
    """
    numbers = [line[name] for line in read(folder) if line.get(name) is not None]
    if not numbers:
        return ""
    return f"{name} {numbers[0]:.4f} {bars(numbers, width)} {numbers[-1]:.4f}"


def bars(numbers: Sequence[float], width: int = 60) -> str:
    """Returns numbers as bars, averaged so that at most `width` are left.

    >>> bars([4, 3, 2, 2, 1, 1, 1, 1], width=4)
    '█▄▁▁'
    """
    width = min(width, len(numbers))
    ends = [len(numbers) * k // width for k in range(width + 1)]
    means = [sum(numbers[a:b]) / (b - a) for a, b in zip(ends, ends[1:])]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)


def _keep(path: Path, last_step: int) -> None:
    """Drops the lines after `last_step`, so that a resumed run writes no step twice."""
    if not path.exists():
        return
    kept = "".join(
        text + "\n" for text, line in _lines(path) if line["step"] <= last_step
    )
    beside = path.with_suffix(".new")
    beside.write_text(kept, encoding="utf-8")
    os.replace(beside, path)  # a crash leaves the old file or the new one, never half


def _numbers_of(path: Path, step: int) -> set[tuple[int, str]]:
    """Returns (step, name) of all numbers that a file has of a step."""
    lines = _lines(path) if path.exists() else []
    return {(step, name) for _, line in lines if line["step"] == step for name in line}


def _lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    lines = []
    for text in path.read_text(encoding="utf-8").split("\n"):
        try:
            lines.append((text, json.loads(text)))
        except json.JSONDecodeError:  # empty, or cut off
            continue
    return lines


def _finite(number: float) -> float | None:
    number = float(number)
    return number if math.isfinite(number) else None
