"""The time and memory of a pipeline, estimated from the program without stages.

    if can_be_estimated(problem, [1, 2, 4], choices):        # a loop over microbatches
        prices = estimate(structure, problem, grid, recorded)

The plan of a deep pipeline is as long as the model, and is another one for each number of
microbatches. But the program without stages, on the devices of one stage, says what a
microbatch costs, for all numbers of microbatches at once. If M microbatches take t seconds
each there, stages of equal work take t / S, and a batch

    (M + S - 1) t / S

(Huang et al. 2019, arXiv:1811.06965, section 2.3). What follows, such as updates of variables,
is divided by S. A device has an S-th of the variables and of the gradients; the first stage
stores what the backward pass needs of up to S microbatches ("1f1b"), an S-th of each.

What it costs to send activations from stage to stage, and stages of unequal work, are left
out: `FullPlans` corrects estimates by those pipelines that it plans in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from meshtf.errors import MeshtfError
from meshtf.forecast.time.durations import Durations
from meshtf.forecast.time.schedule import Schedule
from meshtf.forecast.time.step_time import step_seconds
from meshtf.graph import Loop
from meshtf.graph.recorder import Recorded
from meshtf.layout_search.beginning import has_gradient
from meshtf.layout_search.pricing import (
    PLANNED_MICROBATCHES,
    SCANNED,
    Grid,
    Prices,
    memory_of,
    price_by,
    stored_bytes,
)
from meshtf.layout_search.problem import MICROBATCHES, Problem
from meshtf.layout_search.space import Structure
from meshtf.partition import LoopStep, Program, Value


def can_be_estimated(
    problem: Problem, microbatches: Sequence[int], choices: Mapping[str, Any]
) -> bool:
    """Returns whether the program without stages computes gradients in a loop over
    microbatches, as `mtf.optimizers.accumulate_gradients` does.

    Args:
      problem: what is searched for.
      microbatches: the numbers of microbatches that are tried.
      choices: the further arguments of the program.
    """
    if max(microbatches) == 1:
        return False
    choices = {**choices, MICROBATCHES: PLANNED_MICROBATCHES}
    try:
        recorded = problem.record("", {}, choices)
    except MeshtfError:
        return False
    loops = [node.op for node in recorded.nodes if isinstance(node.op, Loop)]
    return any(
        loop.dim is not None and loop.dim.name == SCANNED and has_gradient(loop)
        for loop in loops
    )


def estimate(
    structure: Structure,
    problem: Problem,
    grid: Grid,
    recorded: Recorded,
    durations: Durations | None = None,
) -> Prices:
    """Returns the estimated prices of all candidates of a grid with stages.

    Args:
      structure: the structure.
      problem: what is searched for.
      grid: the sizes.
      recorded: the program without stages, as `pricing.record` returns it.
      durations: those of the beginning of the program; None: there are none yet.

    Raises:
      MeshtfError: the program cannot be planned.
    """
    return price_by(structure, problem, grid, recorded, durations, _seconds_and_memory)


def _seconds_and_memory(
    program: Program, durations: Durations, grid: Grid
) -> tuple[Any, Any]:
    """Returns the seconds and bytes of a pipeline, from the program without stages."""
    schedule = Schedule(program, durations, counts=False)
    end = staged_seconds(program, durations, schedule.end, grid)
    return step_seconds(schedule, end), staged_memory(program, durations, grid)


def staged_seconds(
    program: Program, durations: Durations, seconds: Any, grid: Grid
) -> Any:
    """Returns the seconds of a pipeline: `[candidates]`.

    Args:
      program: the program without stages, or its beginning.
      durations: its durations for all candidates.
      seconds: its seconds for all candidates.
      grid: the sizes.
    """
    loop = loop_over_microbatches(program)
    assert loop is not None
    body = Schedule(loop.body, durations, counts=False)
    count, stages = grid.microbatches, grid.stages
    rest = seconds - (body.period * (count - 1) + body.end)
    return (body.period * count + body.end * (stages - 1) + rest) / stages


def staged_memory(program: Program, durations: Durations, grid: Grid) -> Any:
    """Returns the peak bytes of a device of the first stage: `[candidates]`. The arguments are
    those of `staged_seconds`.
    """
    loop = loop_over_microbatches(program)
    assert loop is not None
    stages = grid.stages
    # The peak is in the loop; or after it, where all tensors are those of variables.
    peak = memory_of(program, durations) / stages
    in_loop = memory_of(program, durations, at_step=loop)
    start = loop.op.num_carries
    gradients = _total(durations, loop.outs[start : start + loop.op.num_sums])
    of_layers = _total(durations, _stacks_of_layers(loop.body))
    variables = stored_bytes(program, durations) + gradients + of_layers
    stacks = _stacks(loop.body, of_forward=True)
    residuals = _total(durations, filter(_has_examples, stacks))
    shares = np.minimum(grid.microbatches, stages) / stages
    in_loop = in_loop - variables * (1 - 1 / stages) - residuals * (1 - shares)
    # A call of a stage returns new sums of gradients, while the old ones exist.
    return np.maximum(peak, in_loop + gradients / stages)


def loop_over_microbatches(program: Program) -> LoopStep | None:
    """Returns the loop that computes gradients; None: there is none."""
    for step in program.steps:
        if isinstance(step, LoopStep) and has_gradient(step.op):
            return step
    return None


def residual_bytes(program: Program, durations: Durations) -> Any:
    """Returns the bytes that the loops of the forward pass, such as that over layers, have
    stacked for the gradient.
    """
    return _total(durations, _stacks(program, of_forward=True))


def _stacks_of_layers(program: Program) -> Iterator[Value]:
    """Yields what loops over layers stack that is no result of a microbatch: weights that are
    cast for the gradient, and gradients of weights.
    """
    for value in _stacks(program, of_forward=True):
        if not _has_examples(value):
            yield value
    yield from _stacks(program, of_forward=False)


def _stacks(program: Program, of_forward: bool) -> Iterator[Value]:
    """Yields the values that loops of the forward pass, or of the backward pass, stack."""
    for step in program.steps:
        if isinstance(step, LoopStep) and bool(step.node.primals) != of_forward:
            yield from step.outs[step.op.num_carries + step.op.num_sums :]


def _has_examples(value: Value) -> bool:
    """Returns whether a value has the dimension that is split into microbatches."""
    return value.spec is not None and "batch" in value.spec.shape


def _total(durations: Durations, values: Iterable[Value]) -> Any:
    """Returns the bytes of the shards of values."""
    return sum(map(durations.local_bytes, values), 0.0)
