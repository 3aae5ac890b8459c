"""Which steps of a program form a task, and the order in which the host starts tasks.

    tasks = tasks_of(program)

A pass is one microbatch through one chunk (consecutive layers of the pipeline), forward or
backward. Passes keep the order of the pipeline's schedule. All other steps are in few tasks,
since each compute task is compiled:

    before the first pass   steps that passes need and that depend on no pass
    before each pass        steps that it needs and that depend on earlier passes
    after the last pass     all other steps

Such a group of steps has levels; a level ends where values go from stage to stage:

    level 0   reads; a compute task for each stage; transfers
    level 1   a compute task for each stage that needs these transfers; transfers
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshtf.mesh import Mesh
from meshtf.partition import Program, Step, Value
from meshtf.runtime.spmd.stages.stage_meshes import stages_of
from meshtf.runtime.spmd.stages.step_stages import (
    chunk_pass_of,
    several_stages,
    stages_of_step,
)
from meshtf.runtime.spmd.stages.tasks import (
    ComputeTask,
    ReadTask,
    StageValue,
    Task,
    Transfer,
    TransferTask,
)


def tasks_of(program: Program) -> list[Task]:
    """Returns the tasks of a program in order, without the steps that the host runs.

    Raises:
      PlanError: a value goes from stage to stage in the body of a loop, branch or call.
    """
    order = _TaskOrder(program)
    passes = list(filter(chunk_pass_of, order.steps))
    order.append(
        step
        for step in order.with_ancestors(passes)
        if step not in order.passes_and_descendants
    )
    for chunk_pass in passes:
        needed_steps = order.with_ancestors([chunk_pass])
        order.append(step for step in needed_steps if step is not chunk_pass)
        order.append([chunk_pass])
    order.append(order.steps)
    return order.tasks


def needed_stages(program: Program) -> dict[Step, tuple[int, ...]]:
    """Returns the stages on which each step has to run: those on which it writes a variable,
    or computes a value that another step or a result needs. A step that is not needed is
    left out.
    """
    mesh = program.mesh
    needed: set[StageValue] = set()
    for result in program.results:
        needed.update(
            StageValue(result, stage) for stage in stages_of(mesh, result.placement)
        )
    stages_by_step: dict[Step, tuple[int, ...]] = {}
    # Backwards, so that the steps that need a value come before the step that computes it.
    for step in reversed(program.steps):
        _check_outputs(step, needed, mesh)
        stages = tuple(
            stage
            for stage in stages_of_step(step, mesh)
            if step.has_effect
            or any(StageValue(out, stage) in needed for out in step.outputs)
        )
        if stages:
            stages_by_step[step] = stages
            for value in step.inputs:
                needed.update(
                    StageValue(value, stage)
                    for stage in _input_stages(step, value, stages, mesh)
                )
    return stages_by_step


def _check_outputs(step: Step, needed: set[StageValue], mesh: Mesh) -> None:
    """Checks that only the stages of a loop, branch or call need the values that it computes.

    Raises:
      PlanError: another stage needs one of them.
    """
    if not step.bodies:
        return
    stages = stages_of_step(step, mesh)
    for out in step.outputs:
        stages_that_need_it = {
            stage
            for stage in stages_of(mesh, out.placement)
            if StageValue(out, stage) in needed
        }
        if not stages_that_need_it.issubset(stages):
            raise several_stages(step, mesh, stages_that_need_it.union(stages))


def _input_stages(
    step: Step, value: Value, stages: tuple[int, ...], mesh: Mesh
) -> tuple[int, ...]:
    """Returns the stages on which a step that runs on `stages` needs an input."""
    if _transfers(step):  # it copies the input from one of the stages that have it
        return stages_of(mesh, value.placement)[:1]
    return stages


class _TaskOrder:
    """The tasks of a program, to which groups of steps are appended.

    Args:
      program: the program.

    Attributes:
      steps: the steps that devices run, in the order of the program.
      passes_and_descendants: the passes through chunks, and the steps that depend on them.
      tasks: the tasks of the steps appended so far.
    """

    def __init__(self, program: Program) -> None:
        self._stages = needed_stages(program)
        self.steps = [
            step
            for step in program.steps
            if step in self._stages and step.host_op is None
        ]
        self._dependencies = _dependencies(self.steps)
        descendants: set[Step] = set()
        for step in self.steps:
            dependencies = self._dependencies[step]
            if chunk_pass_of(step) or not descendants.isdisjoint(dependencies):
                descendants.add(step)
        self.passes_and_descendants = descendants
        self._appended: set[Step] = set()
        self.tasks: list[Task] = []

    def with_ancestors(self, steps: Sequence[Step]) -> list[Step]:
        """Returns steps and all steps that they depend on, in the order of the program.
        Steps that were appended before are left out.
        """
        needed: set[Step] = set()
        remaining = list(steps)
        while remaining:
            step = remaining.pop()
            if step not in needed and step not in self._appended:
                needed.add(step)
                remaining += self._dependencies[step]
        return [step for step in self.steps if step in needed]

    def append(self, steps: Iterable[Step]) -> None:
        """Appends the tasks of a group of steps, without those that were appended before.

        Args:
          steps: the steps, in the order of the program.
        """
        levels: dict[Step, int] = {}
        steps_of_levels: list[list[Step]] = []
        for step in steps:
            if step in self._appended:
                continue
            level = 0
            for earlier in self._dependencies[step]:
                if earlier in levels:
                    increment = int(_ends_level(earlier, step))
                    level = max(level, levels[earlier] + increment)
            levels[step] = level
            while len(steps_of_levels) <= level:
                steps_of_levels.append([])
            steps_of_levels[level].append(step)
        self._appended.update(levels)
        for steps_of_level in steps_of_levels:
            self._append_level(steps_of_level)

    def _append_level(self, steps: Sequence[Step]) -> None:
        """Appends the tasks of one level."""
        steps_by_stage: dict[int, list[Step]] = {}
        transfers: list[Transfer] = []
        for step in steps:
            stages = self._stages[step]
            stores = [store for store in step.reads if store.kind != "number"]
            if stores:
                # (Numbers from Python are read by the compute tasks that need them.)
                self.tasks.append(ReadTask(stores[0], step.outputs[0], stages))
            elif _transfers(step):
                transfers += [Transfer(reshard, stages) for reshard in step.reshards]
            # (The output of a drop has the array of its input.)
            elif not any(reshard.is_drop for reshard in step.reshards):
                for stage in stages:
                    steps_by_stage.setdefault(stage, []).append(step)
        for stage, steps_of_stage in sorted(steps_by_stage.items()):
            self.tasks.append(ComputeTask(stage, tuple(steps_of_stage)))
        if transfers:
            self.tasks.append(TransferTask(tuple(transfers)))


def _ends_level(earlier: Step, step: Step) -> bool:
    """Whether a step must be in a later level than the step on which it depends."""
    return _transfers(earlier) or bool(earlier.writes and step.reads)


def _transfers(step: Step) -> bool:
    """Returns whether a step copies a value from one stage to others."""
    return step.collective is not None and step.collective.is_transfer


def _dependencies(steps: Sequence[Step]) -> dict[Step, list[Step]]:
    """Returns the steps that must run before each step: those that compute its inputs, and
    earlier reads and writes of the same variable, if one of them is a write.
    """
    computed_by: dict[Value, Step] = {}
    last_write: dict[object, Step] = {}
    reads_since_write: dict[object, list[Step]] = {}
    dependencies: dict[Step, list[Step]] = {}
    for step in steps:
        earlier = [computed_by[v] for v in step.inputs if v in computed_by]
        for store in (*step.reads, *step.writes):
            if store in last_write:
                earlier.append(last_write[store])
        for store in step.reads:
            reads_since_write.setdefault(store, []).append(step)
        for store in step.writes:
            earlier += reads_since_write.pop(store, [])
            last_write[store] = step
        computed_by.update(dict.fromkeys(step.outputs, step))
        dependencies[step] = earlier
    return dependencies
