"""How a run goes: where its time is spent, and how near it is to the peak of its
devices.

    with Watch("runs/lm", steps=500, flops=3e9, peak_flops=2e10) as watch:
      for batch in watch.batches(dataset):        # counts the time that the loop waits for data
        ...
        watch.report(step, loss=2.1, tokens_per_second=10412.0)      # -> runs/lm/status.json

The status file is a JSON object, always whole; other programs may read it at any time:

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
_OP = re.compile(r"[^:]+:(_?[A-Z]\w*)")  # "node:Op", as the executor calls what it runs
_MOVES = (
    "Send",
    "Recv",
    "Collective",
    "all-reduce",
    "all-gather",
    "all-to-all",
    "reduce-scatter",
    "collective-permute",
)


class Watch:
    """Times a loop, and writes status.json.

    Args:
      folder: of the run.
      steps: how many there are in all.
      flops: of a step, on all positions together.
      peak_flops: what all devices together could do in a second; None: it is not known.
      clock: gives seconds.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        steps: int,
        flops: float = 0.0,
        peak_flops: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._steps, self._clock = Path(folder, FILE), steps, clock
        self._flops, self._peak = flops, peak_flops
        self._waited = 0.0
        self._before: tuple[int | None, float] = (None, clock())
        self._told: dict[str, Any] = {}

    def batches(self, dataset: Iterable[Any]) -> Iterator[Any]:
        """Yields batches; the time until each is there counts as waiting for input."""
        given = iter(dataset)
        while True:
            began = self._clock()
            batch = next(given, None)
            self._waited += self._clock() - began
            if batch is None:
                return
            yield batch

    def report(self, step: int, **numbers: float) -> dict[str, float]:
        """Writes status.json; returns shares of the steps since the report before, once
        there was one.

        They are `input_share`, of the time that was spent waiting for data, and
        `peak_share`, of the peak flops that the model's flops are (model flops
        utilisation).
        """
        now = self._clock()
        shares: dict[str, float] = {}
        before, then = self._before
        if before is not None and step > before and now > then:
            seconds = (now - then) / (step - before)
            shares["input_share"] = min(self._waited / (now - then), 1.0)
            if self._peak:
                shares["peak_share"] = self._flops / seconds / self._peak
            numbers |= {
                "seconds_a_step": seconds,
                "seconds_left": (self._steps - step) * seconds,
            }
        self._before, self._waited = (step, now), 0.0
        self._write("training", {"step": step, **numbers, **shares})
        return shares

    def __enter__(self) -> Watch:
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
            self._write(
                "failed",
                {
                    "error": f"lost: {'; '.join(lost)}"
                    if lost
                    else f"{type(error).__name__}: {error}"
                },
            )

    def _write(self, state: str, numbers: Mapping[str, Any]) -> None:
        self._told |= numbers
        told = {
            name: None if isinstance(x, float) and not math.isfinite(x) else x
            for name, x in self._told.items()
        }  # JSON has no NaN
        whole = {
            "state": state,
            "steps": self._steps,
            **told,
            "time": time.time(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):  # a full disk: the file before stays
            beside.write_text(
                json.dumps(whole, allow_nan=False) + "\n", encoding="utf-8"
            )
            os.replace(beside, self._path)


@contextlib.contextmanager
def profiled(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Writes what TensorFlow's profiler sees, for TensorBoard, to
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


def spent(folder: str | os.PathLike[str]) -> dict[str, float]:
    """Returns the seconds of ops in the last profile of a folder: of `compute`, and of
    `moves`.

    Ops of several threads run side by side, so they add up to more than the clock says.
    TensorFlow tells no time for what waits to receive.
    """
    found = {"compute": 0.0, "moves": 0.0}
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
                    move = any(kind in op[1] for kind in _MOVES)
                    found["moves" if move else "compute"] += event.duration_ps / 1e12
    return found
