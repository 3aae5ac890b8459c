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

If layers cannot be divided evenly, the stage with the most of them decides. A stage waits for
all that it receives. `FullPlans` corrects estimates by those pipelines that it plans in full.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from meshtf.forecast.memory.live_tensors import live_values
from meshtf.forecast.memory.peak_memory import Timelines
from meshtf.forecast.memory_at_sizes import live_bytes, memory_of, stored_bytes
from meshtf.forecast.time.durations import Durations
from meshtf.forecast.time.schedule import Schedule
from meshtf.forecast.time.step_time import step_seconds
from meshtf.graph.recorder import Recorded
from meshtf.hardware.links import CollectiveTimes
from meshtf.layout_search.pricing import (
    STAGE,
    Grid,
    Prices,
    loop_over_microbatches,
    price_by,
    stacks,
)
from meshtf.layout_search.problem import Problem
from meshtf.layout_search.space import Structure
from meshtf.partition import Compute, LoopStep, Program, ReshardStep, Step, Value
from meshtf.partition.steps import inputs_of, outputs_of


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
    rest = rest + _seconds_of_reductions(loop.body, durations)
    bubble = body.end * (stages - 1) / grid.chunks
    in_stages = body.period * count + bubble
    in_stages = in_stages * _unevenness(loop.body, durations, grid)
    return (in_stages + rest) / stages + _seconds_of_sends(loop.body, durations, grid)


def _seconds_of_sends(body: Program, durations: Durations, grid: Grid) -> Any:
    """Returns the seconds in which a stage waits for what it receives: `[candidates]`."""
    num_bytes: Any = 0.0
    for loop in _backward_loops(body):
        num_bytes = num_bytes + _bytes_between_layers(loop, durations)
    devices_of_stage: Any = 1
    for size in grid.axes.values():
        devices_of_stage = devices_of_stage * size
    times = CollectiveTimes(
        durations.hardware, {STAGE: grid.stages}, strides={STAGE: devices_of_stage}
    )
    seconds = times.seconds("send", (STAGE,), num_bytes) * durations.factor("send")
    # Each chunk but the first receives activations, each but the last their gradients.
    chunks = grid.stages * grid.chunks
    received_by_stage = 2 * grid.microbatches * (chunks - 1) / grid.stages
    return seconds * (received_by_stage + 2 * (grid.stages - 1))


def _bytes_between_layers(loop: LoopStep, durations: Durations) -> Any:
    """Returns the bytes of what a layer passes to the next one, by a loop over layers."""
    return _total(durations, loop.outs[: loop.op.num_carries])


def _unevenness(body: Program, durations: Durations, grid: Grid) -> Any:
    """Returns how many layers the stage with the most of them has, over the mean; infinity if
    there are too few layers for several chunks on each stage: `[candidates]`.
    """
    loops = list(_backward_loops(body))
    if not loops:
        return 1.0  # it is not known which ops are layers
    layers = durations.sizes.num_iterations(loops[-1])
    # Chunks differ by one layer at most, and the last ones have one more.
    of_chunk, remaining = np.divmod(layers, grid.stages * grid.chunks)
    largest = of_chunk * grid.chunks + np.ceil(remaining / grid.stages)
    # Ops before and after the layers may be stages, too.
    is_legal = (of_chunk > 0) | (grid.chunks == 1)
    return np.where(is_legal, largest * grid.stages / layers, np.inf)


def _most_microbatches(grid: Grid) -> Any:
    """Returns how many microbatches the first stage stores residuals of, at most; a chunk's
    part of one counts as a part: `[candidates]`.
    """
    stages, chunks = grid.stages, grid.chunks
    # Forward passes before the first backward pass: see `meshtf.pipeline.schedule`.
    in_chunks = 2 * (stages - 1) + (chunks - 1) * stages + 1
    counts = np.where(chunks == 1, stages, in_chunks / chunks)
    return np.minimum(grid.microbatches, counts)


