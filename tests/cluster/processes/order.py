"""What workers are asked to do, they do in that order: values are read just after they
are given.

Usage:

    python -m tests.cluster.processes.order --cluster=...       # prints what was read
    too early, as JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import tensorflow as tf

import meshtf as mtf

_SIZE = 1 << 20


def read_too_early(turns: int) -> list[Sequence[float]]:
    """Returns (expected, found) of each turn in which a function saw another value."""
    mesh = mtf.Mesh("data:2", "d:data")
    variable = mtf.Variable(mesh, f"d:{_SIZE}", mtf.layers.initializers.zeros, "v")

    @mtf.function(mesh=mesh)
    def mean() -> mtf.Tensor:
        return mtf.reduce_mean(variable)

    mean()
    mismatches = [
        (float(turn), _after(variable, turn, mean)) for turn in range(1, turns + 1)
    ]
    return [pair for pair in mismatches if pair[0] != pair[1]]


def _after(variable: mtf.Variable, value: int, mean: mtf.Function) -> float:
    variable.load(
        lambda region: tf.fill([region[0].stop - region[0].start], float(value))
    )
    return float(mean())


def readers_too_early(turns: int) -> int:
    """Returns how often a reader's first batch was not there, though its dataset was
    made.
    """
    mesh = mtf.Mesh("data:2", "batch:data")
    missing = 0
    for _ in range(turns):
        rows = mtf.HostReader(
            mesh,
            {"x": "batch"},
            4,
            lambda w, n: tf.data.Dataset.from_tensors(
                {"x": tf.range(w * 4 // n, (w + 1) * 4 // n)}
            ),
        )
        try:
            missing += next(rows)["x"].numpy().tolist() != [0, 1, 2, 3]
        except tf.errors.FailedPreconditionError:
            missing += 1
    return missing


if __name__ == "__main__":
    mtf.connect(sys.argv[-1].removeprefix("--cluster="))
    print(
        json.dumps({"variables": read_too_early(20), "readers": readers_too_early(20)})
    )
