"""The time and memory of a pipeline, estimated from the program without stages.

    prices = estimate(structure, problem, grid, recorded)

The plan of a deep pipeline is as long as the model, and is another one for each number of
microbatches. But the program without stages, on the devices of one stage, says what a
microbatch costs, for all numbers of microbatches at once. If M microbatches take t seconds
each there, stages of equal work take t / S, and a batch

    (M + (S - 1) / v) t / S

with v chunks of layers on each stage (Huang et al. 2019, arXiv:1811.06965, section 2.3;
Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2). What follows, such as updates of
variables, is divided by S. A device has an S-th of the variables and of the gradients; the
first stage stores what the backward pass needs of up to S microbatches ("1f1b"), an S-th of
each, or of more with several chunks. GPipe's schedule takes as long, and more memory.

If what follows the layers, such as logits, makes stages uneven, the slowest one decides. Stages
wait for what they receive, unless they are faster than the last one. `FullPlans` corrects
estimates by those pipelines that it plans in full.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from meshtf.errors import MeshtfError
from meshtf.forecast.memory.peak_memory import Timelines
from meshtf.forecast.time.durations import Durations
from meshtf.forecast.time.schedule import Schedule
from meshtf.forecast.time.step_time import step_seconds
from meshtf.graph import Loop
from meshtf.graph.recorder import Recorded
from meshtf.hardware.links import CollectiveTimes
from meshtf.layout_search.beginning import has_gradient
from meshtf.layout_search.pipelines.layer_split import layer_split
from meshtf.layout_search.pipelines.loops_over_layers import (
    layer_loops,
    loops_over_layers,
    origins_of,
    without_collectives_of_weights,
)
from meshtf.layout_search.pipelines.staged_memory import (
    bytes_between_layers,
    staged_memory,
)
from meshtf.layout_search.pricing import (
    PLANNED_MICROBATCHES,
    SCANNED,
    Grid,
    Prices,
    loop_over_microbatches,
    price_by,
)
from meshtf.layout_search.problem import Problem
from meshtf.layout_search.space import MICROBATCHES, STAGE, Structure
from meshtf.partition import Program


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
    timelines: Timelines, durations: Durations, grid: Grid
) -> tuple[Any, Any]:
    """Returns the seconds and bytes of a pipeline, from the program without stages."""
    program = timelines.program
    schedule = Schedule(program, durations, counts=False)
    end = staged_seconds(program, durations, schedule.end, grid)
    return step_seconds(schedule, end), staged_memory(timelines, durations, grid)


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
    varying = without_collectives_of_weights(loop.body)
    if varying is not loop.body:
        rest = rest + _seconds_of_gathers(loop.body, durations)
        body = Schedule(varying, durations, counts=False)
    once, for_each = _seconds_of_reductions(loop.body, durations)
    rest = rest + once
    of_last, of_others = _shares_of_stages(loop.body, durations, body.end, grid)
    send = _seconds_of_send(loop.body, durations, grid)
    # Each chunk but the first receives activations, each but the last their gradients.
    sends = 2 * send * (stages * grid.chunks - 1) / stages
    # Stages that have less to do than the last one send early enough.
    seconds_of_all = body.period + for_each
    period = np.maximum(of_last * seconds_of_all, of_others * seconds_of_all + sends)
    # While one microbatch is on other stages, this stage waits.
    share_of_rest = np.maximum(1 - np.maximum(of_last, of_others), 0.0)
    bubble = (body.end + for_each) * share_of_rest / grid.chunks
    bubble = bubble + 2 * send * (stages - 1)
    return period * count + bubble + rest / stages


def _seconds_of_send(body: Program, durations: Durations, grid: Grid) -> Any:
    """Returns the seconds in which a stage sends what a layer passes to the next one, for one
    microbatch: `[candidates]`.
    """
    num_bytes: Any = 0.0
    for loop in layer_loops(body, of_forward=False):
        num_bytes = num_bytes + bytes_between_layers(loop, durations)
    devices_of_stage: Any = 1
    for size in grid.axes.values():
        devices_of_stage = devices_of_stage * size
    times = CollectiveTimes(
        durations.hardware, {STAGE: grid.stages}, strides={STAGE: devices_of_stage}
    )
    return times.seconds("send", (STAGE,), num_bytes) * durations.factor("send")


def _shares_of_stages(
    body: Program, durations: Durations, seconds: Any, grid: Grid
) -> tuple[Any, Any]:
    """Returns the share of all work that the last stage has, and the largest share of another
    stage; infinity if there are too few layers for several chunks on each: `[candidates]`.

    Args:
      body: the body of the loop over microbatches.
      durations: its durations for all candidates.
      seconds: its seconds for all candidates.
      grid: the sizes.
    """
    split = layer_split(body, durations, grid)
    if split is None:
        return 1 / grid.stages, 1 / grid.stages
    share_of_head = Schedule(split.head, durations, counts=False).end / seconds
    share_of_layer = (1 - share_of_head) / split.layers
    # Ops before and after the layers may be stages, too.
    is_legal = (split.layers >= grid.stages * grid.chunks) | (grid.chunks == 1)
    of_others = np.where(is_legal, split.of_others * share_of_layer, np.inf)
    return split.of_last * share_of_layer + share_of_head, of_others


def _seconds_of_gathers(body: Program, durations: Durations) -> Any:
    """Returns the seconds of the collectives of weights, each for forward and backward pass."""
    gathered: set[Hashable] = set()
    total: Any = 0.0
    all_layers = loops_over_layers(body)
    origins = origins_of(all_layers)
    for layers in all_layers:
        count = durations.sizes.runs(layers.loop.bodies[-1])
        for step in layers.gathers:
            if origins[step.out] not in gathered:
                gathered.add(origins[step.out])
                total = total + durations.collective(step) * count
    return total


def _seconds_of_reductions(body: Program, durations: Durations) -> tuple[Any, Any]:
    """Returns the seconds of `LayerLoop.reductions`, which a pipeline runs once for all
    microbatches, since until then their sums are partial (see `plan_call`); and by how much
    longer it takes to add a microbatch to partial sums.
    """
    total: Any = 0.0
    num_bytes: Any = 0.0
    for layers in loops_over_layers(body):
        count = durations.sizes.runs(layers.loop.bodies[-1])
        for step in layers.reductions:
            total = total + durations.collective(step) * count
            larger = durations.local_bytes(step.src) - durations.local_bytes(step.out)
            num_bytes = num_bytes + 3 * larger * count
    hardware = durations.hardware
    bandwidth = hardware.memory_bandwidth * hardware.memory_efficiency
    return total, num_bytes / bandwidth
