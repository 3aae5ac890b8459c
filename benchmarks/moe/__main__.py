"""Time of mixtures of experts: dispatch by index and by one-hot matmuls, against dense
layers, and for many experts.

    python -m benchmarks.moe --quick                  # half a minute
    python -m benchmarks.moe --axes=data:4 --layout='batch:data; experts:data'

Three comparisons of forward and backward passes; ratios are medians over rounds:

    dispatch   tokens to slots and back, by one-hot matmuls, relative to indices
    dense      a mixture, relative to a dense layer of equal FLOPs (k * capacity factor * d_ff wide)
    experts    mixtures of more experts, relative to 8 experts, at equal FLOPs per token

The gradients of all experts are computed and written, so the memory-bound part of the time
grows with their number. With --update the time includes a step of gradient descent.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import statistics
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from absl import flags

import meshtf as mtf
from benchmarks.ops.__main__ import Run, in_turn
from transformer.cli.program import run_main
from transformer.experts import gating
from transformer.experts.dispatch import Dispatch, by_index, by_one_hot
from transformer.experts.moe_layer import MixtureOfExperts
from transformer.experts.routing import Capacity, Choices, Routing

FLAGS = flags.FLAGS
MIXTURES = (8, 16, 32, 64)


@dataclasses.dataclass(frozen=True)
class Size:
    """The sizes that all measurements share."""

    axes: str = ""
    layout: str = ""
    batch: int = 4
    length: int = 1024
    d_model: int = 512
    d_ff: int = 2048
    factor: float = 1.0
    update: bool = False

    @property
    def mesh(self) -> mtf.Mesh:
        """A mesh on which nothing is yet."""
        return mtf.Mesh(self.axes, self.layout)

    @property
    def gate(self) -> Callable[..., Routing]:
        """Top-2 routing."""
        return functools.partial(
            gating.top_k, capacity=Capacity(train=self.factor, minimum=1)
        )

    def random_array(self, *sizes: int) -> np.ndarray:
        """Returns normal numbers of a batch: [batch, length, *sizes]."""
        shape = (self.batch, self.length, *sizes)
        return np.random.default_rng(0).normal(size=shape).astype("float32")


def dispatch_run(size: Size, experts: int, dispatch: Dispatch) -> Run:
    """Returns what takes tokens to slots and back, and what flows back of both."""
    mesh = size.mesh
    logits = mtf.asarray(mesh, size.random_array(experts), "batch;length;experts_all")
    routing = size.gate(logits, training=True)
    x = mtf.asarray(mesh, size.random_array(size.d_model), "batch;length;d_model")

    @mtf.function(mesh=mesh)
    def step(
        x: Any,
        tokens: Any,
        weights: Any,
        sources: Any,
        gates: Any,
        slots: Any,
    ) -> Any:
        routes = dataclasses.replace(
            routing,
            tokens=tokens,
            weights=weights,
            sources=sources,
            choices=Choices(slots, gates, slots, slots, slots),
        )
        y = dispatch.combine(dispatch.take(x, routes), routes, x)
        return y, mtf.gradients([mtf.reduce_sum(mtf.square(y))], [x])[0]

    return lambda: step(
        x,
        routing.tokens,
        routing.weights,
        routing.sources,
        routing.choices.gates,
        routing.choices.slots,
    )


def layer_run(size: Size, make: Callable[[mtf.Mesh], mtf.Module]) -> Run:
    """Returns a forward and a backward pass of a layer."""
    mesh = size.mesh
    layer = make(mesh)
    variables = layer.trainable_variables
    descent = mtf.optimizers.SGD(variables, 1e-6)
    x = mtf.asarray(mesh, size.random_array(size.d_model), "batch;length;d_model")

    @mtf.function(mesh=mesh, count="")
    def step(x: Any, count: Any) -> Any:
        y = layer(x, training=True)
        y, losses = (y[0], [y[1].loss]) if isinstance(y, tuple) else (y, [])
        loss = mtf.add_n([mtf.reduce_mean(mtf.square(y)), *losses])
        dx, *grads = mtf.gradients([loss], [x, *variables])
        if size.update:
            descent.apply_gradients(grads, variables, count)
        return (loss, dx) if size.update else (loss, dx, *grads)

    return lambda: step(x, np.int32(0))


def mixture(size: Size, experts: int) -> Run:
    """Returns passes of a mixture of two experts for each token."""
    return layer_run(
        size,
        lambda mesh: MixtureOfExperts(
            mesh,
            mtf.Dimension("d_model", size.d_model),
            mtf.Dimension("d_ff", size.d_ff),
            experts,
            gating=size.gate,
        ),
    )


def dense(size: Size) -> Run:
    """Returns passes of a dense layer with equal FLOPs per token."""
    hidden = mtf.Dimension("d_ff", int(2 * size.factor * size.d_ff))
    return layer_run(
        size,
        lambda mesh: mtf.layers.FeedForward(
            mesh, mtf.Dimension("d_model", size.d_model), hidden
        ),
    )


def compare(
    names: Sequence[str], runs: Sequence[Run], rounds: int
) -> list[dict[str, Any]]:
    """Returns the median time of each run, and the median over rounds of its ratio to the
    first run.
    """
    times = in_turn(runs, rounds)
    return [
        {
            "name": name,
            "ms": statistics.median(own) * 1e3,
            "ratio": statistics.median(
                a / b for a, b in zip(own, times[0], strict=True)
            ),
        }
        for name, own in zip(names, times, strict=True)
    ]


def measure(
    size: Size, experts: Sequence[int], rounds: int
) -> dict[str, list[dict[str, Any]]]:
    """Returns the measurements, by question."""
    warnings.simplefilter("ignore", mtf.LayoutWarning)  # a dense layer knows no experts
    results = {}
    for count in experts:
        runs = [dispatch_run(size, count, kind) for kind in (by_index, by_one_hot)]
        _check(runs)
        results[f"dispatch, {count} experts"] = compare(
            ["by index", "by one-hot matmuls"], runs, rounds
        )
    names = [f"{count} experts" for count in MIXTURES]
    mixtures = [mixture(size, count) for count in MIXTURES]
    results["dense"] = compare(
        ["dense layer", *names], [dense(size), *mixtures], rounds
    )
    results["experts"] = compare(names, mixtures, rounds)
    return results


def _check(runs: Sequence[Run]) -> None:
    """Checks that runs have equal results. Raises AssertionError."""
    for have, expected in zip(*(run() for run in runs), strict=True):
        np.testing.assert_allclose(
            have.numpy(),
            expected.numpy(),
            rtol=1e-3,
            atol=1e-4,
        )


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Returns a table of times and ratios."""
    return "\n".join(
        line
        for question, rows in results.items()
        for line in (
            f"{question:30}{'ms':>10}{'ratio':>9}",
            *(
                f"  {row['name']:28}{row['ms']:10.1f}{row['ratio']:9.2f}"
                for row in rows
            ),
        )
    )


