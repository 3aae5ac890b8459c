"""The inputs and outputs of each task of a program, which variables a task may overwrite, and
which arrays can be freed after it.

    plan_tasks(program).tasks            # a `PlannedTask` for each task, in order
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence

from meshtf.graph import Store
from meshtf.mesh import Mesh, Replicated
from meshtf.partition import Program, ReshardStep, Value
from meshtf.partition.reshard_table import Reshard
from meshtf.runtime.spmd.stages.stage_meshes import stages_of
from meshtf.runtime.spmd.stages.step_stages import chunk_pass_of
from meshtf.runtime.spmd.stages.task_order import tasks_of
from meshtf.runtime.spmd.stages.task_programs import (
    Sources,
    TaskProgram,
    chunk_pass_program,
    needed_values,
    task_program,
)
from meshtf.runtime.spmd.stages.tasks import (
    ComputeTask,
    ReadTask,
    StageValue,
    Task,
    TransferTask,
)


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedTask:
    """A task with its program, and the lifetimes of its arrays.

    Attributes:
      task: the task.
      program: the program of a compute task; None for other tasks.
      donated_variables: the variables whose memory a compute task may overwrite.
      donated_inputs: the indices in `program.inputs` of the inputs that it may overwrite.
      sources: the value that each transfer of a `TransferTask` copies.
      freed: the values whose arrays no later task needs.
    """

    task: Task
    program: TaskProgram | None = None
    donated_variables: tuple[Store, ...] = ()
    donated_inputs: tuple[int, ...] = ()
    sources: tuple[StageValue, ...] = ()
    freed: tuple[StageValue, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class TaskPlan:
    """The tasks of a program, and the values that must exist after them.

    Attributes:
      tasks: the tasks, in order.
      results: for each result of the program, the value that has its array.
      host_inputs: for each input of the steps that the host runs, such as prints, the value
        that has its array; they are on stage 0.
    """

    tasks: tuple[PlannedTask, ...]
    results: tuple[Value, ...]
    host_inputs: tuple[Value, ...]


def plan_tasks(program: Program) -> TaskPlan:
    """Returns the tasks of a program.

    Raises:
      PlanError: a value goes from stage to stage in the body of a loop, branch or call.
    """
    host_inputs = tuple(
        value
        for step in program.steps
        if step.host_op is not None
        for value in step.inputs
    )
    if program.mesh.num_stages == 1:
        return _one_module(program, host_inputs)
    program = _with_copied_results(program)
    sources = Sources(program)
    results = tuple(map(sources.before_drop, program.results))
    host_inputs = tuple(map(sources.before_drop, host_inputs))
    result_values = [
        StageValue(source, stage)
        for result, source in zip(program.results, results)
        for stage in stages_of(program.mesh, result.placement)
    ]
    result_values += [StageValue(value, 0) for value in host_inputs]
    planner = _TaskPlanner(program.mesh, sources, tasks_of(program), result_values)
    return TaskPlan(tuple(planner.planned_tasks()), results, host_inputs)


def _one_module(program: Program, host_inputs: tuple[Value, ...]) -> TaskPlan:
    """Returns the plan of a program of one stage: all that devices compute is one module, so
    that XLA sees all of it. The module reads the variables and arguments itself, in the order
    of the program.

    Args:
      program: the program.
      host_inputs: the inputs of the steps that the host runs.
    """
    written = dict.fromkeys(store for step in program.steps for store in step.writes)
    inputs = {
        store: Value(store.spec, store.placement)
        for store in program.stores
        if store.kind != "number" and store not in written
    }
    steps = tuple(step for step in program.steps if step.host_op is None)
    task = ComputeTask(0, steps)
    outputs = (*program.results, *host_inputs)
    compute = PlannedTask(
        task,
        program=TaskProgram(
            key=task,
            steps=steps,
            results=outputs,
            stores=tuple(inputs),
            inputs=tuple(inputs.values()),
            outputs=outputs,
            variables=tuple(written),
        ),
        donated_variables=tuple(written),
    )
    reads = [PlannedTask(ReadTask(store, x, (0,))) for store, x in inputs.items()]
    return TaskPlan((*reads, compute), program.results, host_inputs)


def _with_copied_results(program: Program) -> Program:
    """Returns a program that copies results that would be the array of a variable: a later
    call may overwrite that array.
    """
    sources = Sources(program)
    copies = {}
    for result in program.results:
        if sources.variable_read(result) is not None:
            reshard = Reshard(
                kind="copy",
                axes=(program.mesh.stages,),
                before=Replicated,
                after=Replicated,
            )
            out = Value(result.spec, result.placement)
            copies[result] = ReshardStep(reshard, src=result, out=out, node=None)
    return dataclasses.replace(
        program,
        steps=(*program.steps, *copies.values()),
        results=tuple(
            copies[result].out if result in copies else result
            for result in program.results
        ),
    )


class _TaskPlanner:
    """Plans the tasks of a program, from the first to the last.

    Args:
      mesh: the mesh.
      sources: the step that computes each value.
      tasks: the tasks, in order.
      result_values: the values that must exist after the last task.
    """

    def __init__(
        self,
        mesh: Mesh,
        sources: Sources,
        tasks: Sequence[Task],
        result_values: Iterable[StageValue],
    ) -> None:
        self._mesh = mesh
        self._sources = sources
        self._tasks = tasks
        self._needed = [self._needed_values(task) for task in tasks]
        # {value: the index of the last task that needs it}.
        self._last_use: dict[StageValue, int] = {}
        for index, values in enumerate(self._needed):
            self._last_use.update(dict.fromkeys(values, index))
        self._last_use.update(dict.fromkeys(result_values, len(tasks)))
        # {(variable, stage): the number of planned tasks that write it}.
        self._num_writes: Counter[tuple[Store, int]] = Counter()
        # {value read from a variable: this number when the read was planned}.
        self._writes_before: dict[StageValue, int] = {}

    def planned_tasks(self) -> list[PlannedTask]:
        """Returns the tasks, without compute tasks that compute nothing."""
        planned = []
        for index, task in enumerate(self._tasks):
            if isinstance(task, ReadTask):
                for stage in task.stages:
                    writes = self._num_writes[task.store, stage]
                    self._writes_before[StageValue(task.out, stage)] = writes
                outputs = [StageValue(task.out, stage) for stage in task.stages]
                planned.append(PlannedTask(task, freed=self._freed(index, outputs)))
            elif isinstance(task, TransferTask):
                planned.append(self._plan_transfers(index, task))
            else:
                planned_compute = self._plan_compute(index, task)
                if planned_compute is not None:
                    planned.append(planned_compute)
        return planned

    def _plan_transfers(self, index: int, task: TransferTask) -> PlannedTask:
        """Returns a transfer task, which is the task at `index`, with its sources."""
        outputs = [
            StageValue(step.out, stage)
            for step, stages in task.transfers
            for stage in stages
        ]
        return PlannedTask(
            task,
            sources=tuple(self._transferred_value(step) for step, _ in task.transfers),
            freed=self._freed(index, outputs),
        )

    def _plan_compute(self, index: int, task: ComputeTask) -> PlannedTask | None:
        """Returns a compute task, which is the task at `index`, with its program; None: it
        computes nothing.
        """
        stage = task.stage
        first_step = task.steps[0]
        current_variables: dict[Value, Store] = {}
        chunk_pass = chunk_pass_of(first_step)
        if chunk_pass is not None:  # a pass writes no variables
            program = chunk_pass_program(chunk_pass, self._sources, stage)
        else:
            current_variables = self._current_variables(stage)
            program = task_program(
                task, self._sources, set(self._last_use), current_variables
            )
        if not program.outputs and not program.variables:
            return None
        donated_variables = []
        for store in program.variables:
            is_used_later = any(
                variable is store and self._last_use[StageValue(value, stage)] > index
                for value, variable in current_variables.items()
            )
            if not is_used_later:
                donated_variables.append(store)
        self._num_writes.update((store, stage) for store in program.variables)
        outputs = [StageValue(out, stage) for out in program.outputs]
        return PlannedTask(
            task,
            program=program,
            donated_variables=tuple(donated_variables),
            freed=self._freed(index, outputs),
        )

    def _current_variables(self, stage: int) -> dict[Value, Store]:
        """Returns {value: variable} for the values on a stage whose array is that of a
        variable, and which no planned task has overwritten since it was read.
        """
        current = {}
        for value, value_stage in self._last_use:
            read = self._sources.variable_read(value)
            if value_stage != stage or read is None:
                continue
            (store,), (out,) = read.reads, read.outputs
            writes = self._writes_before.get(StageValue(out, stage))
            if writes == self._num_writes[store, stage]:
                current[value] = store
        return current

    def _needed_values(self, task: Task) -> list[StageValue]:
        """Returns the values of other tasks that a task needs."""
        if isinstance(task, TransferTask):
            return [self._transferred_value(step) for step, _ in task.transfers]
        if isinstance(task, ComputeTask):
            needed = needed_values(task, self._sources)
            return [StageValue(value, task.stage) for value in needed]
        return []

    def _transferred_value(self, step: ReshardStep) -> StageValue:
        """Returns the value that a send or broadcast copies, with the stage that has it."""
        source_stage = stages_of(self._mesh, step.src.placement)[0]
        return StageValue(self._sources.before_drop(step.src), source_stage)

    def _freed(
        self, index: int, outputs: Iterable[StageValue]
    ) -> tuple[StageValue, ...]:
        """Returns the values to free after the task at `index`: those that it is the last to
        need, and those of its outputs that nothing needs.
        """
        freed: dict[StageValue, None] = {}  # a dict, since the order matters
        for value in self._needed[index]:
            if self._last_use[value] == index:
                freed[value] = None
        for value in outputs:
            if value not in self._last_use:
                freed[value] = None
        return tuple(freed)
