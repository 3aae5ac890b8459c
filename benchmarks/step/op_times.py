"""Time of a training step by the type of TensorFlow's ops, hand-written and in meshtf.

    python -m benchmarks.step.op_times                                    # the language model
    python -m benchmarks.step.op_times --model=bert --grids=1x1,8x1 --size=full

One process builds the hand-written model and that of meshtf (on one device), which take
steps in turn under TensorFlow's profiler. The table has the number of ops of each type in
a step and their time, summed over threads, as medians over rounds.
"""

from __future__ import annotations

import collections
import os
import re
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from benchmarks.step.cases.cases import SIZES, Case, sized
from benchmarks.step.cases.feeds import batches
from benchmarks.step.cases.sizes import MODELS
from benchmarks.step.cases.worker import build
from transformer.cli.program import run_main

FLAGS = flags.FLAGS
Times = dict[str, tuple[int, float]]  # of each type: how many ops, and milliseconds
_OP = re.compile(r"[^:]+:(_?[A-Z]\w+)")  # the profiler's name of an op, but for ...
_AROUND = ("ThreadpoolListener", "Executor", "TFRT", "$")  # ... what runs ops
_STEPS = 2  # of one side before it is the other's turn


def main(argv: list[str]) -> None:
    """Measures and prints a table."""
    del argv
    config = sized(FLAGS.model, FLAGS.size)
    cases = [Case(config, grid) for grid in ("", *FLAGS.grids)]
    print(
        table([case.name for case in cases], measured(cases, FLAGS.rounds), FLAGS.least)
    )


def measured(cases: Iterable[Case], rounds: int) -> list[Times]:
    """Returns for each case the ops of a step by type."""
    built = [(build(case), batches(case.config)) for case in cases]
    steps = [(make(), batches_of_case) for (_, make), batches_of_case in built]
    for step, batches_of_case in steps:
        for batch in batches_of_case:
            float(step(batch))
    results: list[list[Times]] = [[] for _ in steps]
    for _ in range(rounds):
        for (step, batches_of_case), times in zip(steps, results):
            times.append(_profiled(step, batches_of_case))
    return [_median(times) for times in results]


def _profiled(step: Callable[..., object], batches_of_case: list[object]) -> Times:
    """Returns the ops of a step by type."""
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=3, python_tracer_level=0
    )
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder, options=options)
        for k in range(_STEPS):
            float(step(batches_of_case[k % len(batches_of_case)]))
        tf.profiler.experimental.stop()
        counts: collections.Counter[str] = collections.Counter()
        spent: collections.Counter[str] = collections.Counter()
        for kind, milliseconds in _events(Path(folder)):
            counts[kind] += 1
            spent[kind] += milliseconds
    return {kind: (counts[kind] // _STEPS, spent[kind] / _STEPS) for kind in counts}


def _events(folder: Path) -> Iterator[tuple[str, float]]:
    """Yields type and milliseconds of each op that ran."""
    for file in folder.rglob("*.xplane.pb"):
        space = xplane_pb2.XSpace.FromString(file.read_bytes())
        for plane in space.planes:
            if plane.name == "/host:CPU":
                for event in (event for line in plane.lines for event in line.events):
                    name = plane.event_metadata[event.metadata_id].name
                    op = _OP.fullmatch(name)
                    if op and not name.startswith(_AROUND):
                        yield op[1], event.duration_ps / 1e9


def _median(times: list[Times]) -> Times:
    kinds = {kind for batches_of_case in times for kind in batches_of_case}
    return {
        kind: (
            times[0].get(kind, (0, 0.0))[0],
            statistics.median(
                batches_of_case.get(kind, (0, 0.0))[1] for batches_of_case in times
            ),
        )
        for kind in kinds
    }


def table(names: list[str], results: list[Times], least: float) -> str:
    """Returns types by the time that they took anywhere, those below `least`
    milliseconds as one.
    """
    kinds = sorted(
        {kind for times in results for kind in times},
        key=lambda kind: -max(times.get(kind, (0, 0.0))[1] for times in results),
    )
    large = [
        k for k in kinds if max(times.get(k, (0, 0.0))[1] for times in results) >= least
    ]
    rows = [(kind, [times.get(kind, (0, 0.0)) for times in results]) for kind in large]
    rows += [
        ("others", [_sum(times, set(kinds) - set(large)) for times in results]),
        ("all", [_sum(times, set(kinds)) for times in results]),
    ]
    head = f"{'ops, and ms of a step':28}" + "".join(
        f"{name[:26]:>28}" for name in names
    )
    return "\n".join(
        [
            head,
            *(
                f"{kind[:27]:28}"
                + "".join(f"{n:15,}{ms:10.2f} ms" for n, ms in columns)
                for kind, columns in rows
            ),
        ]
    )


def _sum(times: Times, kinds: set[str]) -> tuple[int, float]:
    batches_of_case = [times[kind] for kind in kinds if kind in times]
    return sum(n for n, _ in batches_of_case), sum(ms for _, ms in batches_of_case)


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_enum("model", "lm", MODELS, "Which model.")
    flags.DEFINE_enum(
        "size",
        "quick",
        list(SIZES),
        "How large a model.",
    )
    flags.DEFINE_list("grids", ["1x1"], "Meshes: 1x1, 8x1, 4x2 or 1x8.")
    flags.DEFINE_integer("rounds", 7, "How often each side takes its turn.")
    flags.DEFINE_float(
        "least", 0.5, "Types that take fewer milliseconds are summed up in one line."
    )


if __name__ == "__main__":
    define_flags()
    run_main(main)