def main(argv: list[str]) -> None:
    """Measures and prints."""
    del argv
    small = {"d_model": 256, "d_ff": 1024} if FLAGS.quick else {}
    size = Size(
        FLAGS.axes,
        FLAGS.layout,
        factor=FLAGS.factor,
        update=FLAGS.update,
        **small,
    )
    results = measure(
        size,
        (8, 64) if FLAGS.quick else (8, 64, 256),
        5 if FLAGS.quick else FLAGS.rounds,
    )
    print(f"{size}\n{table(results)}")
    if FLAGS.json:
        with open(FLAGS.json, "w") as file:
            json.dump(results, file, indent=1)


def define_flags() -> None:
    """Defines the flags. Not at import, so that tests can import this module."""
    flags.DEFINE_boolean("quick", False, "Smaller sizes, and fewer rounds.")
    flags.DEFINE_boolean(
        "update", False, "Whether a step of gradient descent is part of the time."
    )
    flags.DEFINE_float("factor", 1.0, "The capacity factor.")
    flags.DEFINE_integer("rounds", 11, "How many rounds are timed.")
    flags.DEFINE_string("axes", "", "The axes of the mesh.")
    flags.DEFINE_string("layout", "", "The layout on it.")
    flags.DEFINE_string("json", None, "A file to write all numbers to.")


if __name__ == "__main__":
    define_flags()
    run_main(main)
