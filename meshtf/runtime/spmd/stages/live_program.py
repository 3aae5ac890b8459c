"""A recorded function on the devices of a live mesh, which belong to jax: the SPMD runtime's
`Executable`.

    program = LiveProgram(recorded, stores)
    program(tensors)                             # a `ShardedValue` of each result

Each pipeline stage runs its own modules, compiled by XLA, on its own devices; on a mesh without
an axis of stages all devices run one module. The host starts the modules in the order of the
pipeline's schedule, without waiting: a module runs when its inputs are computed. So results
and variables are `jax.Array`s, which the devices compute while Python goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from meshtf.graph import ShardedValue, Store
from meshtf.graph.recorder import Recorded
from meshtf.partition import Value, build, with_overlap
from meshtf.runtime.lowering.op_errors import explained
from meshtf.runtime.lowering.program_summary import ProgramSummary
from meshtf.runtime.spmd.live.compile_notice import CompileNotice
from meshtf.runtime.spmd.live.device_arrays import ArrayLayout, DeviceShards
from meshtf.runtime.spmd.live.jax_errors import memory_errors
from meshtf.runtime.spmd.live.jax_host import platform_of
from meshtf.runtime.spmd.live.jax_module import load_jax
from meshtf.runtime.spmd.live.jax_slot import VariableArray
from meshtf.runtime.spmd.live.join_processes import native_output_to_stderr
from meshtf.runtime.spmd.live.run_checks import (
    RunChecks,
    add_run,
    raise_ready,
    result_check,
)
from meshtf.runtime.spmd.module.index_checks import IndexChecks
from meshtf.runtime.spmd.stages.donated_inputs import with_donated_inputs
from meshtf.runtime.spmd.stages.stage_arrays import (
    StageShards,
    argument_array,
    variable_arrays,
)
from meshtf.runtime.spmd.stages.stage_meshes import stage_meshes, stages_of
from meshtf.runtime.spmd.stages.stage_module import StageModule
from meshtf.runtime.spmd.stages.step_stages import chunk_pass_of
from meshtf.runtime.spmd.stages.task_values import PlannedTask, plan_tasks
from meshtf.runtime.spmd.stages.tasks import (
    ComputeTask,
    ReadTask,
    StageValue,
    TransferTask,
)


class LiveProgram(ProgramSummary):
    """A recorded function for one combination of argument specs, compiled by its first
    call.

    Args:
      recorded: the function.
      stores: the storage of each argument, in order, which each call fills.
      runs_once: whether a short compile time matters more than fast code.

    Raises:
      MeshError: several processes have the devices of several stages.
      PlanError: XLA cannot compile an op, or a value goes from stage to stage in the body
        of a loop, branch or call.
    """

    def __init__(
        self, recorded: Recorded, stores: Sequence[Any], runs_once: bool = False
    ) -> None:
        self._runs_once = runs_once
        self._name = recorded.name
        self.mesh = recorded.mesh
        self.stores = stores
        self._stage_meshes = stage_meshes(self.mesh)
        # {key of a `TaskProgram`: its module}
        self._modules: dict[Hashable, StageModule] = {}
        self._layouts: dict[tuple[Store | Value, int], ArrayLayout] = {}
        self._has_run = False
        self._compile_notice = CompileNotice(self._name, self.mesh.size)
        with self._compile_notice.watch():
            program = build(recorded.nodes, recorded.results, self.mesh)
            self.program = with_overlap(program, platform_of(self.mesh))
            self._plan = plan_tasks(self.program)
            self._tasks = with_donated_inputs(self._plan.tasks)
            for planned in self._tasks:
                self._add_module(planned)
        self._variables = self.program.variables
        self._host_steps = [x for x in self.program.steps if x.host_op is not None]

    def __call__(self, tensors: Sequence[Any]) -> list[ShardedValue]:
        """Starts the program on the tensors of all arguments, in order, and returns the
        results' shards.
        """
        self.fill_stores(tensors)
        raise_ready(self.mesh)
        with memory_errors(self._name):
            call = self._start()
        self._run_on_host(call)
        return [
            self._sharded_value(call, result, source)
            for result, source in zip(self.program.results, self._plan.results)
        ]

    def _start(self) -> _Call:
        """Compiles the modules, unless they are, and starts all tasks. The first call waits
        for them.
        """
        variables = {store: variable_arrays(store) for store in self._variables}
        call = _Call(self, variables)
        if self._has_run:
            call.run(self._tasks)
        else:
            with self._compile_notice.watch():
                for module in self._modules.values():
                    _ = module.compiled  # its first use compiles it
            with native_output_to_stderr():
                call.run(self._tasks)
                # If memory does not suffice, it is this call that fails. If other processes
                # still compile, a supervisor allows more time here than for reading a result.
                call.wait()
            self._has_run = True
        call.add_checks()
        return call

    @property
    def has_checks(self) -> bool:
        """Whether the devices check indices while the program runs."""
        return any(module.has_checks for module in self._modules.values())

    @property
    def peak_memory(self) -> int | None:
        """The bytes of a device at the peak of a call, by XLA; compiles the program if no
        call has done so. None: XLA does not know, since the program is several modules.
        """
        if self.mesh.num_stages > 1:
            return None
        (module,) = self._modules.values()
        return module.compiled.peak_memory

    def module(self, key: Hashable) -> StageModule:
        """Returns the module of the tasks whose `TaskProgram.key` is `key`."""
        return self._modules[key]

    def layout(self, value: Store | Value, stage: int) -> ArrayLayout:
        """Returns how the shards of a value or store on a stage form one `jax.Array`."""
        key = (value, stage)
        if key not in self._layouts:
            assert value.spec is not None
            mesh = self._stage_meshes[stage]
            self._layouts[key] = ArrayLayout(value.spec, value.placement, mesh)
        return self._layouts[key]

    def _add_module(self, planned: PlannedTask) -> None:
        """Lowers the module of a compute task, unless another task has the same module."""
        task_program = planned.program
        if task_program is None or task_program.key in self._modules:
            return
        assert isinstance(planned.task, ComputeTask)
        stage = planned.task.stage
        self._modules[task_program.key] = StageModule(
            task_program,
            self._stage_meshes[stage],
            donated_variables=planned.donated_variables,
            donated_inputs=planned.donated_inputs,
            name=self._name + self._label(planned.task),
            runs_once=self._runs_once,
        )

    def _label(self, task: ComputeTask) -> str:
        """Returns what follows the program's name in the name of a module, for logs and
        profiles: such as " forward.0" or " stage 1"; "" if there is one module.
        """
        if self.mesh.num_stages == 1:
            return ""
        chunk_pass = chunk_pass_of(task.steps[0])
        return f" stage {task.stage}" if chunk_pass is None else f" {chunk_pass.title}"

    def _sharded_value(self, call: _Call, result: Value, source: Value) -> ShardedValue:
        """Returns a result of a call, whose arrays are those of `source`."""

        def shards_on(stage: int) -> DeviceShards:
            array = call.arrays[StageValue(source, stage)]
            return DeviceShards(array, self.layout(result, stage), call.check)

        placement = result.placement
        if self.mesh.num_stages == 1:
            return ShardedValue(placement, shards_on(0))
        shards = {stage: shards_on(stage) for stage in stages_of(self.mesh, placement)}
        return ShardedValue(placement, StageShards(self.mesh, shards))

    def _run_on_host(self, call: _Call) -> None:
        """Runs the ops that print or write summaries, in order. Waits for their inputs."""
        sources = iter(self._plan.host_inputs)
        for step in self._host_steps:
            assert step.host_op is not None and step.node is not None
            inputs = []
            for value in step.inputs:
                array = call.arrays[StageValue(next(sources), stage=0)]
                shards = DeviceShards(array, self.layout(value, stage=0))
                inputs.append(shards[0])  # all devices have the same value
            with explained(step.node):
                step.host_op.run_on_host(*inputs)


class _Call:
    """One call of a program: runs its tasks and holds the arrays that pass between them.

    Args:
      program: the program.
      variables: {variable: {stage: its array}}.

    Attributes:
      arrays: the `jax.Array` of each value that later tasks, or the caller, need.
      check: a function that raises the error of this call, if an index was out of range; None:
        nothing is checked.
    """

    def __init__(
        self,
        program: LiveProgram,
        variables: dict[Store, dict[int, VariableArray]],
    ) -> None:
        self.arrays: dict[StageValue, Any] = {}
        self.check: Callable[[], None] | None = None
        self._program = program
        self._variables = variables
        # For each module that checks indices, its checks and their record.
        self._records: list[tuple[IndexChecks, Any]] = []
        self._writes = False

    def run(self, tasks: Sequence[PlannedTask]) -> None:
        """Starts the tasks, and drops the arrays that no later task needs."""
        for planned in tasks:
            if isinstance(planned.task, ReadTask):
                self._read(planned.task)
            elif isinstance(planned.task, TransferTask):
                self._transfer(planned.task, planned.sources)
            else:
                self._compute(planned, planned.task.stage)
            for value in planned.freed:
                self.arrays.pop(value, None)

    def wait(self) -> None:
        """Waits for the arrays that the caller needs, and for the variables."""
        arrays = list(self.arrays.values())
        for stages in self._variables.values():
            arrays += [variable.array for variable in stages.values()]
        # The memory of the others was given to new values.
        existing = [array for array in arrays if not array.is_deleted()]
        load_jax().block_until_ready(existing)

    def _read(self, task: ReadTask) -> None:
        """Stores the arrays of a variable or argument under the output of the step."""
        store = task.store
        for stage in task.stages:
            if store in self._variables:
                array = self._variables[store][stage].array
            else:
                layout = self._program.layout(store, stage)
                array = argument_array(store, layout, self._program.mesh, stage)
            self.arrays[StageValue(task.out, stage)] = array

    def _transfer(self, task: TransferTask, sources: Sequence[StageValue]) -> None:
        """Copies the arrays of `sources` to the stages that need them, all at once."""
        outputs = []
        arrays = []
        shardings = []
        for (step, stages), source in zip(task.transfers, sources):
            for stage in stages:
                out = StageValue(step.out, stage)
                if stage == source.stage:
                    self.arrays[out] = self.arrays[source]
                    continue
                outputs.append(out)
                arrays.append(self.arrays[source])
                shardings.append(self._program.layout(step.out, stage).sharding)
        self.arrays.update(zip(outputs, load_jax().device_put(arrays, shardings)))

    def _compute(self, planned: PlannedTask, stage: int) -> None:
        """Starts the module of a compute task."""
        task_program = planned.program
        assert task_program is not None
        variables = [self._variables[store][stage] for store in task_program.variables]
        inputs = [self.arrays[StageValue(x, stage)] for x in task_program.inputs]
        module = self._program.module(task_program.key)
        results, new_arrays, records = module(
            variables=[variable.array for variable in variables], inputs=inputs
        )
        for variable, array in zip(variables, new_arrays, strict=True):
            variable.array = array
        for out, array in zip(task_program.outputs, results):
            self.arrays[StageValue(out, stage)] = array
        self._writes = self._writes or bool(variables)
        self._records += records

    def add_checks(self) -> None:
        """Has the host look at the checks of all modules later, once for all stages."""
        run_checks = None
        if self._records:
            run_checks = RunChecks(self._records, self._writes)
            add_run(self._program.mesh, run_checks)
        self.check = result_check(self._program.mesh, run_checks)
