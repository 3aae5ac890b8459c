"""The status of a run for other programs, in status.json: step, loss, step time, fraction of
time spent on input, and model FLOPs utilisation.

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
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import tensorflow as tf

import meshtf as mtf
from transformer.training.reporting.metrics import step_time

FILE = "status.json"
# "node:Op": TensorFlow's name of the event of an op in a profile, such as "dense:MatMul".
_OP_EVENT = re.compile(r"[^:]+:(_?[A-Z]\w*)")
# The type of an op that communicates contains one of these.
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
      steps: the total count of steps.
      flops: the FLOPs of a step, summed over all positions of the mesh (a position is one
        coordinate along each axis).
      peak_flops: the peak FLOPs per second of all devices together; None: unknown.
      predicted: the predicted time of a step and memory of a device, by name: see
        `run_report.predicted_metrics`; empty: they are unknown.
      clock: a function that returns the time in seconds.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        steps: int,
        flops: float = 0.0,
        peak_flops: float | None = None,
        predicted: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = Path(folder, FILE)
        self._steps = steps
        self._clock = clock
        self._flops = flops
        self._peak_flops = peak_flops
        self._predicted = dict(predicted or {})
        self._step_seconds: list[float] = []  # of each report but the first
        self._input_seconds = 0.0  # since the last report
        self._last_step: int | None = None  # the step of the last report
        self._last_time = clock()  # the time of the last report
        # The values of all reports so far, the latest for each name.
        self._values: dict[str, Any] = {}

    def batches(self, dataset: Iterable[Any]) -> Iterator[Any]:
        """Yields the batches of a dataset; measures the time to get each one."""
        iterator = iter(dataset)
        while True:
            start = self._clock()
            batch = next(iterator, None)
            self._input_seconds += self._clock() - start
            if batch is None:
                return
            yield batch

    def report(self, step: int, **values: float) -> dict[str, float]:
        """Writes status.json; returns metrics of the steps since the last report.

        `input_share` is the fraction of the time spent waiting for data;
        `model_flops_utilization` is FLOPs per second divided by peak FLOPs, both fractions.
        With a prediction, `step_seconds` is the mean time of a step, and
        `predicted_step_seconds` and `predicted_memory` are what was predicted. The first
        report of a run returns nothing, since its steps include tracing.

        Args:
          step: the count of steps done.
          **values: further values for status.json, such as the loss.
        """
        now = self._clock()
        shares: dict[str, float] = {}  # the metrics, by name
        last_step = self._last_step
        elapsed = now - self._last_time
        if last_step is not None and step > last_step and elapsed > 0:
            step_seconds = elapsed / (step - last_step)
            shares["input_share"] = min(self._input_seconds / elapsed, 1.0)
            if self._peak_flops:
                flops_per_second = self._flops / step_seconds
                shares["model_flops_utilization"] = flops_per_second / self._peak_flops
            values["step_seconds"] = step_seconds
            if self._predicted:
                self._step_seconds.append(step_seconds)
                shares |= {"step_seconds": step_seconds, **self._predicted}
            values["seconds_left"] = (self._steps - step) * step_seconds
        self._last_step = step
        self._last_time = now
        self._input_seconds = 0.0
        self._write("training", {"step": step, **values, **shares})
        return shares

    @property
    def has_prediction(self) -> bool:
        """Whether a time of a step was predicted."""
        return bool(self._predicted)

    def comparison(self, memory: float | None = None) -> str:
        """Returns a line with the predicted and the measured time of a step and memory of a
        device; "" without a prediction or a measured step.

        Args:
          memory: the measured bytes of a device at the peak of a step; None: unknown.
        """
        if not self._step_seconds:
            return ""
        predicted = self._predicted["predicted_step_seconds"]
        seconds = statistics.median(self._step_seconds)
        line = (
            f"a step took {step_time(seconds)}, {step_time(predicted)} were predicted "
            f"(predicted / measured {predicted / seconds:.2f})"
        )
        predicted_memory = self._predicted["predicted_memory"]
        memory_text = "" if memory is None else f"{memory / 2**20:,.1f} MiB, "
        return (
            f"{line}; memory of a device {memory_text}"
            f"{predicted_memory / 2**20:,.1f} MiB predicted\n"
        )

    def __enter__(self) -> Monitor:
        self._write("starting", {})
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Writes the state at the end: "done", "interrupted", or "failed" with the error."""
        if error is None:
            self._write("done", {})
        elif isinstance(error, KeyboardInterrupt):
            self._write("interrupted", {})
        else:
            message = f"{type(error).__name__}: {error}"
            # The message of an op that fails since a worker was lost does not name the worker.
            lost_workers = []
            if isinstance(error, tf.errors.OpError):
                lost_workers = mtf.lost_workers()
            if lost_workers:
                message = f"lost: {'; '.join(lost_workers)}"
            self._write("failed", {"error": message})

    def _write(self, state: str, values: Mapping[str, Any]) -> None:
        """Replaces the status file; if several processes train together, only the first one
        does. The file also has the values of earlier calls, unless a later call has a value
        of the same name.

        Args:
          state: "starting", "training", "done", "interrupted" or "failed".
          values: further values by name.
        """
        self._values |= values
        if not mtf.cluster.processes().is_first:
            return
        status = {
            "state": state,
            "steps": self._steps,
            **{name: _json_value(value) for name, value in self._values.items()},
            "time": time.time(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary_path = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):  # a full disk: the old file remains
            text = json.dumps(status, allow_nan=False) + "\n"
            temporary_path.write_text(text, encoding="utf-8")
            os.replace(temporary_path, self._path)


def _json_value(value: Any) -> Any:
    """Returns a value; None if it is a number that JSON does not have: NaN or infinite."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@contextlib.contextmanager
def profiler_trace(folder: str | os.PathLike[str]) -> Iterator[None]:
    """A context in which TensorFlow's profiler runs. It writes a trace for TensorBoard to
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
    """Returns the seconds spent in ops in the last profile of a folder, by the kind of op:
    "compute" and "communication".

    Ops of several threads run at the same time, so the sum exceeds the elapsed time. A
    profile does not record the time that an op waits to receive.
    """
    seconds = {"compute": 0.0, "communication": 0.0}
    profiles = Path(folder).rglob("*.xplane.pb")
    latest_profile = max(profiles, key=lambda path: path.stat().st_mtime)
    # Here, since planning imports this module and not TensorFlow.
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    # A space has planes (devices), a plane has lines (threads), and a line has events.
    space = xplane_pb2.XSpace()
    space.ParseFromString(latest_profile.read_bytes())
    for plane in space.planes:
        event_names = {
            event_id: metadata.name
            for event_id, metadata in plane.event_metadata.items()
        }
        for line in plane.lines:
            for event in line.events:
                match = _OP_EVENT.fullmatch(event_names[event.metadata_id])
                if match is not None:
                    op_type = match[1]
                    seconds[_op_kind(op_type)] += event.duration_ps / 1e12
    return seconds


def _op_kind(op_type: str) -> str:
    """Returns "communication" or "compute" for the type of an op, such as "MatMul"."""
    if any(name in op_type for name in _COMMUNICATION):
        return "communication"
    return "compute"
