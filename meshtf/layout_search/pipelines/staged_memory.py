"""The memory of a pipeline, estimated from the program without stages.

    num_bytes = staged_memory(timelines, durations, grid)

A device has an S-th of the variables and of the gradients. The first stage stores what the
backward pass needs of up to S microbatches ("1f1b"), an S-th of each, or of more with several
chunks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from meshtf.forecast.memory.peak_memory import TRANSPOSED, Timelines
from meshtf.forecast.memory_at_sizes import live_bytes, memory_of, stored_bytes
from meshtf.forecast.time.durations import Durations
from meshtf.layout_search.pipelines.layer_split import layer_split
from meshtf.layout_search.pipelines.loops_over_layers import (
    has_examples,
    layer_loops,
    loops_over_layers,
    origins_of,
)
from meshtf.layout_search.pricing import Grid, loop_over_microbatches, stacks
from meshtf.partition import LoopStep, Program, Value


def staged_memory(timelines: Timelines, durations: Durations, grid: Grid) -> Any:
    """Returns the peak bytes of a device of a pipeline: `[candidates]`.

    Args:
      timelines: those of the program without stages, or of its beginning.
      durations: its durations for all candidates.
      grid: the sizes.
    """
    program = timelines.program
    # Stages run passes of their own: none lives through another stage's backward loop.
    timelines = Timelines(
        program, timelines.gradients, timelines.under_xla, planned_order=True
    )
    loop = loop_over_microbatches(program)
    assert loop is not None
    stages = grid.stages
    start = loop.op.num_carries
    gradients = _total(durations, loop.outs[start : start + loop.op.num_sums])
    variables, arguments = stored_bytes(program, durations)
    # A call returns new sums of a chunk's gradients, while the old ones exist.
    of_variables = (variables + gradients * (1 + 1 / grid.chunks)) / stages

    def at(step: LoopStep | None, count: Any, share: Any = 1 / stages) -> Any:
        """Returns the bytes at a step of a stage with a share of the layers, which stores the
        residuals of `count` microbatches. Arguments are stored, and their parts that have not
        come by yet.
        """
        remaining = 1 - count / grid.microbatches
        num_residuals = count * share
        of_body = _of_body(timelines, loop.body, durations, num_residuals, step)
        of_body = of_body + _bytes_of_copies(loop.body, durations) / stages
        return of_variables + arguments * (1 + remaining) + of_body

    # What follows the loop, such as updates, needs tensors of variables.
    peak = memory_of(timelines, durations) / stages
    # The last stage has one microbatch at a time, and the output of the model.
    peak = np.maximum(peak, at(None, count=1))
    # The first stage has the most, and sends and receives activations.
    split = layer_split(loop.body, durations, grid)
    share = 1 / stages if split is None else split.of_first / split.layers
    for step in layer_loops(loop.body, of_forward=False):
        between_stages = 2 * bytes_between_layers(step, durations)
        bytes_at_step = at(step, count=_most_microbatches(grid), share=share)
        peak = np.maximum(peak, bytes_at_step + between_stages)
    return peak


def _most_microbatches(grid: Grid) -> Any:
    """Returns how many microbatches the first stage stores residuals of, at most; a chunk's
    part of one counts as a part: `[candidates]`.
    """
    stages, chunks = grid.stages, grid.chunks
    # Forward passes before the first backward pass: see `meshtf.pipeline.schedule`.
    in_chunks = 2 * (stages - 1) + (chunks - 1) * stages + 1
    counts = np.where(chunks == 1, stages, in_chunks / chunks)
    return np.minimum(grid.microbatches, counts)


def _of_body(
    timelines: Timelines,
    body: Program,
    durations: Durations,
    num_residuals: Any,
    step: LoopStep | None,
) -> Any:
    """Returns the bytes of activations on a stage, for all sizes.

    Args:
      timelines: those of the program.
      body: the body of the loop over microbatches.
      durations: the durations of the program.
      num_residuals: how many microbatches' residuals of all layers the stage stores.
      step: while it runs; None: at the peak of the body.
    """
    residuals = set(stacks(body, of_forward=True))
    gradients = set(stacks(body, of_forward=False))
    total: Any = 0.0
    # Copies of stacks are those of the peak, whichever step runs.
    at_step = [x for x in timelines.live(0, body, step) if x.title != TRANSPOSED]
    copies = [x for x in timelines.live(0, body) if x.title == TRANSPOSED]
    for live in (*at_step, *copies):
        num_bytes = live_bytes(live, timelines.mesh, durations)
        if live.value in gradients:
            continue  # a stage adds them to the sums at once
        if live.value in residuals:
            if not has_examples(live.value):
                continue  # copies of weights
            num_bytes = num_bytes * num_residuals
        total = total + num_bytes
    return total


def _bytes_of_copies(body: Program, durations: Durations) -> Any:
    """Returns the bytes of what the forward and the backward pass read that is computed from
    weights only, in all layers; what both compute is stored once.
    """
    copied = {x for x in stacks(body, of_forward=True) if not has_examples(x)}
    counted: set[Hashable] = set()
    total: Any = 0.0
    all_layers = loops_over_layers(body)
    origins = origins_of(all_layers)
    for layers in all_layers:
        loop = layers.loop
        read = {x for step in layers.varying for x in step.needs}
        copies = {x for step in layers.invariant for x in step.outputs}
        copies |= {x for x, y in zip(loop.entries, loop.scanned_inputs) if y in copied}
        count = durations.sizes.runs(loop.bodies[-1])
        copies &= read
        # The order of a sum decides its last bits.
        for value in (x for x in origins if x in copies):
            if origins[value] not in counted:
                counted.add(origins[value])
                total = total + durations.local_bytes(value) * count
    return total


def bytes_between_layers(loop: LoopStep, durations: Durations) -> Any:
    """Returns the bytes of what a layer passes to the next one, by a loop over layers."""
    return _total(durations, loop.outs[: loop.op.num_carries])


def _total(durations: Durations, values: Iterable[Value]) -> Any:
    """Returns the bytes of the shards of values."""
    return sum(map(durations.local_bytes, values), 0.0)
