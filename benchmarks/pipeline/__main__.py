"""Speed-up of a pipeline of two stages on two cores over one stage on one core, against the
ideal.

    python -m benchmarks.pipeline                          # M = 1, 4, 8, 32; some minutes
    python -m benchmarks.pipeline --microbatches=4,8 --pairs=3 --json=pipeline.json
    python -m benchmarks.pipeline --microbatches= --chunks=1,2         # timelines only

Eight equal blocks are two chunks of equal cost. Microbatches have a fixed size, so the
batch grows with their number M. One stage runs in a process with one thread, two stages
in a process with two threads. Both take steps in turn; a speed-up is the median ratio of
steps taken one after the other. The ideal, K M / (M + K - 1), ignores communication and
the update of variables.

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
TIMELINE_MICROBATCHES = 8  # the number of microbatches of a printed timeline
MAX_OTHER_CORES = 0.1  # the cores that other processes may use while a pair counts
SAMPLE = 16  # the minimum number of microbatches that are timed together
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
        return self.wall[0] / self.wall[1]


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
    def speed_up(self) -> float:
        """The median of the pairs' speed-ups; of all pairs if none counts."""
        return statistics.median(
            pair.speed_up for pair in self.counted_pairs or self.pairs
        )

    @property
    def ideal(self) -> float:
        """The speed-up that the schedule allows."""
        return ideal_speed_up(STAGES, self.microbatches)

    def median(self, kind: str, index: int) -> float:
        """Returns the median of "wall" or "cpu" seconds, of one stage (0) or of two (1)."""
        return statistics.median(
            getattr(pair, kind)[index] for pair in self.counted_pairs or self.pairs
        )


def measure(microbatches: int, pairs: int, minutes: float) -> Row:
    """Returns the measurements for a number of microbatches.

    Args:
      microbatches: the number of microbatches.
      pairs: the number of pairs that should count.
      minutes: the maximum time, after which fewer pairs suffice, but at least one.
    """
    workers = [
        Process(Case(stages, microbatches), "benchmarks.pipeline.worker")
        for stages in (1, STAGES)
    ]
    one_stage, two_stages = workers
    end = time.monotonic() + 60 * minutes
    try:
        # Two steps, which also warm up the workers.
        losses = [worker.ask("steps", 2)["loss"][-1] for worker in workers]
        row = Row(
            microbatches=microbatches,
            pairs=[],
            losses=(losses[0], losses[1]),
            starts=(one_stage.start, two_stages.start),
        )
        steps = math.ceil(SAMPLE / microbatches)
        while not row.pairs or (
            len(row.counted_pairs) < pairs and time.monotonic() < end
        ):
            _wait_for_quiet(end)
            row.pairs.append(_pair(one_stage, two_stages, steps))
    finally:
        for worker in workers:
            worker.stop()
    return row


def _wait_for_quiet(end: float) -> None:
    """Waits until other processes leave the cores idle, or the time is up."""
    while time.monotonic() < end:
        before = _processor_time()
        start = time.monotonic()
        time.sleep(0.2)
        if _processor_time() - before <= MAX_OTHER_CORES * (time.monotonic() - start):
            return


def _pair(one_stage: Process, two_stages: Process, steps: int) -> Pair:
    """Returns a pair of measurements, each of a number of steps."""
    processor_time_before = _processor_time()
    start = time.monotonic()
    one = one_stage.ask("steps", steps)
    two = two_stages.ask("steps", steps)
    seconds = time.monotonic() - start
    processor_time = _processor_time() - processor_time_before
    other_processor_time = processor_time - sum(one["cpu"]) - sum(two["cpu"])
    return Pair(
        wall=(statistics.fmean(one["wall"]), statistics.fmean(two["wall"])),
        cpu=(statistics.fmean(one["cpu"]), statistics.fmean(two["cpu"])),
        other_cores=max(0.0, other_processor_time / seconds),
    )


