"""Peak memory of one device: the largest sum of bytes that are live at one step of a
program, in the order of its schedule.

    timelines = Timelines(program, gradients)
    timelines.peaks()[0].activations                  # the peak of pipeline stage 0

A value is live from the step that computes it to the last step that reads it. Variables and
arguments are always live, so reading them allocates nothing. An op whose output is as
large as an input that no later step reads reuses the input's buffer, as TensorFlow does
for elementwise ops. Gradients stay live until their bucket is full (a bucket: the
gradients that one all-reduce adds up), as on devices with separate memories.

A program that XLA compiles (`under_xla`) needs other memory here and there:
`meshtf.forecast.memory.xla_buffers` and `xla_order` have the rules.

The stages of a pipeline hold different values, so each stage has its own peak. Without a
pipeline there is one stage, 0. A spec is a shape and a data type.
`meshtf.forecast.memory.live_tensors` lists what is live at the peak.
"""

from __future__ import annotations

import collections
import dataclasses
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from meshtf.forecast.memory.value_sizes import packed_sizes, size_of, value_sizes
from meshtf.forecast.memory.xla_buffers import (
    TransposedStack,
    is_fused,
    sources_of_copies,
    transposed_stacks,
    waiting_values,
)
from meshtf.forecast.memory.xla_order import in_xla_order
from meshtf.graph import Op, Spec, Store
from meshtf.mesh import Mesh, Placement
from meshtf.partition import Compute, Program, Step, Value
from meshtf.partition.cost import local_bytes, local_shape
from meshtf.partition.segments import in_order

# float [2, stages]: the bytes of all values, and the bytes of all values except gradients.
Bytes: TypeAlias = np.ndarray
ALL_VALUES = 0  # the first row of `Bytes`
ACTIVATIONS = 1  # the second row of `Bytes`
# Value that is never written -> the values that are read in its place.
Sources: TypeAlias = Mapping[Value, Sequence[Value]]
StoreOrValue = TypeVar("StoreOrValue", Store, Value)


class Peaks(NamedTuple):
    """The peak of live bytes on one device, without variables and arguments."""

    everything: float
    activations: float  # everything except the gradients that updates use


def by_stage(items: Iterable[StoreOrValue], mesh: Mesh) -> list[list[StoreOrValue]]:
    """Returns for each pipeline stage the values or variables that it holds."""
    items_by_stage: list[list[StoreOrValue]] = [[] for _ in range(mesh.num_stages)]
    for item in items:
        for stage_items in items_by_stage[_stages_of(item.placement)]:
            stage_items.append(item)
    return items_by_stage


@dataclasses.dataclass(frozen=True)
class Timeline:
    """When each value of a program is live, in steps of the program's schedule.

    Attributes:
      steps: the steps in the order in which they run.
      sizes: for each value, the bytes of one shard.
      created_at: for each value that a step reads, the index of the step that computes it.
      last_use: for each value, the index of the last step that reads it; `len(steps)` for
        results.
      transposed: the transposed copies of stacks that XLA makes for loops.
      sources: for each value that XLA never writes, what is read in its place.
      peak: the peak of live bytes, `[2, stages]`; see `Bytes`.
      peak_steps: for each stage, the index of the step at which the bytes of all values
        peak: `[stages]`.
    """

    steps: Sequence[Step]
    sizes: Mapping[Value, float]
    created_at: Mapping[Value, int]
    last_use: Mapping[Value, int]
    transposed: Sequence[TransposedStack]
    sources: Sources
    peak: Bytes
    peak_steps: np.ndarray


