"""Two stages on two cores beside one stage on one: how much of the ideal speed-up is there.

    python -m benchmarks.pipeline                          # M = 1, 4, 8, 32; about five minutes
    python -m benchmarks.pipeline --microbatches=4,8 --rounds=5 --json=pipeline.json

Eight equal blocks are two cells of equal cost. Microbatches have a fixed size, so a batch grows
with their number M. One stage has a process with one thread, two stages have one with two, and what
a stage does comes in order. All processes are alive at once and take their steps in turn; a
speed-up is the median of the ratios of steps that were taken one after the other. Before these two
it waits until other processes leave the cores idle, but not for ever: see "best". The ideal,
K M / (M + K - 1), knows neither sending nor the update of the variables.

Then one step's time line, as TensorFlow's profiler saw it, beside the one that the simulator makes
of what the cells cost on one stage.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from pathlib import Path
from typing import Any

from absl import app, flags

from benchmarks.pipeline_worker import Case
from benchmarks.rounds import Process
from meshtf.pipeline import (
  Span,
  Task,
  Timeline,
  ideal_speed_up,
  one_f_one_b,
  simulate,
  timeline_text,
)

STAGES = 2
SHOWN = 8        # microbatches of the time line
QUIET = 0.93     # share of idle time that will do
_FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class Row:
  """What was measured with some number of microbatches; pairs are of one stage and of two."""

  microbatches: int
  wall: tuple[list[float], list[float]]       # seconds of each step, in turn
  cpu: tuple[list[float], list[float]]
  losses: tuple[list[float], list[float]]
  start: tuple[dict[str, float], dict[str, float]]

  @property
  def speed_up(self) -> float:
    """How many times faster two stages are."""
    return statistics.median(one / two for one, two in zip(*self.wall, strict=True))

  @property
  def best(self) -> float:
    """The same of the fastest step of each: what else the machine does slows these down least."""
    one, two = map(min, self.wall)
    return one / two

  @property
  def ideal(self) -> float:
    """What the schedule allows."""
    return ideal_speed_up(STAGES, self.microbatches)

  @property
  def busy(self) -> float:
    """How many cores the two stages use."""
    return statistics.median(c / w for c, w in zip(self.cpu[1], self.wall[1], strict=True))


def measure(microbatches: list[int], rounds: int, patience: float = 0.0) -> list[Row]:
  """Returns a row for each number of microbatches; waits before each pair of steps for so long."""
  workers = {(k, m): Process(Case(k, m), "benchmarks.pipeline_worker")
             for m in microbatches for k in (1, STAGES)}
  steps: dict[tuple[int, int], dict[str, list[float]]] = {
      case: {"wall": [], "cpu": [], "loss": []} for case in workers}
  try:
    for turn in range(rounds + 1):
      for case, worker in workers.items():
        if case[0] == 1:
          wait_for_quiet(patience)
        for what, values in worker.ask("steps", 1).items():
          steps[case][what] += values if turn else []          # the first one warms up
  finally:
    for worker in workers.values():
      worker.stop()
  def both(m: int, what: str) -> tuple[list[float], list[float]]:
    return steps[1, m][what], steps[STAGES, m][what]
  return [Row(m, both(m, "wall"), both(m, "cpu"), both(m, "loss"),
              (workers[1, m].start, workers[STAGES, m].start)) for m in microbatches]


def wait_for_quiet(patience: float) -> None:
  """Waits until the processors are idle, for so many seconds at most; Linux only."""
  end = time.monotonic() + patience
  while time.monotonic() < end:
    before = _ticks()
    time.sleep(0.2)
    idle, all_ = (b - a for a, b in zip(before, _ticks(), strict=True))
    if idle >= QUIET * all_:
      return


def _ticks() -> tuple[int, int]:
  """Returns the processors' idle time and all of their time, in ticks."""
  try:
    numbers = [*map(int, Path("/proc/stat").read_text(encoding="utf-8").split("\n")[0].split()[1:])]
  except OSError:
    return 0, 0
  return numbers[3] + numbers[4], sum(numbers)


def timelines(microbatches: int, patience: float, tries: int = 5) -> dict[str, Timeline]:
  """Returns what was predicted from the costs of cells on one stage, and what was measured."""
  found = {}
  for stages in (1, STAGES):
    worker = Process(Case(stages, microbatches), "benchmarks.pipeline_worker")
    worker.ask("steps", 3)
    told = []
    for _ in range(tries):
      wait_for_quiet(patience)
      told.append(worker.ask("timeline", 1))
    worker.stop()
    found[stages] = min((_timeline(calls, stages) for calls in told), key=lambda line: line.time)
  costs = [statistics.median(span.end - span.start for span in found[1].spans
                             if span.what == what) / STAGES for what in ("forward", "backward")]
  return {"predicted": simulate(one_f_one_b(STAGES, microbatches), *costs),
          "measured": found[STAGES]}


def _timeline(calls: list[Any], stages: int) -> Timeline:
  return Timeline(tuple(
      Span(Task(cell % stages, microbatch, what, cell // stages), what, start, end)
      for what, cell, microbatch, start, end in calls))


def table(rows: list[Row]) -> str:
  """Returns the rows as a table."""
  head = (f"{'M':>3}{'one stage':>12}{'two stages':>12}{'speed-up':>10}{'best':>7}{'ideal':>7}"
          f"{'of ideal':>10}{'cores':>7}{'first step':>13}{'processor':>11}")
  return "\n".join([head, *(
      f"{r.microbatches:3}{statistics.median(r.wall[0]) * 1e3:9.1f} ms"
      f"{statistics.median(r.wall[1]) * 1e3:9.1f} ms{r.speed_up:10.2f}{r.best:7.2f}{r.ideal:7.2f}"
      f"{r.speed_up / r.ideal:10.0%}{r.busy:7.2f}{r.start[1]['first']:11.2f} s"
      f"{r.start[1]['first_cpu']:9.2f} s" for r in rows)])


def starts(rows: list[Row]) -> str:
  """Returns how the time to the first step grows with the number of microbatches."""
  few, many = rows[0], rows[-1]
  ratios = {what: many.start[1][what] / few.start[1][what] for what in ("first", "first_cpu")}
  return (f"Time to the first step with M = {many.microbatches} over that with M = "
          f"{few.microbatches}: {ratios['first']:.2f} (processor time {ratios['first_cpu']:.2f}).")


def _main(argv: list[str]) -> None:
  del argv
  numbers = [int(m) for m in _FLAGS.microbatches]
  rows = measure(numbers, _FLAGS.rounds, _FLAGS.patience)
  print(table(rows))
  print(starts([r for r in rows if r.microbatches >= 4] or rows))
  apart = max(abs(one - two) / abs(one) for r in rows for one, two in zip(*r.losses, strict=True))
  print(f"Losses of one and of two stages differ by {apart:.1e} at most.\n")
  lines = timelines(SHOWN, _FLAGS.patience)
  for name, line in lines.items():
    print(f"{name}, in milliseconds, M = {SHOWN}\n{timeline_text(line)}\n")
  if _FLAGS.json:
    Path(_FLAGS.json).write_text(json.dumps([dataclasses.asdict(r) for r in rows]),
                                 encoding="utf-8")


if __name__ == "__main__":
  flags.DEFINE_list("microbatches", ["1", "4", "8", "32"], "How many microbatches.")
  flags.DEFINE_integer("rounds", 15, "How many steps of each are timed.")
  flags.DEFINE_float("patience", 3.0, "Seconds to wait for idle processors, before each pair.")
  flags.DEFINE_string("json", None, "Where to write the numbers.")
  app.run(_main)
