"""Time of each family of ops, forward and backward, against plain TensorFlow.

    python -m benchmarks.ops --quick                  # about a minute
    python -m benchmarks.ops --only=sort,fft --json=out.json

meshtf runs an op on one mesh position, on eight positions sharded along "b", and on eight
positions sharded along the dimension of interest, such as the one that is sorted. All
positions share the one CPU, so eight positions do the work of one in eight shards, and a
ratio above that of one position is the cost of sharding. "first" is the first call of a
function: tracing, planning, TensorFlow's preparation, and one run. All variants of an op
are in one process and are called in turn; ratios are medians over rounds. Results are
compared with TensorFlow's.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import flags

import meshtf as mtf
from benchmarks.harness.report import Row, ratio
from benchmarks.ops.op_cases import CASES, Case
from transformer.cli.program import run_main

FLAGS = flags.FLAGS

MIN_SECONDS = 0.005  # shorter calls are timed several at once
PLAIN = "plain TensorFlow"

Run = Callable[[], list[Any]]
Start = Callable[[], Run]  # makes a new function, so that its first call can be timed


def plain_start(case: Case, dy: np.ndarray | None) -> Start:
    """Returns a maker of the function in plain TensorFlow.

    Args:
      case: the op.
      dy: the gradient of the op's result, for its gradients; None: without gradients.
    """
    xs = [tf.constant(a) for a in case.arrays()]
    float_indices = [i for i, x in enumerate(xs) if not x.dtype.is_integer]

    def program(*xs: Any) -> list[Any]:
        if dy is None:
            return [case.plain(*xs)]
        targets = [xs[i] for i in float_indices]
        with tf.GradientTape() as tape:
            tape.watch(targets)
            y = case.plain(*xs[:-1])
        return [y, *map(tf.convert_to_tensor, tape.gradient(y, targets, xs[-1]))]

    args = xs if dy is None else [*xs, tf.constant(dy)]

    def start() -> Run:
        function = tf.function(program, autograph=False)
        return lambda: function(*args)

    return start


def named_start(case: Case, layout: str, dy: np.ndarray | None) -> Start:
    """Returns a maker of the function in meshtf.

    Args:
      case: the op.
      layout: the layout on eight positions along the axis "x"; "": one position.
      dy: the gradient of the op's result, for its gradients; None: without gradients.
    """

    def start() -> Run:
        # A new mesh, since plans are cached for each mesh.
        mesh = mtf.Mesh("x:8" if layout else "", layout)
        args = tensors(case, mesh)
        if dy is not None:
            args.append(mtf.asarray(mesh, dy, result_of(case).shape))

        def program(*xs: Any) -> list[Any]:
            if dy is None:
                return [case.ours(*xs)]
            y = case.ours(*xs[:-1])
            floats = [x for x in xs[:-1] if not x.dtype.startswith("int")]
            return [y, *mtf.gradients([y], floats, [xs[-1]])]

        function = mtf.function(program, mesh=mesh)
        return lambda: function(*args)

    return start


def tensors(case: Case, mesh: mtf.Mesh) -> list[mtf.Tensor]:
    """Returns the inputs of a case as tensors on a mesh."""
    return [mtf.asarray(mesh, a, n) for a, n in zip(case.arrays(), case.names())]


def result_of(case: Case) -> mtf.Tensor:
    """Returns the result of a case on one position."""
    return case.ours(*tensors(case, mtf.Mesh("")))


def measure(
    case: Case,
    gradient: bool,
    rounds: int,
    starts: int,
) -> list[Row]:
    """Returns rows for plain TensorFlow, for one position, and for eight positions sharded along
    "b" and along the dimension of interest.

    Args:
      case: the op.
      gradient: whether gradients are computed as well.
      rounds: the number of rounds that are timed.
      starts: the number of first calls that are timed.
    """
    dy = None
    if gradient:
        y = result_of(case)
        dy = np.random.default_rng(1).normal(size=y.shape.sizes).astype(y.dtype)
    starts_by_name = {
        PLAIN: plain_start(case, dy),
        "1": named_start(case, "", dy),
        "8 along b": named_start(case, "b:x", dy),
        f"8 along {case.shard_dim}": named_start(case, f"{case.shard_dim}:x", dy),
    }
    first_calls: dict[str, list[float]] = {name: [] for name in starts_by_name}
    runs: dict[str, Run] = {}
    for _ in range(starts):
        for name, start in starts_by_name.items():
            runs[name] = start()
            first_calls[name].append(seconds(runs[name]))
    wall = in_turn(list(runs.values()), rounds)
    expected = runs[PLAIN]()
    return [
        Row(
            name=name,
            group=f"{case.family}: {case.name}",
            # In place of losses: the difference from TensorFlow's results.
            losses=[relative_error(runs[name](), expected) if case.exact else 0.0],
            step={"wall": times, "first": first_calls[name]},
            start={},
        )
        for name, times in zip(starts_by_name, wall)
    ]


def in_turn(runs: Sequence[Run], rounds: int) -> list[list[float]]:
    """Returns for each run the seconds of a call in each round: [runs][rounds]. In a round
    all runs are called one after the other.
    """
    repeats = [max(1, math.ceil(MIN_SECONDS / seconds(run))) for run in runs]
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, repeat, times_of_run in zip(runs, repeats, times):
            times_of_run.append(seconds(run, repeat))
    return times


def seconds(run: Run, repeats: int = 1) -> float:
    """Returns the mean seconds of a call."""
    before = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - before) / repeats


def relative_error(results: list[Any], expected: list[Any]) -> float:
    """Returns the largest difference of results, relative to the largest element."""
    pairs = [(x.numpy(), y.numpy()) for x, y in zip(results, expected, strict=True)]
    return max(float(np.abs(x - y).max() / np.abs(y).max()) for x, y in pairs)


def head(title: str) -> str:
    """Returns the two header lines of a table."""
    return (
        f"{title:44}{PLAIN:^17}{'1 position':^14}{'8 along b':^14}{'8 along':^20}\n"
        f"{'':44}{'run':>8}{'first':>9}" + f"{'run':>7}{'first':>7}" * 3
    )


def line(rows: list[Row]) -> str:
    """Returns one op's line: milliseconds of plain TensorFlow, and ratios to them."""
    plain, *mesh_rows = rows
    ratios = "".join(
        f"{ratio(row, plain, 'wall'):7.2f}{ratio(row, plain, 'first'):7.1f}"
        for row in mesh_rows
    )
    shard_dim = rows[-1].name.removeprefix("8 along ")
    return (
        f"{plain.group:44}{statistics.median(plain.step['wall']) * 1e3:8.2f}"
        f"{statistics.median(plain.step['first']) * 1e3:9.0f}{ratios}  "
        f"{shard_dim}"
    )


