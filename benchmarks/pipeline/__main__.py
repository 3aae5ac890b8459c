"""Speed-up of a pipeline of two stages on two cores over one stage on one core, against the
ideal.

    python -m benchmarks.pipeline                          # M = 1, 4, 8, 32; some minutes
    python -m benchmarks.pipeline --microbatches=4,8 --pairs=3 --json=pipeline.json
    python -m benchmarks.pipeline --microbatches= --chunks=1,2         # timelines only

A chunk is a sequence of layers that a stage runs without a break. Eight equal blocks are
two chunks of equal cost. Microbatches have a fixed size, so the batch grows with their
number M. One stage runs in a process with one thread, two stages in a process with two
threads. Both take steps in turn; a speed-up is the median ratio of steps taken one after
the other. The ideal for K stages, K M / (M + K - 1), ignores communication and the update
of variables.

Two stages need two idle cores. The benchmark waits until other processes use less than a
tenth of a core, and does not count pairs during which they used more, until enough pairs
count or the time is up.

Then it prints the timeline of a step, measured by TensorFlow's profiler, and the timeline
that is simulated from the costs of chunks on one stage; also for several chunks on each
stage (`--chunks`).
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import app, flags

from benchmarks.harness.rounds import Process
from benchmarks.pipeline.worker import Case
from meshtf.pipeline import (
    Span,
    Task,
    Timeline,
    ideal_speed_up,
    interleaved,
    simulate,
    timeline_text,
)

STAGES = 2
# Indices into pairs of values: that of one stage, and that of two stages.
ONE_STAGE = 0
TWO_STAGES = 1
TIMELINE_MICROBATCHES = 8  # the number of microbatches of a printed timeline
MAX_OTHER_CORES = 0.1  # the cores that other processes may use while a pair counts
# The minimum number of microbatches that are timed together: a time is that of one step or
# more.
MIN_TIMED_MICROBATCHES = 16
WORKER = "benchmarks.pipeline.worker"
_FLAGS = flags.FLAGS


class Pair(NamedTuple):
    """Steps of one stage and steps of two stages, taken one after the other.

    Attributes:
      wall: the mean seconds of a step, of one stage and of two.
      cpu: the mean seconds of processor time of a step, of one stage and of two.
      other_cores: the number of cores that other processes used meanwhile.
    """

    wall: tuple[float, float]
    cpu: tuple[float, float]
    other_cores: float

    @property
    def speed_up(self) -> float:
        """How many times faster two stages are."""
        return self.wall[ONE_STAGE] / self.wall[TWO_STAGES]


@dataclasses.dataclass(frozen=True)
class Row:
    """The measurements for one number of microbatches.

    Attributes:
      microbatches: the number of microbatches.
      pairs: all measured pairs.
      losses: the loss after the same steps, of one stage and of two.
      starts: the seconds until the first step is done, of one stage and of two: "first",
        and "first_cpu" of processor time.
    """

    microbatches: int
    pairs: list[Pair]
    losses: tuple[float, float]
    starts: tuple[dict[str, float], dict[str, float]]

    @property
    def counted_pairs(self) -> list[Pair]:
        """The pairs that count: other processes used few cores meanwhile."""
        return [pair for pair in self.pairs if pair.other_cores <= MAX_OTHER_CORES]

    @property
    def reported_pairs(self) -> list[Pair]:
        """The pairs that count, or all pairs if none counts."""
        return self.counted_pairs or self.pairs

    @property
    def speed_up(self) -> float:
        """The median of the speed-ups of pairs."""
        return statistics.median(pair.speed_up for pair in self.reported_pairs)

    @property
    def ideal(self) -> float:
        """The speed-up that the schedule allows."""
        return ideal_speed_up(STAGES, self.microbatches)

    @property
    def loss_difference(self) -> float:
        """The relative difference of the losses of one and of two stages."""
        one_stage, two_stages = self.losses
        return abs(one_stage - two_stages) / abs(one_stage)

    def median(self, clock: str, index: int) -> float:
        """Returns the median of the seconds of a step, over pairs.

        Args:
          clock: "wall" or "cpu".
          index: ONE_STAGE or TWO_STAGES.
        """
        return statistics.median(
            getattr(pair, clock)[index] for pair in self.reported_pairs
        )


def measure(microbatches: int, min_pairs: int, minutes: float) -> Row:
    """Returns the measurements for a number of microbatches.

    Args:
      microbatches: the number of microbatches.
      min_pairs: the number of pairs that should count.
      minutes: the maximum time, after which fewer pairs suffice, but at least one.
    """
    one_stage = Process(Case(stages=1, microbatches=microbatches), WORKER)
    two_stages = Process(Case(stages=STAGES, microbatches=microbatches), WORKER)
    deadline = time.monotonic() + 60 * minutes
    try:
        # Two steps, which also warm up the workers.
        one_stage_losses = one_stage.ask("steps", argument=2)["loss"]
        two_stages_losses = two_stages.ask("steps", argument=2)["loss"]
        row = Row(
            microbatches=microbatches,
            pairs=[],
            losses=(one_stage_losses[-1], two_stages_losses[-1]),
            starts=(one_stage.start_costs, two_stages.start_costs),
        )
        steps = math.ceil(MIN_TIMED_MICROBATCHES / microbatches)
        while not row.pairs or (
            len(row.counted_pairs) < min_pairs and time.monotonic() < deadline
        ):
            _wait_for_idle_cores(deadline)
            row.pairs.append(_measure_pair(one_stage, two_stages, steps))
    finally:
        one_stage.stop()
        two_stages.stop()
    return row


def _wait_for_idle_cores(deadline: float) -> None:
    """Waits until other processes leave the cores idle, but not beyond the deadline, a time
    of `time.monotonic`.
    """
    while time.monotonic() < deadline:
        processor_time_before = _processor_time()
        start = time.monotonic()
        time.sleep(0.2)
        seconds = time.monotonic() - start
        busy_seconds = _processor_time() - processor_time_before
        if busy_seconds <= MAX_OTHER_CORES * seconds:
            return


def _measure_pair(one_stage: Process, two_stages: Process, steps: int) -> Pair:
    """Takes steps of one stage, then as many of two stages, and returns their seconds."""
    processor_time_before = _processor_time()
    start = time.monotonic()
    # Lists of the seconds of the steps, by clock.
    times_of_one = one_stage.ask("steps", steps)
    times_of_two = two_stages.ask("steps", steps)
    seconds = time.monotonic() - start
    all_processes = _processor_time() - processor_time_before
    our_processes = sum(times_of_one["cpu"]) + sum(times_of_two["cpu"])
    other_processes = all_processes - our_processes
    return Pair(
        wall=(
            statistics.fmean(times_of_one["wall"]),
            statistics.fmean(times_of_two["wall"]),
        ),
        cpu=(
            statistics.fmean(times_of_one["cpu"]),
            statistics.fmean(times_of_two["cpu"]),
        ),
        other_cores=max(0.0, other_processes / seconds),
    )


def _processor_time() -> float:
    """Returns the seconds for which cores have been busy, summed over all cores; Linux only,
    otherwise 0.
    """
    try:
        line, _ = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)
    except OSError:
        return 0.0
    ticks = map(int, line.split()[1:9])
    user, nice, system, _idle, _iowait, irq, softirq, steal = ticks
    busy = user + nice + system + irq + softirq + steal
    return busy / os.sysconf("SC_CLK_TCK")


def timelines(
    microbatches: int,
    chunks: int = 1,
    tries: int = 20,
    minutes: float = 0.0,
) -> dict[str, Timeline]:
    """Returns the timeline predicted from the costs of chunks on one stage ("predicted"), and
    the measured one ("measured").

    Args:
      microbatches: the number of microbatches.
      chunks: the number of chunks on each stage.
      tries: the number of steps that are measured; the timeline of the fastest counts.
      minutes: the maximum time, in total, to wait for idle cores before the steps.
    """
    deadline = time.monotonic() + 60 * minutes
    one_stage_case = Case(stages=1, microbatches=microbatches)
    one_stage = _fastest_timeline(one_stage_case, tries, deadline)
    case = Case(stages=STAGES, microbatches=microbatches, chunks=chunks)
    two_stages = _fastest_timeline(case, tries, deadline)
    # On one stage, all layers are one chunk.
    num_chunks = STAGES * chunks
    schedule = interleaved(stages=STAGES, microbatches=microbatches, chunks=chunks)
    predicted = simulate(
        schedule,
        forward=_median_seconds(one_stage, "forward") / num_chunks,
        backward=_median_seconds(one_stage, "backward") / num_chunks,
    )
    return {"predicted": predicted, "measured": two_stages}


def _fastest_timeline(case: Case, tries: int, deadline: float) -> Timeline:
    """Returns the measured timeline of the fastest of several steps.

    Args:
      case: the pipeline.
      tries: the number of steps that are measured.
      deadline: the time of `time.monotonic` until which to wait for idle cores.
    """
    worker = Process(case, WORKER)
    worker.ask("steps", argument=3)  # warms up the worker; the losses are not used
    candidates = []
    for _ in range(tries):
        _wait_for_idle_cores(deadline)
        calls_of_one_step = worker.ask("timeline", argument=1)
        candidates.append(_timeline(calls_of_one_step, case.stages))
    worker.stop()
    return min(candidates, key=lambda timeline: timeline.time)


def _median_seconds(timeline: Timeline, kind: str) -> float:
    """Returns the median time of a call of one kind, "forward" or "backward"."""
    spans = [span for span in timeline.spans if span.kind == kind]
    return statistics.median(span.end - span.start for span in spans)


def _timeline(calls: list[Any], stages: int) -> Timeline:
    """Returns the timeline of a step.

    Args:
      calls: the calls of the step: lists with the fields of `worker.TimedCall`.
      stages: the number of stages.
    """
    spans = []
    for phase, chunk, microbatch, start, end in calls:
        # Chunks are assigned to the stages in turn.
        task = Task(
            stage=chunk % stages,
            microbatch=microbatch,
            kind=phase,
            chunk=chunk // stages,
        )
        spans.append(Span(task, phase, start, end))
    return Timeline(tuple(spans))


def head() -> str:
    """Returns the first line of the table."""
    return (
        f"{'M':>3}{'one stage':>12}{'two stages':>12}{'speed-up':>10}{'ideal':>7}"
        f"{'of ideal':>10}{'cores':>7}{'first step':>12}{'processor':>11}{'pairs':>10}"
    )


def line(row: Row) -> str:
    """Returns a line of the table."""
    one_stage_wall = row.median("wall", ONE_STAGE)
    wall = row.median("wall", TWO_STAGES)
    cores = row.median("cpu", TWO_STAGES) / wall
    start = row.starts[TWO_STAGES]
    return (
        f"{row.microbatches:3}{one_stage_wall * 1e3:9.1f} ms{wall * 1e3:9.1f} ms"
        f"{row.speed_up:10.2f}{row.ideal:7.2f}{row.speed_up / row.ideal:10.0%}"
        f"{cores:7.2f}{start['first']:10.2f} s{start['first_cpu']:9.2f} s"
        f"{len(row.counted_pairs):4} of {len(row.pairs):2}"
    )


def start_growth(rows: list[Row]) -> str:
    """Returns a sentence on how the time to the first step of two stages grows from the
    first row's number of microbatches to the last row's.
    """
    few, many = rows[0], rows[-1]
    few_start = few.starts[TWO_STAGES]
    many_start = many.starts[TWO_STAGES]
    return (
        f"Time to the first step with M = {many.microbatches} over that with M = "
        f"{few.microbatches}: {many_start['first'] / few_start['first']:.2f} (processor "
        f"time {many_start['first_cpu'] / few_start['first_cpu']:.2f})."
    )


def measure_all(counts: Sequence[int]) -> list[Row]:
    """Prints a line for each number of microbatches, and a summary; returns the rows."""
    rows = []
    print(head())
    for microbatches in counts:
        row = measure(microbatches, min_pairs=_FLAGS.pairs, minutes=_FLAGS.minutes)
        print(line(row), flush=True)
        rows.append(row)
    # Growth from four microbatches on, if these were measured.
    print(start_growth([row for row in rows if row.microbatches >= 4] or rows))
    difference = max(row.loss_difference for row in rows)
    print(f"Losses of one and of two stages differ by {difference:.1e} at most.\n")
    return rows


def _main(argv: list[str]) -> None:
    """Measures, prints the table and the timelines, and writes JSON."""
    del argv
    counts = [int(count) for count in _FLAGS.microbatches]
    rows = measure_all(counts) if counts else []
    for chunks in map(int, _FLAGS.chunks):
        suffix = f", {chunks} chunks at each stage" if chunks > 1 else ""
        timelines_by_name = timelines(
            TIMELINE_MICROBATCHES, chunks, minutes=_FLAGS.minutes
        )
        for name, timeline in timelines_by_name.items():
            print(f"{name}, in milliseconds, M = {TIMELINE_MICROBATCHES}{suffix}")
            print(f"{timeline_text(timeline, unit='ms')}\n", flush=True)
    if _FLAGS.json:
        Path(_FLAGS.json).write_text(
            json.dumps([dataclasses.asdict(row) for row in rows]), encoding="utf-8"
        )


if __name__ == "__main__":
    flags.DEFINE_list("microbatches", ["1", "4", "8", "32"], "How many microbatches.")
    flags.DEFINE_list(
        "chunks",
        ["1"],
        "Numbers of chunks on each stage, for which timelines are printed.",
    )
    flags.DEFINE_integer(
        "pairs", 7, "How many pairs should count, for each number of microbatches."
    )
    flags.DEFINE_float(
        "minutes",
        1.0,
        "The maximum time for each number of microbatches, in which to wait for idle cores.",
    )
    flags.DEFINE_string("json", None, "A file to write all measurements to.")
    app.run(_main)
