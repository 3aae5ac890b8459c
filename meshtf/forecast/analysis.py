"""A planned program becomes a forecast: every op, the collectives before it, and costs.

It needs neither devices nor TensorFlow. A program states what one device does, whatever
the size of the mesh, so the forecast for 2,048 devices takes as long as that for eight.

    forecast("train_step", graph.nodes, results, mesh)
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Sequence, Set
from typing import Literal

from meshtf.errors import MeshtfError
from meshtf.forecast.communication import Communication, merge_equal
from meshtf.forecast.forecast import Forecast
from meshtf.forecast.layout_notes import layout_notes
from meshtf.forecast.live_tensors import (
    LiveValue,
    describe_store,
    describe_value,
    group_equal,
    live_values,
)
from meshtf.forecast.parameter_gradients import ParameterGradients
from meshtf.forecast.peak_memory import Peaks, Timelines, by_stage, num_stages
from meshtf.forecast.placed_tensors import PlacedTensors
from meshtf.forecast.report_data import (
    Computation,
    LiveKind,
    LiveTensors,
    Memory,
    Phase,
    PlacedTensor,
    Stage,
    StoredTensor,
)
from meshtf.forecast.step_phases import phases
from meshtf.graph import Node, Store, Tensor
from meshtf.mesh import Mesh, OnStage, Placement, Replicated
from meshtf.partition import (
    BranchStep,
    CallStep,
    Compute,
    GatherStatisticsStep,
    LoopStep,
    Program,
    ReadStep,
    ReshardStep,
    Value,
    WindowStep,
    WriteStep,
    build,
    walk,
)
from meshtf.partition.cost import bytes_received, elements_received, local_bytes

Role = Literal["parameter", "optimizer state", "other"]


def forecast(
    name: str,
    nodes: Sequence[Node],
    results: Sequence[Tensor] | None,
    mesh: Mesh,
    error: MeshtfError | None = None,
) -> Forecast:
    """Returns the forecast of a recorded function.

    Args:
      name: of the function.
      nodes: the recorded ops.
      results: its results; None: recording raised an error, and the forecast shows all
        ops up to it.
      mesh: where it runs.
      error: the error that recording raised.
    """
    program = build(nodes, results or [], mesh, prune=results is not None)
    analysis = _Analysis(program, phases(nodes, results or []))
    for step in program.steps:
        analysis.add(step, 1)
    timelines = analysis.timelines(program)
    memories = analysis.memory_by_stage(timelines)
    peaks = [memory.peak for memory in memories]
    highest = peaks.index(max(peaks))
    return Forecast(
        name,
        tuple(mesh.axes.items()),
        repr(mesh.layout),
        repr(mesh.variable_layout),
        repr(mesh.optimizer_layout),
        tuple(analysis.ops),
        analysis.collectives.pop(None),
        tuple(analysis.variables()),
        memories[highest],
        (*program.notes, *analysis.notes, *layout_notes(nodes, mesh)),
        None if error is None else f"{type(error).__name__}: {error}",
        tuple(analysis.stage_costs(memories)) if num_stages(mesh) > 1 else (),
        analysis.live_tensors(timelines, highest),
    )


class _Analysis:
    """Visits the steps of a program and collects ops, collectives, variables and
    gradients.
    """

    def __init__(self, program: Program, phases: dict[Node, Phase]) -> None:
        self.mesh = program.mesh
        self.collectives = Communication(phases)
        self.ops: list[Computation] = []
        self.notes: list[str] = []
        self._tensors = PlacedTensors(program.mesh)
        self._flops_of_stages = [0.0] * num_stages(program.mesh)
        self._stores: dict[Store, None] = {}  # read or written, in order
        self._slots: set[Store] = set()  # those that are optimizer state
        self._gradients = ParameterGradients(self._tensors)
        self._call_counts = collections.Counter(
            step.body for step in program.steps if isinstance(step, CallStep)
        )
        # The index of the op with the costs of all calls of a body.
        self._call_indices: dict[Program, int] = {}

    def add(self, step: object, times: int) -> None:
        """Adds the costs of one step, which runs `times` times in a call."""
        if isinstance(step, ReadStep):
            self._stores[step.store] = None
        elif isinstance(step, ReshardStep):
            self._add_reshard(step, times)
        elif isinstance(step, WindowStep):
            self._add_window(step, times)
        elif isinstance(step, GatherStatisticsStep):
            self._add_statistics(step, times)
        elif isinstance(step, WriteStep):
            self._add_write(step, times)
        elif isinstance(step, Compute) and not step.makes_statistics:
            self._add_compute(step, times)
        elif isinstance(step, LoopStep):
            self._add_loop(step, times)
        elif isinstance(step, CallStep):
            self._add_call(step, times)
        elif isinstance(step, BranchStep):
            largest = max(step.bodies, key=_global_flops)
            self._add_bodies(step, [largest], times, 1)

    def variables(self) -> list[StoredTensor]:
        """Returns the variables that the program reads or writes."""
        return [
            StoredTensor(
                store.name,
                self._tensors.of(store.spec, store.placement),
                self._role(store),
            )
            for store in self._stores
            if store.kind in ("parameter", "state")
        ]

    def memory_by_stage(self, timelines: Timelines) -> list[Memory]:
        """Returns the bytes on one device at each stage; one entry without a pipeline."""
        return [
            self._memory(*stage)
            for stage in zip(
                by_stage(self._stores, self.mesh),
                by_stage(self._gradients.smallest(), self.mesh),
                timelines.peaks(),
                strict=True,
            )
        ]

    def timelines(self, program: Program) -> Timelines:
        """Returns when each value of the program is live."""
        return Timelines(program, self._gradients.not_activations())

    def live_tensors(self, timelines: Timelines, stage: int) -> tuple[LiveTensors, ...]:
        """Returns what is live at the peak of a stage: variables, arguments and values."""
        stores = by_stage(self._stores, self.mesh)[stage]
        described = [
            describe_store(store, self._kind_of_store(store), self._tensors)
            for store in stores
        ]
        gradients = self._gradients.all_values()
        for live in live_values(timelines, stage):
            if live.bytes:
                kind = self._kind_of_value(live, gradients)
                described.append(describe_value(live, kind, self._tensors))
        return group_equal(described)

    def stage_costs(self, memories: Sequence[Memory]) -> list[Stage]:
        """Returns FLOPs and bytes of one device at each stage."""
        return [
            Stage(flops, memory.parameters, memory.activations, memory.peak)
            for flops, memory in zip(self._flops_of_stages, memories)
        ]

    def _memory(
        self, stores: Iterable[Store], gradients: Iterable[Value], peak: Peaks
    ) -> Memory:
        """Returns the bytes on one device of a stage with these variables, arguments and
        gradients.
        """
        sizes = dict.fromkeys(
            ("parameter", "optimizer state", "other", "argument"), 0.0
        )
        for store in stores:
            role = "argument" if store.kind == "argument" else self._role(store)
            sizes[role] += self._tensors.of(store.spec, store.placement).bytes
        return Memory(
            sizes["parameter"],
            sizes["optimizer state"],
            sizes["other"],
            sizes["argument"],
            sum(self._tensors.of_value(value).bytes for value in gradients),
            peak.activations,
            sum(sizes.values()) + peak.everything,
        )

    def _kind_of_store(self, store: Store) -> LiveKind:
        if store.kind == "argument":
            return "argument"
        role = self._role(store)
        return "other variable" if role == "other" else role

    def _kind_of_value(self, live: LiveValue, gradients: Set[Value]) -> LiveKind:
        if live.value in gradients:
            return "gradient"
        computed_in = self.collectives.phase_of(live.node)
        used_in = self.collectives.phase_of(getattr(live.used_by, "node", None))
        if computed_in == "forward" and used_in != "forward":
            return "activation"
        return "temporary"

    def _role(self, store: Store) -> Role:
        if store.kind == "parameter":
            return "parameter"
        return "optimizer state" if store in self._slots else "other"

    def _add_loop(self, step: LoopStep, times: int) -> None:
        if step.op.num_iterations is None:
            self.notes.append(
                f"the number of iterations of the loop of {step.node.source} is not known: "
                "one iteration is counted."
            )
        bodies = [body for body in (step.test, step.body) if body is not None]
        self._add_bodies(step, bodies, times, step.op.num_iterations or 1)
        self._gradients.add_outputs(step)

    def _add_call(self, step: CallStep, times: int) -> None:
        """Adds all calls of a body as one op, at its first call; later calls add only the
        collectives of their inputs.
        """
        if step.body not in self._call_indices:
            count = self._call_counts[step.body]
            self._add_bodies(step, [step.body], times, count)
            self._call_indices[step.body] = len(self.ops) - 1
            self.ops[-1] = dataclasses.replace(self.ops[-1], times=times * count)
        else:
            index = self._call_indices[step.body]
            op = self.ops[index]
            collectives = merge_equal(
                (*op.collectives, *self.collectives.pop(step.node))
            )
            self.ops[index] = dataclasses.replace(op, collectives=collectives)
        self._gradients.add_call(step)

    def _add_bodies(
        self,
        step: LoopStep | BranchStep | CallStep,
        bodies: Sequence[Program],
        times: int,
        iterations: int,
    ) -> None:
        """Adds the steps of bodies, each of which runs `times * iterations` times."""
        with self.collectives.body_of(step.node):
            for body in bodies:
                for inner_step in body.steps:
                    self.add(inner_step, times * iterations)
        self.collectives.pass_origins(bodies[-1].results, step.outs)
        self._add_op(step.node, self._outputs(step.outs), times)

    def _add_reshard(self, step: ReshardStep, times: int) -> None:
        before = self._tensors.of_value(step.src)
        axis_size = self.mesh.axes[step.reshard.axis]
        received = bytes_received(step.reshard.kind, before.bytes, axis_size)
        if step.reshard.axis != self.mesh.stages:
            received *= self._fraction_of_stages(step.src.placement)
        after = self._tensors.of_value(step.out)
        self.collectives.add_reshard(step, before, after, received, times)
        self._gradients.add_reshard(step)

    def _add_window(self, step: WindowStep, times: int) -> None:
        before = self._tensors.of_value(step.src)
        names = [name for name, _ in before.shape]
        local_size = before.local[names.index(step.dim)]
        received = elements_received(
            step.window, step.factor_size, local_size, self.mesh.axes[step.axis]
        )
        size = before.bytes * (received / local_size)
        size *= self._fraction_of_stages(step.src.placement)
        collective = "window", step.axis, before, before, size
        self.collectives.add(step.node, step.node, collective, times)

    def _add_statistics(self, step: GatherStatisticsStep, times: int) -> None:
        specs = step.specs(self.mesh)
        replicated = self.mesh.replicated
        local_size = sum(local_bytes(spec, replicated, self.mesh) for spec in specs)
        received_shards = float(step.num_shards(self.mesh) - 1)
        if step.plan.stage is not None:
            received_shards /= num_stages(self.mesh)
        largest_spec = max(specs, key=lambda spec: spec.shape.size)
        largest = self._tensors.of(largest_spec, replicated)
        size = local_size * received_shards
        collective = "gather_statistics", "+".join(step.axes), largest, largest, size
        self.collectives.add(step.node, step.node, collective, times)

    def _add_write(self, step: WriteStep, times: int) -> None:
        if not step.variables:
            self._add_op(step.node, self._outputs(step.values), times)
            return
        self._stores.update(dict.fromkeys(step.variables))
        variable, *slots = step.variables
        self._slots.update(slots)
        in_training = self.collectives.phase_of(step.node) != "forward"
        if variable.kind == "state" and in_training:
            self._slots.add(variable)
        output = self._tensors.of(variable.spec, variable.placement)
        self._add_op(step.node, (output,), times)

    def _add_compute(self, step: Compute, times: int) -> None:
        self.collectives.record_origins(step)
        self._gradients.add_outputs(step)
        axes = self.mesh.axes
        num_shards = math.prod(axes[axis] for axis, _ in step.plan.sharded_factors)
        flops = _global_node_flops(step.node) / num_shards
        stage = step.plan.stage
        all_stages = range(len(self._flops_of_stages))
        for k in all_stages if stage is None else [stage]:
            self._flops_of_stages[k] += flops * times
        if stage is not None:
            flops /= len(self._flops_of_stages)
        repeated = math.prod(axes[axis] for axis in _redundant_axes(step, self.mesh))
        self._add_op(step.node, self._outputs(step.outs), times, flops, repeated)

    def _add_op(
        self,
        node: Node,
        outputs: tuple[PlacedTensor, ...],
        times: int,
        flops: float = 0.0,
        repeated: int = 1,
    ) -> None:
        source = node.source
        op = Computation(
            len(self.ops),
            node.op.display_name,
            source.function,
            source.file,
            source.line,
            self.collectives.phase_of(node),
            outputs,
            self.collectives.pop(node),
            flops,
            repeated,
            times,
            "/".join(node.path),
        )
        self.ops.append(op)

    def _outputs(self, values: Iterable[Value]) -> tuple[PlacedTensor, ...]:
        return tuple(map(self._tensors.of_value, values))

    def _fraction_of_stages(self, placement: Placement) -> float:
        """Returns the fraction of all stages that hold a tensor."""
        if any(isinstance(state, OnStage) for state in placement):
            return 1 / num_stages(self.mesh)
        return 1.0


def _redundant_axes(step: Compute, mesh: Mesh) -> list[str]:
    """Returns the mesh axes along which all devices compute the same."""
    sharded_axes = {axis for axis, _ in step.plan.sharded_factors}
    axes = []
    for i, axis in enumerate(mesh.axes):
        on_one_stage = step.plan.stage is not None and axis == mesh.stages
        replicated = all(value.placement[i] == Replicated for value in step.ins)
        if replicated and axis not in sharded_axes and not on_one_stage:
            axes.append(axis)
    return axes


def _global_flops(body: Program) -> float:
    """Returns the FLOPs of a body on all devices, loops counted once."""
    computes = (step for step, _ in walk(body) if isinstance(step, Compute))
    return sum(_global_node_flops(step.node) for step in computes)


def _global_node_flops(node: Node) -> float:
    return node.op.flops(*(x.spec for x in node.inputs))
