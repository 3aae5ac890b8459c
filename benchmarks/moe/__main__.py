"""Time of mixtures of experts: dispatch by index and by one-hot matmuls, against dense
layers, and for many experts.

    python -m benchmarks.moe --quick                  # half a minute
    python -m benchmarks.moe --axes=data:4 --layout='batch:data; experts:data'

Three comparisons of forward and backward passes; ratios are medians over rounds:

    dispatch   tokens to slots and back, by one-hot matmuls, relative to indices
    dense      a mixture, relative to a dense layer of equal FLOPs (k * capacity factor * d_ff wide)
    experts    mixtures of more experts, relative to 8 experts, at equal FLOPs per token

A slot is room for one token in the batch of an expert; tokens without a slot are dropped.
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
from benchmarks.ops.__main__ import Run, time_in_turn
from transformer.cli.program import run_main
from transformer.experts import gating
from transformer.experts.dispatch import Dispatch, by_index, by_one_hot
from transformer.experts.moe_layer import MixtureOfExperts
from transformer.experts.routing import Capacity, Choices, Routing

FLAGS = flags.FLAGS
MIXTURES = (8, 16, 32, 64)  # the numbers of experts of the mixtures that are compared


@dataclasses.dataclass(frozen=True)
class Size:
    """The sizes and settings that all measurements share.

    Attributes:
      axes: the axes of the mesh.
      layout: the layout of the mesh.
      batch: the number of examples in a batch.
      length: the number of tokens of an example.
      d_model: the width of the model.
      d_ff: the width of an expert.
      factor: the capacity factor: the slots of all experts over the choices of all tokens.
      update: whether a step of gradient descent is part of the time.
    """

    axes: str = ""
    layout: str = ""
    batch: int = 4
    length: int = 1024
    d_model: int = 512
    d_ff: int = 2048
    factor: float = 1.0
    update: bool = False

    def make_mesh(self) -> mtf.Mesh:
        """Returns a new mesh."""
        return mtf.Mesh(self.axes, self.layout)

    @property
    def gate(self) -> Callable[..., Routing]:
        """Top-2 routing, with the capacity factor."""
        return functools.partial(
            gating.top_k, capacity=Capacity(train=self.factor, minimum=1)
        )

    def random_array(self, *sizes: int) -> np.ndarray:
        """Returns normal random numbers [batch, length, *sizes]."""
        shape = (self.batch, self.length, *sizes)
        return np.random.default_rng(0).normal(size=shape).astype("float32")


def dispatch_run(size: Size, experts: int, dispatch: Dispatch) -> Run:
    """Returns a run that dispatches tokens to slots and combines them again, with the
    gradients of both.

    Args:
      size: the sizes.
      experts: the number of experts.
      dispatch: the implementation: `by_index` or `by_one_hot`.
    """
    mesh = size.make_mesh()
    # A layout may shard "experts". Every device chooses among all of them, so the logits
    # have a dimension of another name, "experts_all", which no rule of the layout has.
    logits = mtf.asarray(mesh, size.random_array(experts), "batch;length;experts_all")
    routing = size.gate(logits, training=True)
    x = mtf.asarray(mesh, size.random_array(size.d_model), "batch;length;d_model")

    # The tensors of the routing are arguments of the step: tensors that a function captures
    # are constants, which TensorFlow would fold. See `transformer.experts.routing.Routing`
    # for their shapes.
    @mtf.function(mesh=mesh)
    def step(
        x: Any,
        tokens: Any,
        weights: Any,
        sources: Any,
        gates: Any,
        slots: Any,
    ) -> Any:
        """Returns the combined tokens y, and the gradient of sum(y**2) by x."""
        routes = dataclasses.replace(
            routing,
            tokens=tokens,
            weights=weights,
            sources=sources,
            # Dispatch reads only gates and slots; any tensor will do for the other fields.
            choices=Choices(
                experts=slots, gates=gates, positions=slots, has_slot=slots, slots=slots
            ),
        )
        inputs_of_experts = dispatch.take(x, routes)
        y = dispatch.combine(inputs_of_experts, routes, x)
        (dx,) = mtf.gradients([mtf.reduce_sum(mtf.square(y))], [x])
        return y, dx

    return lambda: step(
        x,
        tokens=routing.tokens,
        weights=routing.weights,
        sources=routing.sources,
        gates=routing.choices.gates,
        slots=routing.choices.slots,
    )


def layer_run(size: Size, make_layer: Callable[[mtf.Mesh], mtf.Module]) -> Run:
    """Returns a run of a forward and a backward pass of a layer.

    Args:
      size: the sizes.
      make_layer: the function of a mesh that returns the layer.
    """
    mesh = size.make_mesh()
    layer = make_layer(mesh)
    variables = layer.trainable_variables
    optimizer = mtf.optimizers.SGD(variables, learning_rate=1e-6)
    x = mtf.asarray(mesh, size.random_array(size.d_model), "batch;length;d_model")

    @mtf.function(mesh=mesh, step_index="")  # "": a scalar, without dimensions
    def step(x: Any, step_index: Any) -> Any:
        """Returns the loss and all gradients; with `size.update`, the loss and dx only, and
        updates the variables.
        """
        y = layer(x, training=True)
        auxiliary_losses = []
        if isinstance(y, tuple):  # a mixture also returns a report with its loss
            y, report = y
            auxiliary_losses.append(report.loss)
        loss = mtf.add_n([mtf.reduce_mean(mtf.square(y)), *auxiliary_losses])
        dx, *gradients = mtf.gradients([loss], [x, *variables])
        if not size.update:
            return loss, dx, *gradients  # so that all gradients are computed
        optimizer.apply_gradients(gradients, variables, step_index)
        return loss, dx

    return lambda: step(x, np.int32(0))


def mixture(size: Size, experts: int) -> Run:
    """Returns a run of a mixture with a number of experts, in which each token goes to two."""
    return layer_run(
        size,
        lambda mesh: MixtureOfExperts(
            mesh,
            mtf.Dimension("d_model", size.d_model),
            mtf.Dimension("d_ff", size.d_ff),
            experts=experts,
            gating=size.gate,
        ),
    )


def dense(size: Size) -> Run:
    """Returns a run of a dense layer with the same FLOPs per token as the mixtures."""
    # Each token has two choices of experts.
    d_ff = mtf.Dimension("d_ff", int(2 * size.factor * size.d_ff))
    return layer_run(
        size,
        lambda mesh: mtf.layers.FeedForward(
            mesh, mtf.Dimension("d_model", size.d_model), d_ff
        ),
    )


def compare(
    names: Sequence[str], runs: Sequence[Run], rounds: int
) -> list[dict[str, Any]]:
    """Returns a row for each run: its name ("name"), its median time ("ms"), and the median
    over rounds of its ratio to the first run ("ratio").
    """
    times_of_runs = time_in_turn(runs, rounds)
    base_times = times_of_runs[0]
    rows = []
    for name, times in zip(names, times_of_runs, strict=True):
        ratios = [
            seconds / base for seconds, base in zip(times, base_times, strict=True)
        ]
        row = {
            "name": name,
            "ms": statistics.median(times) * 1e3,
            "ratio": statistics.median(ratios),
        }
        rows.append(row)
    return rows


def measure(
    size: Size, experts: Sequence[int], rounds: int
) -> dict[str, list[dict[str, Any]]]:
    """Returns the rows of each comparison, by title.

    Args:
      size: the sizes.
      experts: the numbers of experts for which dispatch is measured.
      rounds: the number of rounds that are timed.
    """
    # A dense layer does not use the layout's rule for experts.
    warnings.simplefilter("ignore", mtf.LayoutWarning)
    results = {}
    for count in experts:
        runs = [
            dispatch_run(size, count, dispatch) for dispatch in (by_index, by_one_hot)
        ]
        _check_equal(runs)
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


def _check_equal(runs: Sequence[Run]) -> None:
    """Raises AssertionError unless all runs have equal results."""
    expected, *results_of_others = (run() for run in runs)
    for results in results_of_others:
        for x, y in zip(expected, results, strict=True):
            np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-3, atol=1e-4)


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Returns a table of times and ratios."""
    lines = []
    for title, rows in results.items():
        lines.append(f"{title:30}{'ms':>10}{'ratio':>9}")
        for row in rows:
            lines.append(f"  {row['name']:28}{row['ms']:10.1f}{row['ratio']:9.2f}")
    return "\n".join(lines)


def main(argv: list[str]) -> None:
    """Measures and prints."""
    del argv
    size = Size(
        axes=FLAGS.axes,
        layout=FLAGS.layout,
        factor=FLAGS.factor,
        update=FLAGS.update,
    )
    experts = (8, 64, 256)  # the numbers of experts for which dispatch is measured
    rounds = FLAGS.rounds
    if FLAGS.quick:
        size = dataclasses.replace(size, d_model=256, d_ff=1024)
        experts = (8, 64)
        rounds = 5
    results = measure(size, experts, rounds)
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
    flags.DEFINE_string("layout", "", "The layout of the mesh.")
    flags.DEFINE_string("json", None, "A file to write all numbers to.")


if __name__ == "__main__":
    define_flags()
    run_main(main)
