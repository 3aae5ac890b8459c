"""Peak memory of one device: the bytes that are live at each step of a program, in the
order of its schedule.

A value is live from the step that computes it to the last step that uses it. Variables and
arguments are always live, and reading them allocates nothing. An op whose output is as
large as an input that is not used afterwards reuses the input's buffer, as TensorFlow and
XLA do for elementwise ops. Gradients stay live until their bucket is full, as on devices
with separate memories.

    peaks(program, gradients)[0].activations

Stages of a pipeline hold different values, so each has its own peak.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from meshtf.graph import Spec, Store
from meshtf.mesh import Mesh, OnStage, Placement
from meshtf.partition import (
    BranchStep,
    Bucket,
    CallStep,
    Compute,
    GatherStatisticsStep,
    LoopStep,
    Program,
    ReadStep,
    Step,
    Value,
    schedule,
)
from meshtf.partition.cost import local_bytes, local_shape
from meshtf.partition.steps import inputs_of, outputs_of

# Bytes [2, stages]: of all values, and of all that are not gradients; or bytes [stages].
Bytes: TypeAlias = np.ndarray
T = TypeVar("T", Store, Value)


class Peaks(NamedTuple):
    """The peak of live bytes on one device, without variables and arguments."""

    everything: float
    activations: float  # everything except the gradients that updates use


def peaks(program: Program, gradients: Set[Value]) -> list[Peaks]:
    """Returns the peak of live bytes while a program runs step by step, at each stage.

    Args:
      program: what runs.
      gradients: values that do not count as activations.
    """
    return [Peaks(*stage) for stage in _peaks(program, gradients, {}).T.tolist()]


def num_stages(mesh: Mesh) -> int:
    """Returns the number of pipeline stages of a mesh."""
    return mesh.axes.get(mesh.stages, 1)


def by_stage(items: Iterable[T], mesh: Mesh) -> list[list[T]]:
    """Returns for each stage the values or variables that it holds."""
    items_by_stage: list[list[T]] = [[] for _ in range(num_stages(mesh))]
    for item in items:
        for stage_items in items_by_stage[_stages_of(item.placement)]:
            stage_items.append(item)
    return items_by_stage


def _peaks(
    program: Program, gradients: Set[Value], peaks_of_bodies: dict[Program, Bytes]
) -> Bytes:
    """Returns the peaks as an array [2, stages].

    Args:
      program: what runs.
      gradients: values that do not count as activations.
      peaks_of_bodies: a cache of the peaks of programs within this one.
    """
    mesh = program.mesh
    sizes = _sizes(program)
    steps = _scheduled_steps(program)
    last_use = _last_uses(steps, program.results)
    live = np.zeros([2, num_stages(mesh)])
    peak = np.zeros([2, num_stages(mesh)])
    for i, step in enumerate(steps):
        inputs = dict.fromkeys(inputs_of(step))
        freed = [value for value in inputs if last_use[value] == i]
        allocated = [value for value in outputs_of(step) if value in last_use]
        output_bytes = _bytes(allocated, sizes, gradients, mesh)
        live += output_bytes
        scratch = _scratch(step, output_bytes, gradients, peaks_of_bodies, mesh)
        reused = _reused(step, freed, sizes, mesh)
        np.maximum(peak, live + (scratch - reused), out=peak)
        live -= _bytes(freed, sizes, gradients, mesh)
    return peak


def _last_uses(steps: Sequence[Step], results: Iterable[Value]) -> dict[Value, int]:
    """Returns the index of the last step that reads each value; that after all steps for
    results.
    """
    last_use = {}
    for i, step in enumerate(steps):
        for value in inputs_of(step):
            last_use[value] = i
    for value in results:
        last_use[value] = len(steps)
    return last_use


def _scheduled_steps(program: Program) -> list[Step]:
    """Returns all steps in the order in which they run."""
    steps: list[Step] = []
    for segment in schedule(program, bucket_bytes=program.mesh.bucket_bytes):
        steps.extend(segment.before)
        steps.extend(segment.computes)
    return steps


def _bytes(
    values: Iterable[Value],
    sizes: Mapping[Value, float],
    gradients: Set[Value],
    mesh: Mesh,
) -> Bytes:
    """Returns the bytes of values, and of those that are not gradients: [2, stages]."""
    total = np.zeros([2, num_stages(mesh)])
    for value in values:
        stages = _stages_of(value.placement)
        total[0, stages] += sizes[value]
        if value not in gradients:
            total[1, stages] += sizes[value]
    return total


def _stages_of(placement: Placement) -> slice:
    """Returns the stages that hold a tensor with this placement."""
    for state in placement:
        if isinstance(state, OnStage):
            return _stage_slice(state.coordinate)
    return _stage_slice(None)


def _stage_slice(stage: int | None) -> slice:
    """Returns one stage; None: all stages."""
    return slice(None) if stage is None else slice(stage, stage + 1)


def _reused(
    step: Step, freed: Iterable[Value], sizes: Mapping[Value, float], mesh: Mesh
) -> Bytes:
    """Returns the bytes of input buffers that outputs reuse: [stages]."""
    reused = np.zeros(num_stages(mesh))
    if not isinstance(step, Compute):
        return reused
    output_sizes = [sizes[value] for value in step.outs]
    for value in freed:
        if sizes[value] in output_sizes:
            stages = _stages_of(value.placement)
            reused[stages] = np.maximum(reused[stages], sizes[value])
    return reused


def _scratch(
    step: Step,
    output_bytes: Bytes,
    gradients: Set[Value],
    peaks_of_bodies: dict[Program, Bytes],
    mesh: Mesh,
) -> Bytes:
    """Returns the bytes that a step needs while it runs, in addition to its inputs and
    outputs: [2, stages].
    """
    if isinstance(step, BranchStep):
        return _peak_of_bodies(step.bodies, gradients, peaks_of_bodies, mesh)
    if isinstance(step, LoopStep):
        return _peak_of_bodies([step.body], gradients, peaks_of_bodies, mesh)
    if isinstance(step, CallStep):
        # The results of a call are in the peak of its body.
        peak = _peak_of_bodies([step.body], gradients, peaks_of_bodies, mesh)
        return np.maximum(peak - output_bytes, 0.0)
    if isinstance(step, Bucket):
        # The packed buffer is live together with the inputs, and freed before the
        # results are unpacked.
        sizes = {move.src: _size(move.src, mesh) for move in step.reductions}
        packed = _bytes(sizes, sizes, gradients, mesh)
        return np.maximum(packed - output_bytes, 0.0)
    scratch = np.zeros_like(output_bytes)
    if isinstance(step, Compute) and not step.makes_statistics:
        scratch[:, _stage_slice(step.plan.stage)] = _workspace(step, mesh)
    return scratch


def _peak_of_bodies(
    bodies: Sequence[Program],
    gradients: Set[Value],
    peaks_of_bodies: dict[Program, Bytes],
    mesh: Mesh,
) -> Bytes:
    """Returns the largest peak among bodies: [2, stages]."""
    peak = np.zeros([2, num_stages(mesh)])
    for body in bodies:
        if body not in peaks_of_bodies:
            peaks_of_bodies[body] = _peaks(body, gradients, peaks_of_bodies)
        np.maximum(peak, peaks_of_bodies[body], out=peak)
    return peak


def _workspace(step: Compute, mesh: Mesh) -> float:
    """Returns the bytes of temporary tensors of an op."""
    local_specs = [
        Spec(local_shape(value.spec.shape, value.placement, mesh), value.spec.dtype)
        for value in step.ins
        if value.spec is not None
    ]
    return sum(
        local_bytes(spec, mesh.replicated, mesh)
        for spec in step.node.op.workspace_specs(*local_specs)
    )


def _sizes(program: Program) -> dict[Value, float]:
    """Returns the bytes of one shard of every value that the program computes.

    Values that are read from a store, or are arguments, count as 0: they are always live.
    """
    mesh = program.mesh
    sizes: dict[Value, float] = collections.defaultdict(float)
    for step in program.steps:
        for value in outputs_of(step):
            sizes[value] = 0.0 if isinstance(step, ReadStep) else _size(value, mesh)
        if isinstance(step, GatherStatisticsStep):
            local_size = sum(
                local_bytes(spec, mesh.replicated, mesh) for spec in step.specs(mesh)
            )
            sizes[step.src] = local_size
            sizes[step.out] = local_size * step.num_shards(mesh)
        elif isinstance(step, Compute) and step.makes_statistics:
            # Local residuals of unknown shape: estimated by the largest input.
            residuals = step.outs[1]
            sizes[residuals] = max((sizes[v] for v in step.ins), default=0.0)
    return sizes


def _size(value: Value, mesh: Mesh) -> float:
    return 0.0 if value.spec is None else local_bytes(value.spec, value.placement, mesh)
