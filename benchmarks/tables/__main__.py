"""The time of a training step with an embedding table, by the number of rows, beside plain
TensorFlow.

    python -m benchmarks.tables
    python -m benchmarks.tables --table_rows=20000,200000 --timed_steps=50

A step looks up 4,096 ids in a table of vectors of 64 numbers, multiplies them by a matrix, and
updates both by gradient descent or by Adagrad. The time should depend on the ids, and not on the
table. TensorFlow's gradient of a table is a tf.IndexedSlices, so its step does not either.

All steps of one optimizer run in one process and in turn, so that a slow moment of the machine
meets all of them. `flat` is the median ratio to the step with the smallest table, `to TensorFlow`
that to plain TensorFlow with the same table, each within rounds.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from absl import flags

import meshtf as mtf
from meshtf.display import text_table
from transformer.cli.program import run_main

FLAGS = flags.FLAGS
flags.DEFINE_list(
    "table_rows", ["20000", "200000", "2000000"], "The numbers of rows of the table."
)
flags.DEFINE_integer(
    "timed_steps", 30, "The number of timed steps of each case.", lower_bound=1
)

_BATCH = 4096
_WIDTH = 64
_RATE = 0.01
# How a case runs -> the arguments of its mesh; None: plain TensorFlow, which comes first.
_RUNTIMES: dict[str, dict[str, str] | None] = {
    "TensorFlow": None,
    "one device": {"axes": "", "layout": ""},
    "4 positions": {"axes": "model:4", "layout": "rows:model; batch:model"},
    "live": {
        "axes": "model:4",
        "layout": "rows:model; batch:model",
        "devices": "spmd:cpu:4",
    },
}
_OPTIMIZERS = {"SGD": mtf.optimizers.SGD, "Adagrad": mtf.optimizers.Adagrad}

Step = Callable[[np.ndarray], float]  # takes ids [batch], returns the loss


def main(argv: list[str]) -> None:
    """Prints the times of all cases, and their ratios."""
    del argv
    mtf.configure_process()
    # Before the first live mesh: jax cannot change the number of its CPU devices later.
    mtf.Mesh("model:4", devices="spmd:cpu:4")
    sizes = [int(size) for size in FLAGS.table_rows]
    for optimizer in _OPTIMIZERS:
        seconds = measure(optimizer, sizes, FLAGS.timed_steps)
        print(report(optimizer, sizes, seconds), flush=True)


def measure(
    optimizer: str, sizes: list[int], num_steps: int
) -> dict[tuple[str, int], list[float]]:
    """Returns the seconds of the steps of each case, a runtime and a number of rows."""
    steps: dict[tuple[str, int], Step] = {}
    for size in sizes:
        for name, mesh_arguments in _RUNTIMES.items():
            if mesh_arguments is None:
                steps[name, size] = tensorflow_step(optimizer, size)
            else:
                mesh = mtf.Mesh(**mesh_arguments)
                steps[name, size] = meshtf_step(mesh, optimizer, size)
    random = np.random.default_rng(0)
    seconds: dict[tuple[str, int], list[float]] = {case: [] for case in steps}
    for i in range(3 + num_steps):
        for (name, size), step in steps.items():
            ids = random.integers(0, size, _BATCH).astype("int32")
            start = time.perf_counter()
            step(ids)
            if i >= 3:  # the first steps compile
                seconds[name, size].append(time.perf_counter() - start)
    return seconds


def report(
    optimizer: str, sizes: list[int], seconds: dict[tuple[str, int], list[float]]
) -> str:
    """Returns a table of the cases of one optimizer."""
    lines = []
    for name in _RUNTIMES:
        for size in sizes:
            times = seconds[name, size]
            flat = median_ratio(times, seconds[name, sizes[0]])
            relative = median_ratio(times, seconds["TensorFlow", size])
            milliseconds = 1e3 * statistics.median(times)
            lines.append(
                [
                    f"{optimizer}, {name}",
                    f"{size:,}",
                    f"{milliseconds:.2f}",
                    f"{flat:.2f}",
                    f"{relative:.2f}",
                ]
            )
    header = [optimizer, "rows", "ms", "flat", "to TensorFlow"]
    return text_table(header, lines, align="<>>>>")


def median_ratio(times: list[float], baseline: list[float]) -> float:
    """Returns the median over rounds of the ratio of two times."""
    return statistics.median(x / y for x, y in zip(times, baseline, strict=True))


def initial_values(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the table [rows, width] and the matrix [width, outputs]."""
    random = np.random.default_rng(1)
    table = random.random((size, _WIDTH), dtype="float32") - 0.5
    matrix = random.normal(size=(_WIDTH, _WIDTH)) / 8
    return table, matrix.astype("float32")


def meshtf_step(mesh: mtf.Mesh, optimizer_name: str, size: int) -> Step:
    """Returns a step of meshtf."""
    zeros = mtf.layers.initializers.zeros
    table = mtf.Variable(mesh, f"rows:{size}; width:{_WIDTH}", zeros, "table")
    matrix = mtf.Variable(mesh, f"width:{_WIDTH}; outputs:{_WIDTH}", zeros, "matrix")
    variables = [table, matrix]
    for variable, value in zip(variables, initial_values(size)):
        variable.assign(value)
    optimizer = _OPTIMIZERS[optimizer_name](variables, _RATE)

    @mtf.function(mesh=mesh, ids="batch", step="")
    def train_step(ids: Any, step: Any) -> Any:
        """Returns the loss."""
        vectors = mtf.gather(table, ids, "rows")
        outputs = mtf.einsum([vectors, matrix], "batch; outputs")
        loss = mtf.reduce_mean(mtf.square(outputs - 1.0))
        grads = mtf.gradients([loss], variables)
        optimizer.apply_gradients(grads, variables, step)
        return loss

    return lambda ids: float(train_step(ids, np.int32(0)))


def tensorflow_step(optimizer: str, size: int) -> Step:
    """Returns a step of plain TensorFlow, on one device."""
    table, matrix = (tf.Variable(value) for value in initial_values(size))
    accumulators = [tf.Variable(tf.zeros_like(x)) for x in (table, matrix)]

    @tf.function(input_signature=[tf.TensorSpec([_BATCH], tf.int32)])
    def train_step(ids: Any) -> Any:
        """Returns the loss."""
        with tf.GradientTape() as tape:
            outputs = tf.gather(table, ids) @ matrix
            loss = tf.reduce_mean(tf.square(outputs - 1.0))
        rows, dense = tape.gradient(loss, [table, matrix])
        if optimizer == "SGD":
            table.scatter_sub(tf.IndexedSlices(_RATE * rows.values, rows.indices))
            matrix.assign_sub(_RATE * dense)
        else:
            adagrad(table, accumulators[0], rows)
            apply = functools.partial(
                tf.raw_ops.ResourceApplyAdagradV2, lr=_RATE, epsilon=1e-10
            )
            apply(var=matrix.handle, accum=accumulators[1].handle, grad=dense)
        return loss

    return lambda ids: float(train_step(ids))


def adagrad(table: Any, accumulator: Any, rows: tf.IndexedSlices) -> None:
    """Updates the rows of a table [rows, width] and of its accumulator."""
    ids, segments = tf.unique(rows.indices)
    sums = tf.math.unsorted_segment_sum(rows.values, segments, tf.size(ids))
    tf.raw_ops.ResourceSparseApplyAdagradV2(
        var=table.handle,
        accum=accumulator.handle,
        lr=_RATE,
        epsilon=1e-10,
        grad=sums,
        indices=ids,
    )


if __name__ == "__main__":
    run_main(main)
