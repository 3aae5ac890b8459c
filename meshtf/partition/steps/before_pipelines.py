"""What a pipeline waits for: sums that are smaller than what they are computed from.

    logits = layers(x) @ w                   # [batch, vocab], from [batch, d_model]
    dw = layers(x).T @ dlogits               # [d_model, vocab]
    gradients of layers                      # a pipeline, which does not need dw

A compiler may compute `dw` when it is read, behind the pipeline: then all that it is computed
from lives through the ticks, beside the activations of the layers of a stage. So the pipeline
waits for `dw`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from meshtf.mesh import Mesh
from meshtf.partition.cost import local_bytes
from meshtf.partition.steps.bodies import LoopStep
from meshtf.partition.steps.step import Step, Value


def sums_before_pipelines(
    steps: Sequence[Step], results: Iterable[Value], mesh: Mesh
) -> list[Step]:
    """Returns the steps of a program; pipelines among them wait for the sums that are planned
    before and needed behind them.

    Args:
      steps: the steps.
      results: the results of the program.
      mesh: the mesh of the program.
    """
    new_steps = list(steps)
    needed = set(results)
    for index in range(len(steps) - 1, -1, -1):
        step = steps[index]
        if step.loop is not None and step.loop.is_pipeline:
            sums = _sums_for(needed, steps[:index], mesh)
            # What is on stages of `GPipe` other than the loop's is not present.
            stages = (None, step.stage)
            present = [x for x in sums if x.placement.stage in stages]
            new_steps[index] = _waiting_for(step.loop, present)
        needed.update(step.dependencies)
    return new_steps


def _sums_for(
    needed: Iterable[Value], steps: Sequence[Step], mesh: Mesh
) -> list[Value]:
    """Returns the sums that some values are, or that they are computed from by steps that a
    compiler may run late as well: elementwise ones, and those that reduce sums over devices.
    """
    required = set(needed)
    sums: list[Value] = []
    for step in reversed(steps):
        values = [value for value in step.outputs if value in required]
        if not values:
            continue
        if _sums_up(step, mesh):
            sums.extend(values)
        elif step.is_elementwise or step.is_view or step.reductions:
            required.update(step.inputs)
    return sums


def _waiting_for(loop: LoopStep, sums: Iterable[Value]) -> LoopStep:
    """Returns a loop that waits for some values as well."""
    waits_for = dict.fromkeys((*loop.waits_for, *sums))
    for value in loop.inputs:
        waits_for.pop(value, None)
    return dataclasses.replace(loop, waits_for=tuple(waits_for))


def _sums_up(step: Step, mesh: Mesh) -> bool:
    """Returns whether a step is a reduction or a product whose output is the smaller."""
    if step.computation is None or step.is_elementwise or step.is_view:
        return False
    if any(value.spec is None for value in step.outputs):
        return False  # statistics, which the same op reads
    sizes = [
        0.0 if x.spec is None else local_bytes(x.spec, x.placement, mesh)
        for x in (*step.inputs, *step.outputs)
    ]
    inputs, outputs = sizes[: len(step.inputs)], sizes[len(step.inputs) :]
    return bool(inputs) and max(inputs) > sum(outputs)
