"""Which steps of a program form a task, and the order in which the host starts tasks.

    tasks = tasks_of(program)

The passes of microbatches through chunks keep the order of the pipeline's schedule. All
other steps are in few pieces, since each piece is compiled: what passes need, and does not
depend on any, is before the first one; what they do not need is after the last one.

Within such a group of steps, a level ends where values go from stage to stage:

    level 0   reads; a piece of each stage; moves
    level 1   a piece of each stage that needs these moves; moves
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshtf.mesh import Mesh
from meshtf.partition import (
    BranchStep,
    CallStep,
    LoopStep,
    Program,
    ReadStep,
    ReshardStep,
    Step,
    Value,
    WriteStep,
)
from meshtf.partition.steps import outputs_of
from meshtf.runtime.spmd.stages.stage_meshes import stages_of
from meshtf.runtime.spmd.stages.step_stages import (
    data_inputs,
    is_chunk,
    is_drop,
    is_host_step,
    is_move,
    several_stages,
    stages_of_step,
)
from meshtf.runtime.spmd.stages.tasks import MoveTask, Piece, ReadTask, Task


def tasks_of(program: Program) -> list[Task]:
    """Returns the tasks of a program in order, without the steps that the host runs.

    Raises:
      PlanError: a value goes from stage to stage in the body of a loop, branch or call.
    """
    order = _TaskOrder(program)
    chunks = [step for step in order.steps if is_chunk(step)]
    order.append([s for s in order.ancestors(chunks) if s not in order.after_chunks])
    for chunk in chunks:
        ancestors = order.ancestors([chunk])
        order.append([step for step in ancestors if step is not chunk])
        order.append([chunk])
    order.append(order.steps)
    return order.tasks


def needed_stages(program: Program) -> dict[Step, tuple[int, ...]]:
    """Returns the stages on which each step has to run: those that write a variable, or
    compute what another step or a result needs. A step that is not needed is left out.
    """
    mesh = program.mesh
    needed: set[tuple[Value, int]] = set()
    for result in program.results:
        needed.update((result, stage) for stage in stages_of(mesh, result.placement))
    stages_by_step: dict[Step, tuple[int, ...]] = {}
    for step in reversed(program.steps):
        _check_outputs(step, needed, mesh)
        has_effect = isinstance(step, WriteStep)
        stages = tuple(
            stage
            for stage in stages_of_step(step, mesh)
            if has_effect or any((out, stage) in needed for out in outputs_of(step))
        )
        if stages:
            stages_by_step[step] = stages
            for value in data_inputs(step):
                needed.update(
                    (value, k) for k in _input_stages(step, value, stages, mesh)
                )
    return stages_by_step


def _check_outputs(step: Step, needed: set[tuple[Value, int]], mesh: Mesh) -> None:
    """Raises PlanError if a loop, branch or call of one stage computes a value that other
    stages need as well.
    """
    if not isinstance(step, (LoopStep, BranchStep, CallStep)):
        return
    stages = stages_of_step(step, mesh)
    for out in step.outs:
        stages_of_out = [
            k for k in stages_of(mesh, out.placement) if (out, k) in needed
        ]
        if not set(stages_of_out) <= set(stages):
            raise several_stages(step, mesh, {*stages, *stages_of_out})


def _input_stages(
    step: Step, value: Value, stages: tuple[int, ...], mesh: Mesh
) -> tuple[int, ...]:
    """Returns the stages on which a step that runs on `stages` needs an input."""
    if is_move(step):
        return stages_of(mesh, value.placement)[:1]
    return stages


class _TaskOrder:
    """Appends the tasks of groups of steps.

    Args:
      program: the program.

    Attributes:
      steps: the steps that devices run, in the order of the program.
      after_chunks: the steps that depend on a pass through a chunk.
      tasks: the tasks so far.
    """

    def __init__(self, program: Program) -> None:
        self._stages = needed_stages(program)
        self.steps = [
            step
            for step in program.steps
            if step in self._stages and not is_host_step(step)
        ]
        self._dependencies = _dependencies(self.steps)
        self.after_chunks: set[Step] = set()
        for step in self.steps:
            dependencies = self._dependencies[step]
            if is_chunk(step) or not self.after_chunks.isdisjoint(dependencies):
                self.after_chunks.add(step)
        self._appended: set[Step] = set()
        self.tasks: list[Task] = []

    def ancestors(self, steps: Sequence[Step]) -> list[Step]:
        """Returns steps and all that they depend on, in the order of the program."""
        needed: set[Step] = set()
        remaining = list(steps)
        while remaining:
            step = remaining.pop()
            if step not in needed and step not in self._appended:
                needed.add(step)
                remaining += self._dependencies[step]
        return [step for step in self.steps if step in needed]

    def append(self, steps: Iterable[Step]) -> None:
        """Appends the tasks of steps that have none yet, in the order of the program."""
        levels: dict[Step, int] = {}
        steps_of_levels: list[list[Step]] = []
        for step in steps:
            if step in self._appended:
                continue
            level = 0
            for earlier in self._dependencies[step]:
                if earlier in levels:
                    level = max(level, levels[earlier] + _ends_level(earlier, step))
            levels[step] = level
            while len(steps_of_levels) <= level:
                steps_of_levels.append([])
            steps_of_levels[level].append(step)
        self._appended.update(levels)
        for steps_of_level in steps_of_levels:
            self._append_level(steps_of_level)

    def _append_level(self, steps: Sequence[Step]) -> None:
        """Appends the tasks of one level."""
        pieces: dict[int, list[Step]] = {}
        moves: list[tuple[ReshardStep, tuple[int, ...]]] = []
        for step in steps:
            stages = self._stages[step]
            if isinstance(step, ReadStep) and step.store.kind != "number":
                self.tasks.append(ReadTask(step, stages))
            elif isinstance(step, ReshardStep) and is_move(step):
                moves.append((step, stages))
            elif not is_drop(step):  # after a drop, a stage has what it had before
                for stage in stages:
                    pieces.setdefault(stage, []).append(step)
        for stage in sorted(pieces):
            self.tasks.append(Piece(stage, tuple(pieces[stage])))
        if moves:
            self.tasks.append(MoveTask(tuple(moves)))


def _ends_level(earlier: Step, step: Step) -> bool:
    """Whether a step must be in a later task than the step on which it depends."""
    if is_move(earlier):
        return True
    return isinstance(earlier, WriteStep) and isinstance(step, ReadStep)


def _dependencies(steps: Sequence[Step]) -> dict[Step, list[Step]]:
    """Returns the steps that must run before each step: those that compute its inputs, and
    earlier reads and writes of the same variable, if one of them is a write.
    """
    computed_by: dict[Value, Step] = {}
    last_write: dict[object, Step] = {}
    reads_since: dict[object, list[Step]] = {}
    dependencies: dict[Step, list[Step]] = {}
    for step in steps:
        earlier = [computed_by[v] for v in data_inputs(step) if v in computed_by]
        if isinstance(step, ReadStep):
            if step.store in last_write:
                earlier.append(last_write[step.store])
            reads_since.setdefault(step.store, []).append(step)
        elif isinstance(step, WriteStep):
            for store in step.variables:
                if store in last_write:
                    earlier.append(last_write[store])
                earlier += reads_since.pop(store, [])
                last_write[store] = step
        computed_by.update(dict.fromkeys(outputs_of(step), step))
        dependencies[step] = earlier
    return dependencies
