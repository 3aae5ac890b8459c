"""Peak memory of one device: the bytes that are live at each step of a program, in the
order of its schedule.

A value is live from the step that computes it to the last step that uses it. Variables and
arguments are always live, and reading them allocates nothing. An op whose output is as
large as an input that is not used afterwards reuses the input's buffer, as TensorFlow and
XLA do for elementwise ops. Gradients stay live until their bucket is full, as on devices
with separate memories.

    timelines = Timelines(program, gradients)
    timelines.peaks()[0].activations                  # of stage 0

Stages of a pipeline hold different values, so each has its own peak.
`meshtf.forecast.live_tensors` says what is live at the peak.
"""

from __future__ import annotations

import collections
import dataclasses
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


@dataclasses.dataclass(frozen=True)
class Timeline:
    """The values of a program, over the steps of its schedule.

    Attributes:
      steps: in the order in which they run.
      sizes: the bytes of one shard of each value.
      created_at: the index of the step that computes each value that is used.
      last_use: the index of the last step that reads it; that after all steps for
        results.
      peak: the peak of live bytes: [2, stages].
      peak_steps: the index of the step at which all live bytes peak: [stages].
    """

    steps: Sequence[Step]
    sizes: Mapping[Value, float]
    created_at: Mapping[Value, int]
    last_use: Mapping[Value, int]
    peak: Bytes
    peak_steps: np.ndarray


class Timelines:
    """The timelines of a program and of all programs within it, each computed once.

    Args:
      program: what runs.
      gradients: values that do not count as activations.
    """

    def __init__(self, program: Program, gradients: Set[Value]) -> None:
        self.program = program
        self.gradients = gradients
        self.mesh = program.mesh
        self._cache: dict[Program, Timeline] = {}

    def peaks(self) -> list[Peaks]:
        """Returns the peak of live bytes while the program runs, at each stage."""
        return [Peaks(*stage) for stage in self.of(self.program).peak.T.tolist()]

    def of(self, program: Program) -> Timeline:
        """Returns the timeline of the program, or of one within it."""
        if program not in self._cache:
            self._cache[program] = self._timeline(program)
        return self._cache[program]

    def _timeline(self, program: Program) -> Timeline:
        sizes = _sizes(program)
        steps = _scheduled_steps(program)
        last_use = _last_uses(steps, program.results)
        created_at: dict[Value, int] = {}
        live = np.zeros([2, num_stages(self.mesh)])
        peak = np.zeros_like(live)
        peak_steps = np.zeros(num_stages(self.mesh), int)
        for i, step in enumerate(steps):
            allocated = [value for value in outputs_of(step) if value in last_use]
            created_at.update(dict.fromkeys(allocated, i))
            output_bytes = self._bytes(allocated, sizes)
            live += output_bytes
            freed = values_freed_by(step, i, last_use)
            reused = _reused(step, freed, sizes, self.mesh)
            live_during_step = live + self._scratch(step, output_bytes) - reused
            peak_steps[live_during_step[0] > peak[0]] = i
            np.maximum(peak, live_during_step, out=peak)
            live -= self._bytes(freed, sizes)
        return Timeline(steps, sizes, created_at, last_use, peak, peak_steps)

    def _scratch(self, step: Step, output_bytes: Bytes) -> Bytes:
        """Returns the bytes that a step needs while it runs, in addition to its inputs
        and outputs: [2, stages].
        """
        if isinstance(step, (BranchStep, LoopStep)):
            return self._peak_of_bodies(bodies_of(step))
        if isinstance(step, CallStep):
            # The results of a call are in the peak of its body.
            peak = self._peak_of_bodies([step.body])
            return np.maximum(peak - output_bytes, 0.0)
        if isinstance(step, Bucket):
            # The packed buffer is live together with the inputs, and freed before the
            # results are unpacked.
            sizes = packed_sizes(step, self.mesh)
            return np.maximum(self._bytes(sizes, sizes) - output_bytes, 0.0)
        scratch = np.zeros_like(output_bytes)
        if isinstance(step, Compute) and not step.makes_statistics:
            local_specs = workspace_specs(step, self.mesh)
            stage = _stage_slice(step.plan.stage)
            scratch[:, stage] = sum(
                local_bytes(spec, self.mesh.replicated, self.mesh)
                for spec in local_specs
            )
        return scratch

    def _peak_of_bodies(self, bodies: Sequence[Program]) -> Bytes:
        """Returns the largest peak among bodies: [2, stages]."""
        peak = np.zeros([2, num_stages(self.mesh)])
        for body in bodies:
            np.maximum(peak, self.of(body).peak, out=peak)
        return peak

    def _bytes(self, values: Iterable[Value], sizes: Mapping[Value, float]) -> Bytes:
        """Returns the bytes of values, and of those that are not gradients: [2, stages]."""
        total = np.zeros([2, num_stages(self.mesh)])
        for value in values:
            stages = _stages_of(value.placement)
            total[0, stages] += sizes[value]
            if value not in self.gradients:
                total[1, stages] += sizes[value]
        return total


def bodies_of(step: BranchStep | LoopStep | CallStep) -> Sequence[Program]:
    """Returns the programs within a step whose values are live while it runs."""
    return step.bodies if isinstance(step, BranchStep) else [step.body]


def packed_sizes(step: Bucket, mesh: Mesh) -> dict[Value, float]:
    """Returns the bytes of each value in the packed buffer of a bucket."""
    values = [reduction.src for reduction in step.reductions]
    return {value: _size(value, mesh) for value in values}


def values_freed_by(
    step: Step, index: int, last_use: Mapping[Value, int]
) -> list[Value]:
    """Returns the inputs of a step that no later step reads."""
    inputs = dict.fromkeys(inputs_of(step))
    return [value for value in inputs if last_use[value] == index]


def is_on_stage(value: Value, stage: int) -> bool:
    """Returns whether a stage holds a value."""
    stages = _stages_of(value.placement)
    return stages.start is None or stages.start == stage


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


def workspace_specs(step: Compute, mesh: Mesh) -> Sequence[Spec]:
    """Returns the specs of the temporary tensors of an op, on one device."""
    local_specs = [
        Spec(local_shape(value.spec.shape, value.placement, mesh), value.spec.dtype)
        for value in step.ins
        if value.spec is not None
    ]
    specs: Sequence[Spec] = step.node.op.workspace_specs(*local_specs)
    return specs


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
