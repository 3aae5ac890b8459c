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
from typing import NamedTuple

from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from benchmarks.step.cases.cases import SIZES, Case, make_config
from benchmarks.step.cases.feeds import batches
from benchmarks.step.cases.sizes import MODELS
from benchmarks.step.cases.worker import build
from transformer.cli.program import run_main

FLAGS = flags.FLAGS


class OpTime(NamedTuple):
    """The ops of a type in a step.

    Attributes:
      count: the number of ops.
      milliseconds: their time, summed over threads.
    """

    count: int = 0
    milliseconds: float = 0.0


Times = dict[str, OpTime]  # by the type of op
# The profiler's name of an op: "name:Type".
_OP = re.compile(r"[^:]+:(_?[A-Z]\w+)")
# Names of this form that are not ops, but the runtime that runs them, start with these.
_RUNTIME = ("ThreadpoolListener", "Executor", "TFRT", "$")
_STEPS = 2  # the steps that a case takes in its turn


def main(argv: list[str]) -> None:
    """Measures and prints a table."""
    del argv
    config = make_config(FLAGS.model, FLAGS.size)
    cases = [Case(config, grid) for grid in ("", *FLAGS.grids)]
    names = [case.name for case in cases]
    results = measure(cases, FLAGS.rounds)
    print(table(names, results, least=FLAGS.least))


def measure(cases: Iterable[Case], rounds: int) -> list[Times]:
    """Returns for each case the ops of a step by type: medians over rounds."""
    steps_and_batches = []
    for case in cases:
        _, make_step = build(case)
        steps_and_batches.append((make_step(), batches(case.config)))
    for step, batches_of_case in steps_and_batches:  # first steps trace and compile
        for batch in batches_of_case:
            float(step(batch))
    times_of_cases: list[list[Times]] = [[] for _ in steps_and_batches]
    for _ in range(rounds):
        for (step, batches_of_case), times in zip(steps_and_batches, times_of_cases):
            times.append(_profile(step, batches_of_case))
    return [_median(times) for times in times_of_cases]


def _profile(step: Callable[..., object], batches_of_case: list[object]) -> Times:
    """Takes `_STEPS` steps under the profiler, and returns the ops of a step by type."""
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=3, python_tracer_level=0
    )
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder, options=options)
        for k in range(_STEPS):
            float(step(batches_of_case[k % len(batches_of_case)]))
        tf.profiler.experimental.stop()
        counts: collections.Counter[str] = collections.Counter()
        total_ms: collections.Counter[str] = collections.Counter()
        for op_type, milliseconds in _events(Path(folder)):
            counts[op_type] += 1
            total_ms[op_type] += milliseconds
    return {
        op_type: OpTime(count // _STEPS, total_ms[op_type] / _STEPS)
        for op_type, count in counts.items()
    }


def _events(folder: Path) -> Iterator[tuple[str, float]]:
    """Yields type and milliseconds of each op that ran, given the profiler's folder."""
    for file in folder.rglob("*.xplane.pb"):
        space = xplane_pb2.XSpace.FromString(file.read_bytes())
        for plane in space.planes:
            if plane.name != "/host:CPU":
                continue
            for line in plane.lines:
                for event in line.events:
                    name = plane.event_metadata[event.metadata_id].name
                    match = _OP.fullmatch(name)
                    if match and not name.startswith(_RUNTIME):
                        op_type = match.group(1)
                        yield op_type, event.duration_ps / 1e9


def _median(times_of_rounds: list[Times]) -> Times:
    """Returns the counts of the first round, and the medians over rounds of times."""
    op_types = {op_type for times in times_of_rounds for op_type in times}
    medians = {}
    for op_type in op_types:
        ops = [times.get(op_type, OpTime()) for times in times_of_rounds]
        milliseconds = statistics.median(op.milliseconds for op in ops)
        medians[op_type] = OpTime(ops[0].count, milliseconds)
    return medians


def table(names: list[str], results: list[Times], least: float) -> str:
    """Returns a table with a line for each type of op, those with the most time first.

    Args:
      names: the names of the cases.
      results: the ops of each case.
      least: types that take fewer milliseconds in all cases are summed up in one line.
    """
    max_ms: dict[str, float] = {}  # of each type, over cases
    for times in results:
        for op_type, op in times.items():
            max_ms[op_type] = max(max_ms.get(op_type, 0.0), op.milliseconds)
    op_types = sorted(max_ms, key=lambda op_type: -max_ms[op_type])
    # The types of ops that each line sums up, by the title of the line.
    types_of_lines = {
        op_type: [op_type] for op_type in op_types if max_ms[op_type] >= least
    }
    types_of_lines["others"] = [
        op_type for op_type in op_types if max_ms[op_type] < least
    ]
    types_of_lines["all"] = op_types
    header = f"{'ops, and ms of a step':28}"
    lines = [header + "".join(f"{name[:26]:>28}" for name in names)]
    for title, types_of_line in types_of_lines.items():
        line = f"{title[:27]:28}"
        for times in results:
            op = _sum(times, types_of_line)
            line += f"{op.count:15,}{op.milliseconds:10.2f} ms"
        lines.append(line)
    return "\n".join(lines)


def _sum(times: Times, op_types: Iterable[str]) -> OpTime:
    """Returns the sum over types of ops."""
    ops = [times[op_type] for op_type in op_types if op_type in times]
    return OpTime(
        count=sum(op.count for op in ops),
        milliseconds=sum(op.milliseconds for op in ops),
    )


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
    flags.DEFINE_integer("rounds", 7, "How often each case takes its turn.")
    flags.DEFINE_float(
        "least", 0.5, "Types that take fewer milliseconds are summed up in one line."
    )


if __name__ == "__main__":
    define_flags()
    run_main(main)