def staged_memory(timelines: Timelines, durations: Durations, grid: Grid) -> Any:
    """Returns the peak bytes of a device of a pipeline: `[candidates]`.

    Args:
      timelines: those of the program without stages, or of its beginning.
      durations: its durations for all candidates.
      grid: the sizes.
    """
    program = timelines.program
    loop = loop_over_microbatches(program)
    assert loop is not None
    stages = grid.stages
    start = loop.op.num_carries
    gradients = _total(durations, loop.outs[start : start + loop.op.num_sums])
    variables, arguments = stored_bytes(program, durations)
    # A call returns new sums of a chunk's gradients, while the old ones exist.
    of_variables = (variables + gradients * (1 + 1 / grid.chunks)) / stages

    def at(step: LoopStep | None, count: Any) -> Any:
        """Returns the bytes at a step of a stage that stores the residuals of `count`
        microbatches. Arguments are stored, and their parts that have not come by yet.
        """
        remaining = 1 - count / grid.microbatches
        of_body = _of_body(timelines, loop.body, durations, stages, count, step)
        return of_variables + arguments * (1 + remaining) + of_body

    # What follows the loop, such as updates, needs tensors of variables.
    peak = memory_of(timelines, durations) / stages
    # The last stage has one microbatch at a time, and the output of the model.
    peak = np.maximum(peak, at(None, count=1))
    # The first stage has the most, and sends and receives activations.
    for step in _backward_loops(loop.body):
        between_stages = 2 * _bytes_between_layers(step, durations)
        bytes_at_step = at(step, count=_most_microbatches(grid))
        peak = np.maximum(peak, bytes_at_step + between_stages)
    return peak


def _of_body(
    timelines: Timelines,
    body: Program,
    durations: Durations,
    stages: int,
    microbatches: Any,
    step: LoopStep | None,
) -> Any:
    """Returns the bytes of activations and of copies of weights on a stage, for all sizes.

    Args:
      timelines: those of the program.
      body: the body of the loop over microbatches.
      durations: the durations of the program.
      stages: the number of stages.
      microbatches: how many microbatches the stage stores the residuals of.
      step: while it runs; None: at the peak of the body.
    """
    residuals = set(stacks(body, of_forward=True))
    gradients = set(stacks(body, of_forward=False))
    total: Any = 0.0
    for live in live_values(timelines, 0, body, step):
        num_bytes = live_bytes(live, timelines.mesh, durations)
        if live.value in gradients:
            continue  # a stage adds them to the sums at once
        if live.value in residuals:
            if not _has_examples(live.value):
                continue  # copies of weights
            num_bytes = num_bytes * microbatches / stages
        total = total + num_bytes
    return total + _bytes_of_copies(body, durations) / stages


def _bytes_of_copies(body: Program, durations: Durations) -> Any:
    """Returns the bytes of what the forward and the backward pass read that is computed from
    weights only, in all layers; what both compute is stored once.
    """
    copied = {x for x in stacks(body, of_forward=True) if not _has_examples(x)}
    counted: set[Hashable] = set()
    total: Any = 0.0
    for layers in _loops_over_layers(body):
        loop = layers.loop
        read = {x for step in layers.varying for x in inputs_of(step)}
        copies = {x for step in layers.invariant for x in outputs_of(step)}
        copies |= {x for x, y in zip(loop.entries, loop.scanned_inputs) if y in copied}
        count = durations.sizes.num_iterations(loop)
        for value, origin in layers.origins():
            if value in copies & read and origin not in counted:
                counted.add(origin)
                total = total + durations.local_bytes(value) * count
    return total


class _Layers(NamedTuple):
    """A loop over layers in the body of the loop over microbatches.

    Attributes:
      loop: the loop.
      invariant: the steps of its body that compute from weights only, such as casts and
        gathers. A pipeline runs them once for all microbatches.
      varying: the other steps of its body.
    """

    loop: LoopStep
    invariant: list[Step]
    varying: list[Step]

    @property
    def gathers(self) -> list[ReshardStep]:
        """The collectives of weights."""
        return [step for step in self.invariant if isinstance(step, ReshardStep)]

    @property
    def reductions(self) -> list[ReshardStep]:
        """The reductions of gradients that the backward pass returns right away."""
        if not self.loop.node.primals:
            return []
        return [
            step
            for step in self.varying
            if isinstance(step, ReshardStep) and step.out in self.loop.body.results
        ]

    def origins(self) -> Iterator[tuple[Value, Hashable]]:
        """Yields entries, and what the body computes from weights, each with how it is computed:
        equal for the forward and the backward pass.
        """
        arguments = self.loop.op.body.arguments
        first = len(arguments) - len(self.loop.entries)
        origins: dict[Value, Hashable] = dict(
            zip(self.loop.entries, map(id, arguments[first:]))
        )
        yield from origins.items()
        for step in self.invariant:
            how = repr(step.node.op) if isinstance(step, Compute) else ""
            inputs = tuple(origins.get(x, x) for x in _read_by(step))
            for i, out in enumerate(outputs_of(step)):
                origins[out] = how, i, inputs, out.placement
                yield out, origins[out]