class Timelines:
    """The timelines of a program and of the bodies of its loops, branches and calls.

    A timeline is computed when it is first asked for, and then cached.

    Args:
      program: the planned program.
      gradients: the gradients of parameters, which do not count as activations.
      under_xla: whether XLA compiles the program.
      planned_order: whether steps keep the order of the plan under XLA, too.
    """

    def __init__(
        self,
        program: Program,
        gradients: Set[Value],
        under_xla: bool = False,
        planned_order: bool = False,
    ) -> None:
        self.program = program
        self.gradients = gradients
        self.under_xla = under_xla
        self.planned_order = planned_order
        self.mesh = program.mesh
        self._cache: dict[Program, Timeline] = {}

    def peaks(self) -> list[Peaks]:
        """Returns for each stage the peak of live bytes while the program runs."""
        peak = self.of(self.program).peak
        everything = peak[ALL_VALUES].tolist()
        activations = peak[ACTIVATIONS].tolist()
        return list(map(Peaks, everything, activations))

    def of(self, program: Program) -> Timeline:
        """Returns the timeline of the program, or of a body within it."""
        if program not in self._cache:
            self._cache[program] = self._timeline(program)
        return self._cache[program]

    def _timeline(self, program: Program) -> Timeline:
        """Returns the timeline of a program, by simulating the steps of its schedule."""
        sizes = value_sizes(program, self.under_xla)
        steps = scheduled_steps(program)
        sources: Sources = {}
        # Not for pipelines, whose passes are programs of their own: what they pass is written.
        if self.under_xla and self.mesh.num_stages == 1:
            if not self.planned_order:
                steps = in_xla_order(steps, program.results)
            sources = sources_of_copies(steps, program.results, self.mesh)
        sizes.update(dict.fromkeys(sources, 0.0))
        last_use = _last_uses(steps, program.results, sources)
        created_at: dict[Value, int] = {}
        # [steps + 1, 2, stages]: the bytes that each step allocates, less those that the
        # step before has freed; and the bytes that are live only while the step runs.
        changes = np.zeros([len(steps) + 1, 2, self.mesh.num_stages])
        temporary = np.zeros_like(changes)
        for i, step in enumerate(steps):
            outputs = [value for value in step.outputs if value in last_use]
            created_at.update(dict.fromkeys(outputs, i))
            freed = values_freed_by(step, i, last_use, sources)
            self._add_bytes(changes[i], outputs, sizes)
            self._add_bytes(changes[i + 1], freed, sizes, sign=-1)
            if step.computation is not None:
                self._add_workspace(temporary[i], step.computation)
                if self.can_overwrite_input(step):
                    _subtract_reused(temporary[i], step, freed, sizes)
            elif step.bodies or step.packed:
                temporary[i] = self._scratch(step, outputs, sizes)
        transposed = transposed_stacks(steps, self.mesh) if self.under_xla else ()
        for stack, first, last in transposed:
            bytes_of_stack = {stack: size_of(stack, self.mesh)}
            self._add_bytes(changes[first], [stack], bytes_of_stack)
            self._add_bytes(changes[last + 1], [stack], bytes_of_stack, sign=-1)
        live = np.cumsum(changes, axis=0) + temporary
        return Timeline(
            steps=steps,
            sizes=sizes,
            created_at=created_at,
            last_use=last_use,
            transposed=transposed,
            sources=sources,
            peak=live.max(axis=0),
            peak_steps=live[:, ALL_VALUES].argmax(axis=0),
        )

    def _add_workspace(self, total: Bytes, step: Compute) -> None:
        """Adds the bytes of the temporary tensors of an op to `total`."""
        if not step.computes_node:
            return
        stage = _stage_slice(step.plan.stage)
        for spec in self.workspace_specs(step):
            total[:, stage] += local_bytes(spec, self.mesh.replicated, self.mesh)

    def workspace_specs(self, step: Compute) -> Sequence[Spec]:
        """Returns the specs of the temporary tensors of an op, on one device."""
        op = step.node.op
        if type(op).workspace_specs is Op.workspace_specs:
            return ()  # as most ops, it has none
        local_specs = [
            Spec(
                local_shape(value.spec.shape, value.placement, self.mesh),
                value.spec.dtype,
            )
            for value in step.ins
            if value.spec is not None
        ]
        specs = op.workspace_specs(*local_specs)
        if self.under_xla:
            return [spec for spec in specs if not is_fused(spec, local_specs)]
        return specs

    def can_overwrite_input(self, step: Step) -> bool:
        """Returns whether an output of a step may take the buffer of an input."""
        if step.computation is None:
            return False
        return not self.under_xla or step.is_elementwise

    def waiting_values(self, step: Step) -> Sequence[Value]:
        """Returns the values of an iteration that wait for the next iteration of a loop."""
        if step.loop is None or not self.under_xla:
            return ()
        return waiting_values(step.loop)

    def _scratch(
        self,
        step: Step,
        outputs: Iterable[Value],
        sizes: Mapping[Value, float],
    ) -> Bytes:
        """Returns the bytes that a step needs while it runs, in addition to its inputs
        and outputs.

        Args:
          step: the step.
          outputs: the outputs that a later step reads.
          sizes: the bytes of each value.
        """
        scratch = np.zeros([2, self.mesh.num_stages])
        for body in step.bodies:
            np.maximum(scratch, self.of(body.program).peak, out=scratch)
        waiting = {x: size_of(x, self.mesh) for x in self.waiting_values(step)}
        self._add_bytes(scratch, waiting, waiting)
        # The packed buffer is live together with the inputs, and freed before the results are
        # unpacked.
        packed = packed_sizes(step, self.mesh)
        self._add_bytes(scratch, packed, packed)
        if packed or step.call is not None:
            # These bytes include the results, as far as the results need them: count them once.
            self._add_bytes(scratch, outputs, sizes, sign=-1)
        return np.maximum(scratch, 0.0)

    def _add_bytes(
        self,
        total: Bytes,
        values: Iterable[Value],
        sizes: Mapping[Value, float],
        sign: int = 1,
    ) -> None:
        """Adds the bytes of values to `total`; with `sign=-1`, subtracts them."""
        # Sums as Python numbers first: additions to elements of arrays are slow.
        sums: dict[tuple[int, int | None], float] = collections.defaultdict(float)
        has_stages = self.mesh.num_stages > 1
        for value in values:
            size = sizes[value]
            if size:
                kinds = ALL_VALUES if value in self.gradients else ACTIVATIONS
                stage = value.placement.stage if has_stages else 0
                sums[kinds, stage] += size
        for (kinds, stage), size in sums.items():
            stages = _stage_slice(stage) if has_stages else 0
            total[ALL_VALUES, stages] += sign * size
            if kinds == ACTIVATIONS:
                total[ACTIVATIONS, stages] += sign * size


