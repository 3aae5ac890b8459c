"""Makes the forecast of a recorded function: its ops, collectives, FLOPs and memory.

    forecast("train_step", graph.nodes, results, mesh)

The analysis needs neither devices nor TensorFlow. It visits the steps of the planned
program: a step is a computation, reshard, read or write that each device runs. Their number
does not depend on the size of the mesh, so the forecast for 2,048 devices takes as long as
the forecast for eight. A store is a variable, or an argument of the function.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence, Set

from meshtf.errors import MeshtfError
from meshtf.forecast.communication import Communication, merge_equal
from meshtf.forecast.forecast import Forecast
from meshtf.forecast.layout_notes import layout_notes
from meshtf.forecast.memory.allocations import Allocation, Bytes
from meshtf.forecast.memory.kernels import kernels_of
from meshtf.forecast.memory.live_tensors import (
    describe_store,
    describe_value,
    group_equal,
    origin_of,
)
from meshtf.forecast.memory.peak_memory import Timelines, by_stage
from meshtf.forecast.op_costs import OpCosts, global_flops
from meshtf.forecast.parameter_gradients import ParameterGradients
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
    VariableRole,
    function_of,
)
from meshtf.forecast.reports.pipelines import pipelines_of
from meshtf.forecast.step_phases import phases
from meshtf.forecast.time.op_times import OpTimes
from meshtf.forecast.time.step_time import step_time
from meshtf.graph import Node, Store, Tensor, is_variable
from meshtf.hardware import Hardware
from meshtf.mesh import Mesh
from meshtf.partition import (
    CallStep,
    Compute,
    Program,
    Step,
    Value,
    build,
    with_overlap,
)


def forecast(
    name: str,
    nodes: Sequence[Node],
    results: Sequence[Tensor] | None,
    mesh: Mesh,
    error: MeshtfError | None = None,
    under_xla: bool = False,
    platform: str = "",
    hardware: Hardware | None = None,
) -> Forecast:
    """Returns the forecast of a recorded function.

    Args:
      name: the name of the function.
      nodes: the recorded ops, in order.
      results: the results of the function; None: recording raised an error, and the
        forecast shows all ops recorded before the error.
      mesh: the mesh that the function runs on.
      error: the error that recording raised; None: there was no error.
      under_xla: whether XLA compiles the function: it then needs other memory.
      platform: for what, "cpu", "cuda" or "tpu"; "": any devices, or not XLA.
      hardware: the profile of the devices; None: the forecast has no times.
    """
    # Without results there is nothing to prune by: all recorded ops stay in the program.
    program = build(nodes, results or [], mesh, prune=results is not None)
    program = with_overlap(program, platform)
    analysis = _Analysis(program, phases(nodes, results or []), hardware)
    for step in program.steps:
        analysis.add(step, times=1)
    timelines = analysis.timelines(program, under_xla, platform)
    memories = analysis.memory_by_stage(timelines)
    peaks = [memory.peak for memory in memories]
    fullest_stage = peaks.index(max(peaks))
    time, timeline = step_time(program, hardware)
    return Forecast(
        name=name,
        axes=tuple(mesh.axes.items()),
        layout=repr(mesh.layout),
        variable_layout=repr(mesh.variable_layout),
        optimizer_layout=repr(mesh.optimizer_layout),
        ops=tuple(analysis.ops),
        # None stands for the function's results: the collectives that they need.
        results=analysis.collectives.pop(node=None),
        variables=tuple(analysis.variables()),
        memory=memories[fullest_stage],
        kernels=tuple(kernels_of(program, platform)),
        overlap=program.overlap,
        runtime="spmd" if under_xla else "placed",
        notes=(*program.notes, *analysis.notes, *layout_notes(nodes, mesh)),
        error=None if error is None else f"{type(error).__name__}: {error}",
        stages=tuple(analysis.stage_costs(memories)) if mesh.num_stages > 1 else (),
        pipelines=pipelines_of(program),
        live=analysis.live_tensors(timelines, fullest_stage),
        time=time,
        timeline=timeline,
    )


class _Analysis:
    """Visits the steps of a program; collects ops, collectives, variables and gradients.

    Args:
      program: the planned program.
      phases: the phase of each node.
      hardware: the profile of the devices; None: times are 0.

    Attributes:
      ops: the ops visited so far, in order.
      collectives: the collectives visited so far, and the op that computed each partial
        sum (its origin).
      notes: remarks for the user.
    """

    def __init__(
        self,
        program: Program,
        phases: dict[Node, Phase],
        hardware: Hardware | None = None,
    ) -> None:
        self.mesh = program.mesh
        self._times = OpTimes(program, hardware)
        self._tensors = PlacedTensors(program.mesh)
        self._op_costs = OpCosts(program.mesh, self._tensors)
        self.ops: list[Computation] = []
        self.collectives = Communication(
            phases,
            self._tensors,
            program.mesh,
            times=self._times.collectives,
        )
        self.notes: list[str] = []
        self._gradients = ParameterGradients(self._tensors)
        self._flops_of_stages = [0.0] * program.mesh.num_stages
        # A dict as an ordered set: the variables and arguments read or written so far.
        self._stores: dict[Store, None] = {}
        self._optimizer_state: set[Store] = set()
        self._call_counts = collections.Counter(
            step.call.body for step in program.steps if step.call is not None
        )
        # For the body of calls: the index in `ops` of the op with the costs of all calls.
        self._call_indices: dict[Program, int] = {}

    def add(self, step: Step, times: int) -> None:
        """Adds the costs of one step, which runs `times` times in a call of the program."""
        self._stores.update(dict.fromkeys((*step.reads, *step.writes)))
        if step.computation is None and step.is_view:
            self._gradients.add_view(step)
        if step.collective is not None:
            merged = self._times.is_merged(step)
            self.collectives.add(step.collective, times, merged)
            for reshard in step.reshards:
                self._gradients.add_reshard(reshard)
            if step.computes_node and step.node is not None:
                self._add_op(step.node, self._tensors.of_values(step.outputs), times)
        elif step.computation is not None:
            # An op whose shards exchange statistics has two of these steps: one counts.
            if step.computes_node:
                self._add_compute(step.computation, times)
        elif step.call is not None:
            self._add_call(step.call, times)
        elif step.bodies:
            self._add_bodies(step, times)
            if step.loop is not None:
                self._gradients.add_outputs(step)
        elif step.has_effect:
            self._add_write(step, times)

    def variables(self) -> list[StoredTensor]:
        """Returns the variables that the program reads or writes."""
        return [
            StoredTensor(store.name, self._tensors.of_store(store), self._role(store))
            for store in self._stores
            if is_variable(store)
        ]

    def memory_by_stage(self, timelines: Timelines) -> list[Memory]:
        """Returns the memory of one device at each stage; one entry without a pipeline."""
        stores_by_stage = by_stage(self._stores, self.mesh)
        gradients_by_stage = by_stage(self._gradients.smallest(), self.mesh)
        return [
            self._memory(stores, gradients, peaks)
            for stores, gradients, peaks in zip(
                stores_by_stage, gradients_by_stage, timelines.peaks(), strict=True
            )
        ]

    def timelines(self, program: Program, under_xla: bool, platform: str) -> Timelines:
        """Returns the timelines of the program: when each of its values is live. The arguments are
        those of `forecast`.
        """
        gradients = self._gradients.not_activations()
        return Timelines(program, gradients, under_xla, platform)

    def live_tensors(self, timelines: Timelines, stage: int) -> tuple[LiveTensors, ...]:
        """Returns all tensors that are live at the peak of a stage: variables, arguments
        and computed values.
        """
        stores = by_stage(self._stores, self.mesh)[stage]
        tensors = [
            describe_store(store, self._kind_of_store(store), self._tensors)
            for store in stores
        ]
        gradients = self._gradients.all_values()
        for live in timelines.live(stage):
            kind = self._kind_of_value(live, gradients)
            tensors.append(describe_value(live, kind, self._tensors))
        return group_equal(tensors)

    def stage_costs(self, memories: Sequence[Memory]) -> list[Stage]:
        """Returns the FLOPs and bytes of one device at each stage."""
        return [
            Stage(flops, memory.parameters, memory.activations, peak=memory.peak)
            for flops, memory in zip(self._flops_of_stages, memories)
        ]

    def _memory(
        self, stores: Iterable[Store], gradients: Iterable[Value], peaks: Bytes
    ) -> Memory:
        """Returns the memory of one device at one stage.

        Args:
          stores: the variables and arguments of the stage.
          gradients: the gradients of the stage's parameters.
          peaks: the peak of the computed values.
        """
        sizes: dict[LiveKind, float] = collections.defaultdict(float)
        for store in stores:
            sizes[self._kind_of_store(store)] += self._tensors.of_store(store).bytes
        return Memory(
            parameters=sizes["parameter"],
            optimizer_state=sizes["optimizer state"],
            other_variables=sizes["other variable"],
            arguments=sizes["argument"],
            gradients=sum(self._tensors.of_value(value).bytes for value in gradients),
            activations=peaks.activations,
            peak=sum(sizes.values()) + peaks.everything,
        )

    def _kind_of_store(self, store: Store) -> LiveKind:
        """Returns the kind of a variable or an argument."""
        if store.kind == "argument":
            return "argument"
        role = self._role(store)
        return "other variable" if role == "other" else role

    def _kind_of_value(self, live: Allocation, gradients: Set[Value]) -> LiveKind:
        """Returns the kind of a computed value; `gradients` are all gradients."""
        if live.value in gradients:
            return "gradient"
        _title, node = origin_of(live)
        computed_in = self.collectives.phase_of(node)
        used_by = live.used_by
        used_in = self.collectives.phase_of(None if used_by is None else used_by.node)
        if computed_in == "forward" and used_in != "forward":
            return "activation"
        return "temporary"

    def _role(self, store: Store) -> VariableRole:
        """Returns the role of a variable: a parameter, optimizer state, or any other."""
        if store.kind == "parameter":
            return "parameter"
        return "optimizer state" if store in self._optimizer_state else "other"

    def _add_call(self, step: CallStep, times: int) -> None:
        """Adds the first call of a body with the costs of all its calls; a later call
        adds only the collectives of its inputs to this op.
        """
        if step.body not in self._call_indices:
            count = self._call_counts[step.body]
            self._add_bodies(step, times, runs_of_step=count)
            # `_add_bodies` has appended the op of the call.
            self._call_indices[step.body] = len(self.ops) - 1
            self.ops[-1] = dataclasses.replace(self.ops[-1], times=times * count)
        else:
            index = self._call_indices[step.body]
            op = self.ops[index]
            added_collectives = self.collectives.pop(step.node)
            collectives = merge_equal([*op.collectives, *added_collectives])
            self.ops[index] = dataclasses.replace(op, collectives=collectives)
        self._gradients.add_call(step)

    def _add_bodies(self, step: Step, times: int, runs_of_step: int = 1) -> None:
        """Adds the steps of the bodies of a loop, branch or call, and then the op itself.

        Args:
          step: the loop, branch or call, which runs `times` times.
          times: how often the step runs in one call of the program.
          runs_of_step: how many equal steps count with this one.
        """
        node = step.node
        assert node is not None
        if step.loop is not None and step.loop.op.num_iterations is None:
            self.notes.append(
                f"the number of iterations of the loop of {node.source} is not known: "
                "one iteration is counted."
            )
        bodies = step.bodies_by(global_flops)
        with self.collectives.body_of(node):
            for body in bodies:
                with self._times.within(body.program):
                    for inner_step in body.program.steps:
                        self.add(inner_step, times * runs_of_step * body.runs)
        # The last body returns the results of the step.
        self.collectives.pass_origins(bodies[-1].program.results, step.outputs)
        self._add_op(node, self._tensors.of_values(step.outputs), times)

    def _add_write(self, step: Step, times: int) -> None:
        """Adds a write of variables, or a host op."""
        node = step.node
        assert node is not None
        if step.host_op is not None:
            self._add_op(node, self._tensors.of_values(step.inputs), times)
            return
        # An update writes a parameter and its optimizer slots, or only slots. A slot has kind
        # "state", like other variables that are not trained.
        variable, *slots = step.writes
        self._optimizer_state.update(slots)
        is_update = self.collectives.phase_of(node) != "forward"
        if variable.kind == "state" and is_update:
            self._optimizer_state.add(variable)
        self._add_op(
            node,
            (self._tensors.of_store(variable),),
            times,
            seconds=self._times.seconds(step),
        )

    def _add_compute(self, step: Compute, times: int) -> None:
        """Adds an op with the FLOPs of one device, and how many devices compute the same."""
        self.collectives.record_origins(step)
        self._gradients.add_outputs(step)
        cost = self._op_costs.of(step)
        for stage in cost.stages:
            self._flops_of_stages[stage] += cost.local_flops * times
        self._add_op(
            step.node,
            cost.outputs,
            times,
            flops=cost.mean_flops,
            repeated=cost.repeated,
            seconds=self._times.seconds(step),
        )

    def _add_op(
        self,
        node: Node,
        outputs: tuple[PlacedTensor, ...],
        times: int,
        flops: float = 0.0,
        repeated: int = 1,
        seconds: float = 0.0,
    ) -> None:
        """Adds an op, with the collectives of its inputs.

        Args:
          node: the op.
          outputs: the outputs of the op.
          times: how often the op runs in one call of the program.
          flops: the FLOPs of one device each time, as the mean over the stages.
          repeated: how many devices compute the same.
          seconds: the predicted time of each run.
        """
        op = Computation(
            index=len(self.ops),
            title=node.op.display_name,
            function=function_of(node.source),
            file=node.source.file,
            line=node.source.line,
            phase=self.collectives.phase_of(node),
            outputs=outputs,
            collectives=self.collectives.pop(node),
            flops=flops,
            repeated=repeated,
            times=times,
            path="/".join(node.path),
            seconds=seconds,
        )
        self.ops.append(op)
