"""Time of each family of ops, forward and backward, against plain TensorFlow.

    python -m benchmarks.ops --quick                  # about a minute
    python -m benchmarks.ops --only=sort,fft --json=out.json

meshtf runs an op on one mesh position (one virtual device of a mesh), on eight positions
sharded along "b", and on eight positions sharded along the dimension of interest, such as
the one that is sorted. All positions share the one CPU, so eight positions do the work of
one in eight shards, and a ratio above that of one position is the cost of sharding. "first"
is the first call of a function: tracing, planning, TensorFlow's preparation, and one run.
All variants of an op are in one process and are called in turn; ratios are medians over
rounds. Results are compared with TensorFlow's.
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
MAX_ERROR = 1e-4  # the largest relative error of meshtf's results
PLAIN = "plain TensorFlow"

Run = Callable[[], list[Any]]  # a call of a function, with its inputs
MakeRun = Callable[[], Run]  # makes a new function, so that its first call can be timed


def plain_maker(case: Case, dy: np.ndarray | None) -> MakeRun:
    """Returns a maker of runs in plain TensorFlow.

    Args:
      case: the op.
      dy: the gradient of the op's result, for its gradients; None: without gradients.
    """
    inputs = [tf.constant(array) for array in case.arrays()]
    float_indices = [i for i, x in enumerate(inputs) if not x.dtype.is_integer]

    def forward(*xs: Any) -> list[Any]:
        """Returns the op's result."""
        return [case.plain(*xs)]

    def forward_and_gradient(dy: Any, *xs: Any) -> list[Any]:
        """Returns the op's result, and the gradients of its inputs of floats."""
        floats = [xs[i] for i in float_indices]
        with tf.GradientTape() as tape:
            tape.watch(floats)
            y = case.plain(*xs)
        gradients = tape.gradient(y, floats, output_gradients=dy)
        return [y, *map(tf.convert_to_tensor, gradients)]

    program = forward if dy is None else forward_and_gradient
    args = inputs if dy is None else [tf.constant(dy), *inputs]

    def make_run() -> Run:
        """Returns a call of a new tf.function, which is not traced yet."""
        function = tf.function(program, autograph=False)
        return lambda: function(*args)

    return make_run


def meshtf_maker(case: Case, layout: str, dy: np.ndarray | None) -> MakeRun:
    """Returns a maker of runs in meshtf.

    Args:
      case: the op.
      layout: the layout on eight positions along the axis "x"; "": one position.
      dy: the gradient of the op's result, for its gradients; None: without gradients.
    """

    def forward(*xs: Any) -> list[Any]:
        """Returns the op's result."""
        return [case.ours(*xs)]

    def forward_and_gradient(dy: Any, *xs: Any) -> list[Any]:
        """Returns the op's result, and the gradients of its inputs of floats."""
        y = case.ours(*xs)
        floats = [x for x in xs if not x.dtype.startswith("int")]
        return [y, *mtf.gradients([y], floats, grad_ys=[dy])]

    def make_run() -> Run:
        """Returns a call of a new mtf.function, which is not traced yet."""
        # A new mesh, since plans are cached for each mesh.
        mesh = mtf.Mesh("x:8" if layout else "", layout)
        program = forward
        args = tensors(case, mesh)
        if dy is not None:
            program = forward_and_gradient
            args = [mtf.asarray(mesh, dy, result_of(case).shape), *args]
        function = mtf.function(program, mesh=mesh)
        return lambda: function(*args)

    return make_run


def tensors(case: Case, mesh: mtf.Mesh) -> list[mtf.Tensor]:
    """Returns the inputs of a case as tensors on a mesh."""
    return [
        mtf.asarray(mesh, array, shape)
        for array, shape in zip(case.arrays(), case.shapes())
    ]


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
    shard_dim = case.shard_dim
    makers = {
        PLAIN: plain_maker(case, dy),
        "1": meshtf_maker(case, layout="", dy=dy),
        "8 along b": meshtf_maker(case, layout="b:x", dy=dy),
        f"8 along {shard_dim}": meshtf_maker(case, layout=f"{shard_dim}:x", dy=dy),
    }
    first_calls: dict[str, list[float]] = {name: [] for name in makers}
    runs: dict[str, Run] = {}
    for _ in range(starts):
        for name, make_run in makers.items():
            runs[name] = make_run()
            first_calls[name].append(seconds(runs[name]))
    times_of_runs = time_in_turn(list(runs.values()), rounds)
    expected = runs[PLAIN]()
    rows = []
    for (name, run), times in zip(runs.items(), times_of_runs):
        error = relative_error(run(), expected) if case.exact else 0.0
        rows.append(
            Row(
                name=name,
                group=f"{case.family}: {case.name}",
                losses=[
                    error
                ],  # a row of this benchmark has an error in place of losses
                step={"wall": times, "first": first_calls[name]},
                start={},
            )
        )
    return rows