def values_freed_by(
    step: Step, index: int, last_use: Mapping[Value, int], sources: Sources
) -> list[Value]:
    """Returns what a step reads and no later step."""
    read = dict.fromkeys(_read_by(step, sources))
    return [value for value in read if last_use[value] == index]


def _read_by(step: Step, sources: Sources) -> Iterator[Value]:
    """Yields the inputs of a step, and what is read in place of those that are never written."""
    for value in step.needs:
        yield value
        yield from sources.get(value, ())


def is_on_stage(value: Value, stage: int) -> bool:
    """Returns whether a pipeline stage holds a value."""
    stages = _stages_of(value.placement)
    return stages.start is None or stages.start == stage


def _last_uses(
    steps: Sequence[Step], results: Iterable[Value], sources: Sources
) -> dict[Value, int]:
    """Returns for each value the index of the last step that reads it; `len(steps)` for
    results.
    """
    last_use = {}
    for i, step in enumerate(steps):
        for value in _read_by(step, sources):
            last_use[value] = i
    for value in results:
        last_use[value] = len(steps)
    return last_use


# Memory and time both ask for the steps of a program, as long as it exists.
_scheduled: weakref.WeakKeyDictionary[Program, Sequence[Step]] = (
    weakref.WeakKeyDictionary()
)


def scheduled_steps(program: Program) -> Sequence[Step]:
    """Returns all steps of a program in the order in which they run."""
    if program in _scheduled:
        return _scheduled[program]
    steps: list[Step] = []
    # A segment: computations that run as one TensorFlow function, and the steps before.
    for segment in in_order(program, bucket_bytes=program.mesh.bucket_bytes):
        steps.extend(segment.before)
        steps.extend(segment.computes)
    _scheduled[program] = steps
    return steps


def _stages_of(placement: Placement) -> slice:
    """Returns the stages that hold a tensor with this placement, as a slice."""
    return _stage_slice(placement.stage)


def _stage_slice(stage: int | None) -> slice:
    """Returns a slice of one stage; None: of all stages."""
    return slice(None) if stage is None else slice(stage, stage + 1)


def _subtract_reused(
    total: Bytes, step: Step, freed: Iterable[Value], sizes: Mapping[Value, float]
) -> None:
    """Subtracts the bytes of the input buffer that an output of a step reuses, at each
    stage, from `total`.

    Args:
      total: the bytes, changed in place.
      step: the step.
      freed: the inputs that no later step reads.
      sizes: the bytes of each value.
    """
    output_sizes = [sizes[value] for value in step.outputs]
    reusable = [value for value in freed if sizes[value] in output_sizes]
    if not reusable:
        return
    if total.shape[1] == 1:  # one stage
        total -= max(sizes[value] for value in reusable)
        return
    reused = np.zeros_like(total[ALL_VALUES])
    for value in reusable:
        stages = _stages_of(value.placement)
        reused[stages] = np.maximum(reused[stages], sizes[value])
    total -= reused  # [stages], from both rows