def _processor_time() -> float:
    """Returns the seconds for which all cores have been busy; Linux only, otherwise 0."""
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
    measured_timelines = {}
    end = time.monotonic() + 60 * minutes
    for stages, chunks_of_stage in ((1, 1), (STAGES, chunks)):
        worker = Process(
            Case(stages, microbatches, chunks=chunks_of_stage),
            "benchmarks.pipeline.worker",
        )
        worker.ask("steps", 3)
        answers = []
        for _ in range(tries):
            _wait_for_quiet(end)
            answers.append(worker.ask("timeline", 1))
        worker.stop()
        measured_timelines[stages] = min(
            (_timeline(calls, stages) for calls in answers),
            key=lambda timeline: timeline.time,
        )
    costs = []
    for kind in ("forward", "backward"):
        spans = [span for span in measured_timelines[1].spans if span.kind == kind]
        median = statistics.median(span.end - span.start for span in spans)
        costs.append(median / (STAGES * chunks))
    return {
        "predicted": simulate(interleaved(STAGES, microbatches, chunks), *costs),
        "measured": measured_timelines[STAGES],
    }


def _timeline(calls: list[Any], stages: int) -> Timeline:
    """Returns the timeline of the calls that a worker answers: see `worker.TimedCall`."""
    spans = []
    for phase, chunk, microbatch, start, end in calls:
        # Chunks are dealt to the stages in turn.
        task = Task(chunk % stages, microbatch, phase, chunk // stages)
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
    return (
        f"{row.microbatches:3}{row.median('wall', 0) * 1e3:9.1f} ms"
        f"{row.median('wall', 1) * 1e3:9.1f} ms{row.speed_up:10.2f}{row.ideal:7.2f}"
        f"{row.speed_up / row.ideal:10.0%}{row.median('cpu', 1) / row.median('wall', 1):7.2f}"
        f"{row.starts[1]['first']:10.2f} s{row.starts[1]['first_cpu']:9.2f} s"
        f"{len(row.counted_pairs):4} of {len(row.pairs):2}"
    )


def starts(rows: list[Row]) -> str:
    """Returns a sentence on how the time to the first step grows with the number of
    microbatches.
    """
    few, many = rows[0], rows[-1]
    ratios = {
        kind: many.starts[1][kind] / few.starts[1][kind]
        for kind in ("first", "first_cpu")
    }
    return (
        f"Time to the first step with M = {many.microbatches} over that with M = "
        f"{few.microbatches}: {ratios['first']:.2f} (processor time "
        f"{ratios['first_cpu']:.2f})."
    )


def table(counts: Sequence[int]) -> list[Row]:
    """Prints a line for each number of microbatches, and a summary; returns the rows."""
    rows = []
    print(head())
    for m in counts:
        rows.append(measure(m, _FLAGS.pairs, _FLAGS.minutes))
        print(line(rows[-1]), flush=True)
    print(starts([r for r in rows if r.microbatches >= 4] or rows))
    difference = max(abs(r.losses[0] - r.losses[1]) / abs(r.losses[0]) for r in rows)
    print(f"Losses of one and of two stages differ by {difference:.1e} at most.\n")
    return rows


def _main(argv: list[str]) -> None:
    del argv
    counts = [int(m) for m in _FLAGS.microbatches]
    rows = table(counts) if counts else []
    for chunks in map(int, _FLAGS.chunks):
        note = f", {chunks} chunks at each stage" if chunks > 1 else ""
        by_name = timelines(TIMELINE_MICROBATCHES, chunks, minutes=_FLAGS.minutes)
        for name, timeline in by_name.items():
            print(f"{name}, in milliseconds, M = {TIMELINE_MICROBATCHES}{note}")
            print(f"{timeline_text(timeline, unit='ms')}\n", flush=True)
    if _FLAGS.json:
        Path(_FLAGS.json).write_text(
            json.dumps([dataclasses.asdict(r) for r in rows]), encoding="utf-8"
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
