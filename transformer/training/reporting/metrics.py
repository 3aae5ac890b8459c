"""Metrics of a run: a JSON lines file, TensorBoard events, and progress lines.

    with Metrics(folder, start_step=1000) as metrics:      # removes lines of later steps
      progress = Progress(last_step=2000, tokens_per_step=2048)
      ...
      speed = progress.speed(step)
      progress.report(step, loss, speed)                   # step 1200/2000  loss 2.1034 ...
      metrics.write(step, loss=loss)
    print(curve(folder))

Every line of `metrics.jsonl` is a JSON object, written before the next step starts:

    {"step": 1200, "loss": 2.1034, "tokens_per_second": 10412.0}
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import tensorflow as tf

import meshtf as mtf

FILE = "metrics.jsonl"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # codes of OSError
BARS = "▁▂▃▄▅▆▇█"  # from the lowest value to the highest


def print_now(line: str) -> None:
    """Prints a line and flushes it. A full disk under standard output is ignored, so that
    training continues.
    """
    try:
        print(line, flush=True)
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise


class Metrics:
    """Writes metrics of steps to a folder: to metrics.jsonl, and as TensorBoard events. If
    several processes train together, only the first one writes.

    A line of step s describes the s-th step, counted from 1. A run that resumes from a
    checkpoint of step 1000 passes `start_step=1000`: lines up to step 1000 stay, and later
    ones are removed. (TensorBoard events stay, and are drawn for both runs.)

    Args:
      folder: the folder of the run.
      start_step: the count of steps done before.
      print_line: prints a line.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        start_step: int = 0,
        print_line: Callable[[str], None] = print_now,
    ):
        self._path = Path(folder, FILE)
        is_first = mtf.cluster.processes().is_first
        if not is_first:
            self._path = Path(os.devnull)  # lines of the other processes are dropped
        self._print_line = print_line
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if is_first:
            _drop_later_lines(self._path, start_step)
        self._file = open(self._path, "ab", buffering=0)
        self._unwritten = b""  # lines that did not fit on a full disk
        # The step of the last line, and the names of the metrics written for this step.
        self._last_step = start_step
        self._written_names = _metric_names(self._path, start_step)
        self._events: Any = None
        if not is_first:
            return
        # Without TensorBoard, `tf.summary.scalar` raises an error.
        if importlib.util.find_spec("tensorboard"):
            self._events = tf.summary.create_file_writer(str(folder))
        else:
            print_line(
                "TensorBoard is not installed, so there are no events for it; "
                f"{self._path} has all metrics. To get both: pip install "
                "tensorboard"
            )

    def write(self, step: int, **values: float) -> None:
        """Writes metrics of a step; values that are not finite become null in the file.

        A metric that was already written for this step, for example before the run was
        resumed, is skipped. Lines that do not fit on a full disk are written later.
        """
        step = int(step)  # JSON has no NumPy integers
        if step == self._last_step:
            # Without the metrics that were already written.
            values = {
                name: value
                for name, value in values.items()
                if name not in self._written_names
            }
        if not values:
            return
        if step != self._last_step:
            self._last_step = step
            self._written_names = set()
        self._written_names.update(values)
        line: dict[str, float | None] = {"step": step}
        for name, value in values.items():
            line[name] = _finite_or_none(value)
        self._append((json.dumps(line, allow_nan=False) + "\n").encode())
        self._write_events(step, values)

    def _write_events(self, step: int, values: Mapping[str, float]) -> None:
        """Writes metrics of a step as TensorBoard events, if TensorBoard is installed. Errors,
        such as a full disk, are ignored.
        """
        if self._events is None:
            return
        with self._events.as_default(step), contextlib.suppress(tf.errors.OpError):
            for name, value in values.items():
                tf.summary.scalar(name, float(value))
            self._events.flush()

    def _append(self, text: bytes) -> None:
        """Appends to the file; warns once when the disk becomes full."""
        was_full = bool(self._unwritten)
        self._unwritten += text
        try:
            while self._unwritten:
                num_written = self._file.write(self._unwritten)
                self._unwritten = self._unwritten[num_written:]
        except OSError as error:
            if not was_full:
                self._print_line(
                    f"{self._path} cannot be written: {error.strerror}. Training "
                    "continues, and missing lines are written when that is possible."
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
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Speed(NamedTuple):
    """The speed of training, as a mean over the steps since the last line of progress.

    Attributes:
      seconds_per_step: the time of a step.
      tokens_per_second: the tokens of a step divided by its time.
    """

    seconds_per_step: float
    tokens_per_second: float


class Progress:
    """Prints lines of progress, such as

        step 1200/2000  loss 2.1034  197 ms/step  10,412 tokens/s  2 min 37 s left

    The first line has no speed, since its steps include the tracing of the program.

    Args:
      last_step: the total count of steps.
      tokens_per_step: the count of tokens of a batch.
      print_line: prints a line.
      clock: a function that returns the time in seconds.
    """

    def __init__(
        self,
        last_step: int,
        tokens_per_step: int,
        print_line: Callable[[str], None] = print_now,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._last_step = last_step
        self._tokens_per_step = tokens_per_step
        self._print_line = print_line
        self._clock = clock
        # The step and the time of the last call of `speed`.
        self._last_call_step: int | None = None
        self._last_call_time = 0.0

    def speed(self, step: int) -> Speed | None:
        """Returns the mean speed since the last call; None in the first call.

        Args:
          step: the count of steps done.
        """
        now = self._clock()
        previous_step = self._last_call_step
        elapsed = max(now - self._last_call_time, 1e-9)  # not 0: it is divided by
        self._last_call_step = step
        self._last_call_time = now
        if previous_step is None or step <= previous_step:
            return None
        seconds_per_step = elapsed / (step - previous_step)
        return Speed(seconds_per_step, self._tokens_per_step / seconds_per_step)

    def report(
        self,
        step: int,
        loss: float,
        speed: Speed | None,
        flops_utilization: float | None = None,
        remarks: Sequence[str] = (),
    ) -> None:
        """Prints a line for a step, and one for each remark.

        Args:
          step: the count of steps done.
          loss: the loss of the last step.
          speed: the speed, from the method `speed`; None: not known.
          flops_utilization: FLOPs per second divided by peak FLOPs; None: not known.
          remarks: further lines about the same steps.
        """
        width = len(str(self._last_step))
        columns = [f"step {step:>{width}}/{self._last_step}", f"loss {loss:.4f}"]
        if speed is not None:
            seconds_left = (self._last_step - step) * speed.seconds_per_step
            columns.append(f"{step_time(speed.seconds_per_step)}/step")
            columns.append(f"{speed.tokens_per_second:,.0f} tokens/s")
            if flops_utilization is not None:
                columns.append(f"{flops_utilization:.1%} of peak FLOPs")
            columns.append(f"{duration(seconds_left)} left")
        self._print_line("  ".join(columns))
        for remark in remarks:
            self._print_line(" " * len("step ") + remark)


def step_time(seconds: float) -> str:
    """Returns the time of a step as text.

    >>> step_time(0.00123), step_time(0.1974), step_time(12.345)
    ('1.2 ms', '197 ms', '12.3 s')
    """
    if seconds >= 1:
        return f"{seconds:.1f} s"
    milliseconds = seconds * 1000
    if milliseconds < 10:
        return f"{milliseconds:.1f} ms"
    return f"{milliseconds:.0f} ms"


def duration(seconds: float) -> str:
    """Returns a duration as text.

    >>> duration(0.4), duration(77), duration(3700), duration(200000)
    ('0 s', '1 min 17 s', '1 h 1 min', '55 h 33 min')
    """
    minutes, remaining_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min {remaining_seconds} s"
    return f"{remaining_seconds} s"


def read(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Returns the lines of metrics.jsonl as dicts. If a crash has left the last line
    incomplete, it is skipped.
    """
    path = Path(folder, FILE)
    return [line for _, line in _lines(path)]


def curve(folder: str | os.PathLike[str], name: str = "loss", width: int = 60) -> str:
    """Returns a metric over the steps of a run as a line of bars, with its first and last
    value; "" if the metric was never written.
    """
    values = [line[name] for line in read(folder) if line.get(name) is not None]
    if not values:
        return ""
    return f"{name} {values[0]:.4f} {bars(values, width)} {values[-1]:.4f}"


def bars(values: Sequence[float], width: int = 60) -> str:
    """Returns values as a line of at most `width` bars, each the mean of a window.

    >>> bars([4, 3, 2, 2, 1, 1, 1, 1], width=4)
    '█▄▁▁'
    """
    width = min(width, len(values))
    boundaries = [len(values) * k // width for k in range(width + 1)]
    means = []
    for start, end in itertools.pairwise(boundaries):
        means.append(sum(values[start:end]) / (end - start))
    low = min(means)
    high = max(means)
    scale = 0.0
    if high > low:
        scale = (len(BARS) - 1) / (high - low)
    heights = [round((mean - low) * scale) for mean in means]
    return "".join(BARS[height] for height in heights)


def _drop_later_lines(path: Path, last_step: int) -> None:
    """Removes the lines of steps after `last_step`, which a resumed run writes again."""
    if not path.exists():
        return
    remaining_text = "".join(
        text + "\n" for text, line in _lines(path) if line["step"] <= last_step
    )
    temporary_path = path.with_suffix(".new")
    temporary_path.write_text(remaining_text, encoding="utf-8")
    # Atomic: a crash leaves the old file or the new one.
    os.replace(temporary_path, path)


def _metric_names(path: Path, step: int) -> set[str]:
    """Returns the names of the metrics of a step in a file."""
    names: set[str] = set()
    if not path.exists():
        return names
    for _text, line in _lines(path):
        if line["step"] == step:
            names.update(line)
    return names


def _lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Returns the complete lines of a file, each as (text, JSON object)."""
    lines = []
    for text in path.read_text(encoding="utf-8").split("\n"):
        try:
            lines.append((text, json.loads(text)))
        except json.JSONDecodeError:  # empty or incomplete
            continue
    return lines


def _finite_or_none(value: float) -> float | None:
    """Returns a value as a float; None if it is NaN or infinite: JSON has no such numbers."""
    value = float(value)
    return value if math.isfinite(value) else None