def medians(groups: list[list[Row]]) -> str:
    """Returns the last line of a table: the medians over all ops of the ratios."""
    text = f"{'median':61}"
    for i in (1, 2, 3):  # the rows of meshtf
        for clock, number_format in (("wall", "7.2f"), ("first", "7.1f")):
            ratios = [ratio(rows[i], rows[0], clock) for rows in groups]
            text += f"{statistics.median(ratios):{number_format}}"
    return text


def main(argv: list[str]) -> None:
    """Measures, prints tables, and fails if results differ."""
    del argv
    # TensorFlow warns of functions that are made again and again, as they are here.
    tf.get_logger().setLevel("ERROR")
    rounds, starts = (5, 1) if FLAGS.quick else (FLAGS.rounds, FLAGS.starts)
    cases = [case for case in CASES if not FLAGS.only or _matches(case, FLAGS.only)]
    measured: dict[str, list[list[Row]]] = {}
    for title, gradient in (("forward", False), ("forward and gradient", True)):
        print(head(title + ", ms and ratios"), flush=True)
        groups = measured[title] = []
        for case in cases:
            if case.gradient or not gradient:
                groups.append(measure(case, gradient, rounds, starts))
                print(line(groups[-1]), flush=True)
        print(medians(groups), end="\n\n")
    if FLAGS.json:
        with open(FLAGS.json, "w") as file:
            json.dump(
                {
                    title: [[row.as_dict() for row in rows] for rows in groups]
                    for title, groups in measured.items()
                },
                file,
                indent=1,
            )
    all_groups = itertools.chain.from_iterable(measured.values())
    errors = [
        f"{row.group}, {row.name}: off by {row.losses[0]:.1e}"
        for row in itertools.chain.from_iterable(all_groups)
        if not row.losses[0] < 1e-4
    ]
    if errors:
        sys.exit("\n".join(["results differ:", *errors]))


def _matches(case: Case, words: Sequence[str]) -> bool:
    """Returns whether one of the words occurs in the family or the name of a case."""
    return any(word in f"{case.family} {case.name}" for word in words)


def define_flags() -> None:
    """Defines the flags. Not at import, so that tests can import this module."""
    flags.DEFINE_boolean("quick", False, "Fewer rounds, and one first call of each.")
    flags.DEFINE_list(
        "only", [], "Only families and ops with one of these in their name."
    )
    flags.DEFINE_integer("rounds", 15, "How many rounds are timed.")
    flags.DEFINE_integer("starts", 3, "How many first calls are timed.")
    flags.DEFINE_string("json", None, "A file to write all numbers to.")


if __name__ == "__main__":
    define_flags()
    run_main(main)