def _loops_over_layers(body: Program) -> Iterator[_Layers]:
    """Yields the loops over layers of the forward and the backward pass."""
    computed = {x for step in body.steps for x in outputs_of(step)}
    computed.difference_update(
        x for x in stacks(body, of_forward=True) if not _has_examples(x)
    )
    for loop in body.steps:
        if isinstance(loop, LoopStep):
            varying = {loop.iteration, *loop.carries, *computed}
            for entry, scanned in zip(loop.entries, loop.scanned_inputs):
                if scanned in computed or _has_examples(scanned):
                    varying.add(entry)
            yield _split_by_inputs(loop, varying)


def _split_by_inputs(loop: LoopStep, varying: set[Value]) -> _Layers:
    """Returns a loop over layers with its steps, by whether they read a value of `varying`, to
    which this adds what such steps compute.
    """
    layers = _Layers(loop, [], [])
    for step in loop.body.steps:
        if varying.isdisjoint(_read_by(step)):
            layers.invariant.append(step)
        else:
            layers.varying.append(step)
            varying.update(outputs_of(step))
    return layers


def _read_by(step: Step) -> Iterable[Value]:
    """Returns the inputs of a step, without the gradient that recomputed ops wait for."""
    return step.ins if isinstance(step, Compute) else inputs_of(step)


def without_collectives_of_weights(body: Program) -> Program:
    """Returns the body of the loop over microbatches without gathers of weights, which a
    pipeline runs once for all microbatches, and without `_Layers.reductions`.
    """
    loops: dict[Step, Step] = {}
    for layers in _loops_over_layers(body):
        excluded = {step.out for step in (*layers.gathers, *layers.reductions)}
        if excluded:
            inner = layers.loop.body
            steps = [x for x in inner.steps if excluded.isdisjoint(outputs_of(x))]
            inner = dataclasses.replace(inner, steps=tuple(steps))
            loops[layers.loop] = dataclasses.replace(layers.loop, body=inner)
    if not loops:
        return body
    steps = [loops.get(step, step) for step in body.steps]
    return dataclasses.replace(body, steps=tuple(steps))


def _seconds_of_gathers(body: Program, durations: Durations) -> Any:
    """Returns the seconds of the collectives of weights, each for forward and backward pass."""
    gathered: set[Hashable] = set()
    total: Any = 0.0
    for layers in _loops_over_layers(body):
        count = durations.sizes.num_iterations(layers.loop)
        origins = dict(layers.origins())
        for step in layers.gathers:
            if origins[step.out] not in gathered:
                gathered.add(origins[step.out])
                total = total + durations.reshard(step) * count
    return total


def _seconds_of_reductions(body: Program, durations: Durations) -> Any:
    """Returns the seconds of `_Layers.reductions`, which a pipeline runs once for all
    microbatches: until then their sum is partial, see `plan_call`.
    """
    total: Any = 0.0
    for layers in _loops_over_layers(body):
        count = durations.sizes.num_iterations(layers.loop)
        for step in layers.reductions:
            total = total + durations.reshard(step) * count
    return total


def _backward_loops(body: Program) -> Iterator[LoopStep]:
    """Yields the loops of the backward pass, such as that over layers."""
    for step in body.steps:
        if isinstance(step, LoopStep) and step.node.primals:
            yield step


def _has_examples(value: Value) -> bool:
    """Returns whether a value has the dimension that is split into microbatches."""
    return value.spec is not None and "batch" in value.spec.shape


def _total(durations: Durations, values: Iterable[Value]) -> Any:
    """Returns the bytes of the shards of values."""
    return sum(map(durations.local_bytes, values), 0.0)