def time_in_turn(runs: Sequence[Run], rounds: int) -> list[list[float]]:
    """Returns for each run the seconds of a call in each round: [runs][rounds]. In a round
    all runs are called one after the other.
    """
    repeats_of_runs = [max(1, math.ceil(MIN_SECONDS / seconds(run))) for run in runs]
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, repeats, times_of_run in zip(runs, repeats_of_runs, times):
            times_of_run.append(seconds(run, repeats))
    return times


def seconds(run: Run, repeats: int = 1) -> float:
    """Returns the mean seconds of a call."""
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def relative_error(results: list[Any], expected: list[Any]) -> float:
    """Returns the largest difference of a result from TensorFlow's (`expected`), relative to
    the largest element of the latter.
    """
    errors = []
    for result, expected_result in zip(results, expected, strict=True):
        array = result.numpy()
        expected_array = expected_result.numpy()
        difference = np.abs(array - expected_array).max()
        errors.append(float(difference / np.abs(expected_array).max()))
    return max(errors)


def head(title: str) -> str:
    """Returns the two header lines of a table."""
    return (
        f"{title:44}{PLAIN:^17}{'1 position':^14}{'8 along b':^14}{'8 along':^20}\n"
        f"{'':44}{'run':>8}{'first':>9}" + f"{'run':>7}{'first':>7}" * 3
    )


def line(rows: list[Row]) -> str:
    """Returns the line of one op: milliseconds of plain TensorFlow, and ratios to them.

    Args:
      rows: the result of `measure`; the first row is that of plain TensorFlow.
    """
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
    """Returns the last line of a table: the medians over all ops of the ratios.

    Args:
      groups: the result of `measure` for each op.
    """
    # Of all ops, the rows of plain TensorFlow, then those of each way to shard.
    plain_rows, *mesh_columns = zip(*groups)
    text = f"{'median':61}"
    for mesh_rows in mesh_columns:
        for clock, number_format in (("wall", "7.2f"), ("first", "7.1f")):
            ratios = [
                ratio(row, plain, clock) for row, plain in zip(mesh_rows, plain_rows)
            ]
            text += f"{statistics.median(ratios):{number_format}}"
    return text


def main(argv: list[str]) -> None:
    """Measures, prints tables, and fails if results differ."""
    del argv
    # TensorFlow warns of functions that are made again and again, as they are here.
    tf.get_logger().setLevel("ERROR")
    cases = [case for case in CASES if not FLAGS.only or _matches(case, FLAGS.only)]
    groups_by_title: dict[str, list[list[Row]]] = {}
    for title, gradient in (("forward", False), ("forward and gradient", True)):
        print(head(title + ", ms and ratios"), flush=True)
        groups_by_title[title] = _measure_cases(cases, gradient)
        print(medians(groups_by_title[title]), end="\n\n")
    if FLAGS.json:
        with open(FLAGS.json, "w") as file:
            json.dump(
                {
                    title: [[row.as_dict() for row in rows] for rows in groups]
                    for title, groups in groups_by_title.items()
                },
                file,
                indent=1,
            )
    errors = []
    for rows in itertools.chain.from_iterable(groups_by_title.values()):
        for row in rows:
            (error,) = row.losses
            if not error < MAX_ERROR:  # also if it is NaN
                errors.append(f"{row.group}, {row.name}: off by {error:.1e}")
    if errors:
        sys.exit("\n".join(["results differ:", *errors]))


def _measure_cases(cases: Sequence[Case], gradient: bool) -> list[list[Row]]:
    """Measures cases, with or without gradients, and prints a line for each. Returns the rows
    of each case.
    """
    rounds = 5 if FLAGS.quick else FLAGS.rounds
    starts = 1 if FLAGS.quick else FLAGS.starts
    groups = []
    for case in cases:
        if case.gradient or not gradient:
            rows = measure(case, gradient=gradient, rounds=rounds, starts=starts)
            print(line(rows), flush=True)
            groups.append(rows)
    return groups


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
