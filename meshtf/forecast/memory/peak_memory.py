"""Peak memory of one device: the largest sum of bytes that are live at one step of a
program, in the order of its schedule.

    timelines = Timelines(program, gradients)
    timelines.peaks()[0].activations                  # the peak of pipeline stage 0
    timelines.live(stage=0)                           # what is live at it

A value is live from the step that computes it to the last step that reads it. Variables and
arguments are always live, so reading them allocates nothing. An op whose output is as
large as an input that no later step reads reuses the input's buffer, as TensorFlow does
for elementwise ops. Gradients stay live until their bucket is full (a bucket: the
gradients that one all-reduce adds up), as on devices with separate memories.

A program that XLA compiles (`under_xla`) needs other memory here and there:
`meshtf.forecast.memory.xla_buffers` and `xla_order` have the rules.

So a program becomes a list of allocations, off which `meshtf.forecast.memory.allocations` reads
the peak and what is live at it. The stages of a pipeline hold different values, so each has a list
of its own. Without a pipeline there is one stage, 0. A spec is a shape and a data type.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import TypeAlias, TypeVar

from meshtf.forecast.memory.allocations import (
    Allocation,
    Bytes,
    Timeline,
    beyond,
    timeline_of,
    total_of,
)
from meshtf.forecast.memory.kernels import kernel_of, local_specs
from meshtf.forecast.memory.value_sizes import size_of, value_sizes
from meshtf.forecast.memory.xla_buffers import (
    blocks_in_memory,
    is_fused,
    is_inlined,
    reduces_in_place,
    sources_of_copies,
    waiting_values,
)
from meshtf.forecast.memory.xla_order import in_xla_order
from meshtf.graph import Op, Spec, Store
from meshtf.graph.op_kinds import FusedMatmulsOp
from meshtf.mesh import Mesh
from meshtf.partition import Program, Step, Value, values_in_sums, walk
from meshtf.partition.cost import local_bytes
from meshtf.partition.segments import in_order

# Value that is never written -> the values that are read in its place.
Sources: TypeAlias = Mapping[Value, Sequence[Value]]
# The values that a stage stores, in the order in which they are computed.
StoredValues: TypeAlias = dict[Value, Allocation]
StoreOrValue = TypeVar("StoreOrValue", Store, Value)


def by_stage(items: Iterable[StoreOrValue], mesh: Mesh) -> list[list[StoreOrValue]]:
    """Returns for each pipeline stage the values or variables that it holds."""
    items_by_stage: list[list[StoreOrValue]] = [[] for _ in range(mesh.num_stages)]
    for item in items:
        for stage in _stages(item.placement.stage, mesh):
            items_by_stage[stage].append(item)
    return items_by_stage


class Timelines:
    """The timelines of a program and of the bodies of its loops, branches and calls.

    A timeline is computed when it is first asked for, and then cached.

    Args:
      program: the planned program.
      gradients: the gradients of parameters, which do not count as activations.
      under_xla: whether XLA compiles the program.
      platform: for what, "cpu", "cuda" or "tpu"; "": any devices, or not XLA.
    """

    def __init__(
        self,
        program: Program,
        gradients: Set[Value],
        under_xla: bool = False,
        platform: str = "",
    ) -> None:
        self.program = program
        self.gradients = gradients
        self.under_xla = under_xla
        self.platform = platform
        self.mesh = program.mesh
        self._cache: dict[Program, dict[int, Timeline]] = {}
        # What loops add to sums of outer loops, and store nowhere else.
        self._in_sums: set[Value] = set()
        if under_xla:
            loops = (step.loop for step, _ in walk(program) if step.loop is not None)
            self._in_sums.update(itertools.chain(*map(values_in_sums, loops)))

    def peaks(self) -> list[Bytes]:
        """Returns for each stage the peak of live bytes while the program runs, without
        variables and arguments.
        """
        peaks = [Bytes(0.0, 0.0)] * self.mesh.num_stages
        for stage, timeline in self.of(self.program).items():
            peaks[stage] = timeline.peak
        return peaks

    def live(self, stage: int) -> list[Allocation]:
        """Returns what is live at the peak of a stage: values in the order in which they are
        computed, then buffers.
        """
        timelines = self.of(self.program)
        return list(timelines[stage].live()) if stage in timelines else []

    def of(self, program: Program) -> dict[int, Timeline]:
        """Returns {stage: timeline} of the program, or of a body within it, for the stages
        that store anything.
        """
        if program not in self._cache:
            self._cache[program] = self._timelines(program)
        return self._cache[program]

    def _timelines(self, program: Program) -> dict[int, Timeline]:
        """Returns the timelines of a program, by simulating the steps of its schedule."""
        steps, sources = self._order(program)
        sizes = value_sizes(program, self.under_xla)
        sizes.update(dict.fromkeys((*sources, *self._in_sums), 0.0))
        last_use = _last_uses(steps, program.results, sources)
        readers = [*steps, None]  # None: who calls the program reads its results
        values: list[StoredValues] = [{} for _ in range(self.mesh.num_stages)]
        buffers: list[list[Allocation]] = [[] for _ in values]
        for index, step in enumerate(steps):
            for value in step.outputs:
                if value not in last_use or not sizes[value]:
                    continue
                allocation = Allocation(
                    index,
                    last=last_use[value],
                    size=self._bytes(value, sizes[value]),
                    step=step,
                    spec=value.spec,
                    placement=value.placement,
                    value=value,
                    used_by=readers[last_use[value]],
                )
                for stage in self._stages_of(value):
                    values[stage][value] = allocation
            if self._can_overwrite_input(step):
                read = dict.fromkeys(_read_by(step, sources))
                freed = [x for x in read if last_use[x] == index]
                _end_overwritten(values, freed, {sizes[x] for x in step.outputs})
            for stage, buffer in self._buffers(index, step, values):
                buffers[stage].append(buffer)
        return {
            stage: timeline_of(steps, [*of_stage.values(), *buffers[stage]])
            for stage, of_stage in enumerate(values)
            if of_stage or buffers[stage]
        }

    def _order(self, program: Program) -> tuple[Sequence[Step], Sources]:
        """Returns the steps of a program in the order in which they run, and what they read in
        place of values that XLA never writes.
        """
        steps = scheduled_steps(program)
        # Not for pipelines, whose passes are programs of their own: what they pass is written.
        if not self.under_xla or self.mesh.num_stages > 1:
            return steps, {}
        steps = in_xla_order(steps, program.results)
        results = program.results
        return steps, sources_of_copies(steps, results, self.mesh, self.platform)

    def _stages_of(self, value: Value) -> Sequence[int]:
        """Returns the stages that hold a value."""
        if self.mesh.num_stages == 1:
            return (0,)
        return _stages(value.placement.stage, self.mesh)

    def _bytes(self, value: Value, num_bytes: float) -> Bytes:
        """Returns the bytes of a value by kind."""
        return Bytes(num_bytes, 0.0 if value in self.gradients else num_bytes)

    def _can_overwrite_input(self, step: Step) -> bool:
        """Returns whether an output of a step may take the buffer of an input."""
        if self.under_xla and reduces_in_place(step):
            return True
        if step.computation is None:
            return False
        return not self.under_xla or step.is_elementwise

    def _copy(self, value: Value, index: int, step: Step, title: str) -> Allocation:
        """Returns a buffer as large as a value, for one step."""
        size = self._bytes(value, size_of(value, self.mesh))
        spec, placement = value.spec, value.placement
        return Allocation(index, index, size, step, spec, placement, title=title)

    def _buffers(
        self, index: int, step: Step, values: Sequence[StoredValues]
    ) -> Iterator[tuple[int, Allocation]]:
        """Yields (stage, buffer) for what is live only while a step runs.

        Args:
          index: the index of the step.
          step: the step.
          values: those of each stage so far.
        """
        if step.computation is not None or step.writes:
            yield from self._workspaces(index, step)
        elif step.bodies:
            yield from self._bodies(index, step, values)
            if step.loop is not None and self.under_xla:
                for value in waiting_values(step.loop):
                    title = "waits for the next iteration"
                    copy = self._copy(value, index, step, title)
                    for stage in self._stages_of(value):
                        yield stage, copy
        elif step.packed:
            yield from self._packed(index, step, values)

    def _workspaces(self, index: int, step: Step) -> Iterator[tuple[int, Allocation]]:
        """Yields the temporary tensors of an op, or of an update."""
        assert step.node is not None
        placement = self.mesh.replicated
        title = f"workspace of {step.node.op.display_name}"
        for spec in self._workspace_specs(step):
            num_bytes = local_bytes(spec, placement, self.mesh)
            size = Bytes(num_bytes, num_bytes)
            workspace = Allocation(
                index, index, size, step, spec, placement, title=title
            )
            for stage in _stages(step.stage, self.mesh):
                yield stage, workspace

    def _workspace_specs(self, step: Step) -> Sequence[Spec]:
        """Returns the specs of the temporary tensors of an op, on one device."""
        assert step.node is not None
        op = step.node.op
        if type(op).workspace_specs is Op.workspace_specs or not step.computes_node:
            return ()  # as most ops, it has none
        if step.computation is not None:
            kernel = kernel_of(step.computation, self.mesh, self.platform)
            if kernel is not None and not kernel.refusal:
                return ()
        inputs = local_specs(step, self.mesh)
        specs = op.workspace_specs(*inputs)
        if not self.under_xla:
            return specs
        if isinstance(op, FusedMatmulsOp):
            return blocks_in_memory(op, specs, inputs[0].dtype, self.platform)
        return [spec for spec in specs if not is_fused(spec, inputs)]

    def _bodies(
        self, index: int, step: Step, values: Sequence[StoredValues]
    ) -> Iterator[tuple[int, Allocation]]:
        """Yields what the body of a loop, branch or call needs; of several bodies, that which
        needs the most.
        """
        bodies = [self.of(body.program) for body in step.bodies]
        for stage in set().union(*bodies):
            timelines = [body[stage] for body in bodies if stage in body]
            largest = max(timelines, key=lambda x: x.peak.everything)
            activations = max(x.peak.activations for x in timelines)
            size = largest.peak._replace(activations=activations)
            has_outputs = self._computes_outputs_in_body(step)
            if has_outputs:
                size = beyond(size, _outputs(step, values[stage]))
            placement = self.mesh.replicated
            body = Allocation(index, index, size, step, None, placement, body=largest)
            yield stage, body._replace(has_outputs=has_outputs)

    def _computes_outputs_in_body(self, step: Step) -> bool:
        """Returns whether the outputs of a step are the results of its body, and no copies."""
        if step.call is not None:
            return True
        return self.under_xla and step.loop is not None and is_inlined(step.loop)

    def _packed(
        self, index: int, step: Step, values: Sequence[StoredValues]
    ) -> Iterator[tuple[int, Allocation]]:
        """Yields the packed buffer of a step, such as several reductions that run as one
        collective. It is live together with the inputs, and the results are unpacked into it:
        so only the bytes beyond those of the results count.
        """
        kind = step.title if step.collective is None else step.collective.kind
        title = f"packed {kind}"
        placement = self.mesh.replicated
        for stage, of_stage in enumerate(values):
            packed = total_of(
                [
                    self._bytes(x, size_of(x, self.mesh))
                    for x in step.packed
                    if stage in self._stages_of(x)
                ]
            )
            size = beyond(packed, _outputs(step, of_stage))
            if size.everything:
                yield (
                    stage,
                    Allocation(index, index, size, step, None, placement, title=title),
                )


def _outputs(step: Step, values: StoredValues) -> list[Allocation]:
    """Returns the outputs of a step that a stage stores."""
    return [values[x] for x in step.outputs if x in values]


def _end_overwritten(
    values: Iterable[StoredValues], freed: Sequence[Value], output_sizes: Set[float]
) -> None:
    """Ends the allocation of the input whose buffer an output of a step reuses, at each stage,
    before that step.

    Args:
      values: the values of each stage, changed in place.
      freed: the inputs that no later step reads.
      output_sizes: the bytes of each output.
    """
    for of_stage in values:
        reusable = [
            of_stage[x]
            for x in freed
            if x in of_stage and of_stage[x].bytes in output_sizes
        ]
        if reusable:
            reused = max(reusable, key=lambda x: x.bytes)
            assert reused.value is not None
            of_stage[reused.value] = reused._replace(last=reused.last - 1)


def _read_by(step: Step, sources: Sources) -> Iterator[Value]:
    """Yields the inputs of a step, and what is read in place of those that are never written."""
    for value in step.needs:
        yield value
        yield from sources.get(value, ())


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
        for x in (value, *sources.get(value, ())):
            last_use[x] = len(steps)
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


def _stages(stage: int | None, mesh: Mesh) -> Sequence[int]:
    """Returns one stage; None: all stages."""
    return range(mesh.num_stages) if stage is None else (stage,)
