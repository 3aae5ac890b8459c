"""Progress of a run for other programs: step time, input time and model FLOPs utilisation.

    with Monitor("runs/lm", steps=500, flops=3e9, peak_flops=2e10) as monitor:
      for batch in monitor.batches(dataset):      # measures the time spent waiting for data
        ...
        monitor.report(step, loss=2.1, tokens_per_second=10412.0)      # -> runs/lm/status.json

The status file is a JSON object, replaced atomically: other programs may read it at any
time.

    {"state": "training", "step": 1200, "steps": 2000, "loss": 2.1, "seconds_left":
    77.0, ...}
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import meshtf as mtf

FILE = "status.json"
_OP = re.compile(r"[^:]+:(_?[A-Z]\w*)")  # "node:Op", the executor's name of an event
_COMMUNICATION = (
    "Send",
    "Recv",
    "Collective",
    "all-reduce",
    "all-gather",
    "all-to-all",
    "reduce-scatter",
    "collective-permute",
)


class Monitor:
    """Times a training loop, and writes status.json.

    Args:
      folder: the folder of the run.
      steps: total number of steps.
      flops: FLOPs of a step, summed over all mesh positions.
      peak_flops: peak FLOPs per second of all devices together; None: unknown.
      clock: returns the time in seconds.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        steps: int,
        flops: float = 0.0,
        peak_flops: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = Path(folder, FILE)
        self._steps = steps
        self._clock = clock
        self._flops = flops
        self._peak_flops = peak_flops
        self._input_seconds = 0.0  # since the last report
        self._last_report: tuple[int | None, float] = (None, clock())
        self._values: dict[str, Any] = {}

    def batches(self, dataset: Iterable[Any]) -> Iterator[Any]:
        """Yields batches; the time to get each one counts as time spent on input."""
        iterator = iter(dataset)
        while True:
            start = self._clock()
            batch = next(iterator, None)
            self._input_seconds += self._clock() - start
            if batch is None:
                return
            yield batch

    def report(self, step: int, **values: float) -> dict[str, float]:
        """Writes status.json; returns shares over the steps since the last report.

        `input_share` is the fraction of the time spent waiting for data;
        `model_flops_utilization` is model FLOPs over peak FLOPs. The first report of a run
        returns neither.
        """
        now = self._clock()
        shares: dict[str, float] = {}
        last_step, last_time = self._last_report
        if last_step is not None and step > last_step and now > last_time:
            elapsed = now - last_time
            seconds = elapsed / (step - last_step)
            shares["input_share"] = min(self._input_seconds / elapsed, 1.0)
            if self._peak_flops:
                shares["model_flops_utilization"] = (
                    self._flops / seconds / self._peak_flops
                )
            values |= {
                "step_seconds": seconds,
                "seconds_left": (self._steps - step) * seconds,
            }
        self._last_report = (step, now)
        self._input_seconds = 0.0
        self._write("training", {"step": step, **values, **shares})
        return shares

    def __enter__(self) -> Monitor:
        self._write("starting", {})
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Writes how the run ended: "done", "interrupted", or "failed" and why."""
        if error is None:
            self._write("done", {})
        elif isinstance(error, KeyboardInterrupt):
            self._write("interrupted", {})
        else:
            lost = mtf.lost_workers() if isinstance(error, tf.errors.OpError) else []
            message = f"{type(error).__name__}: {error}"
            if lost:
                message = f"lost: {'; '.join(lost)}"
            self._write("failed", {"error": message})

    def _write(self, state: str, values: Mapping[str, Any]) -> None:
        """Replaces the status file; `values` update those of earlier calls."""
        self._values |= values
        finite = {
            name: None if isinstance(x, float) and not math.isfinite(x) else x
            for name, x in self._values.items()
        }  # JSON has no NaN
        status = {
            "state": state,
            "steps": self._steps,
            **finite,
            "time": time.time(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):  # a full disk: the old file remains
            temporary.write_text(
                json.dumps(status, allow_nan=False) + "\n", encoding="utf-8"
            )
            os.replace(temporary, self._path)


@contextlib.contextmanager
def profiler_trace(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Runs TensorFlow's profiler in the context; TensorBoard reads its trace from
    `folder`/plugins/profile.
    """
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=2, python_tracer_level=0
    )
    tf.profiler.experimental.start(str(folder), options)
    try:
        yield
    finally:
        tf.profiler.experimental.stop()


def op_seconds(folder: str | os.PathLike[str]) -> dict[str, float]:
    """Returns the seconds spent in ops in the last profile of a folder: `compute` for
    local ops, and `communication`.

    Ops of several threads run at the same time, so the sum exceeds the elapsed time.
    TensorFlow does not record the time that an op waits to receive.
    """
    seconds = {"compute": 0.0, "communication": 0.0}
    latest = max(
        Path(folder).rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime
    )
    space = xplane_pb2.XSpace()
    space.ParseFromString(latest.read_bytes())
    for plane in space.planes:
        kinds = {key: meta.name for key, meta in plane.event_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                op = _OP.fullmatch(kinds[event.metadata_id])
                if op:
                    is_communication = any(kind in op[1] for kind in _COMMUNICATION)
                    kind = "communication" if is_communication else "compute"
                    seconds[kind] += event.duration_ps / 1e12
    return seconds
