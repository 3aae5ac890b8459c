"""The arrays that the tasks of a program take and give: which of them a task may overwrite,
and which can be freed after it.

    planned_tasks(program, results)      # a `PlannedTask` for each task, in order
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence

from meshtf.graph import Store
from meshtf.mesh import Mesh, Replicated
from meshtf.partition import Program, ReadStep, ReshardStep, Value
from meshtf.partition.reshard_table import Reshard
from meshtf.runtime.spmd.stages.piece_programs import (
    PieceProgram,
    Sources,
    chunk_program,
    needed_values,
    piece_program,
)
from meshtf.runtime.spmd.stages.stage_meshes import stages_of
from meshtf.runtime.spmd.stages.step_stages import is_chunk, is_host_step
from meshtf.runtime.spmd.stages.task_order import tasks_of
from meshtf.runtime.spmd.stages.tasks import MoveTask, Piece, ReadTask, Task

# A value on one stage.
Key = tuple[Value, int]


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedTask:
    """A task, and what it does with arrays.

    Attributes:
      task: the task.
      program: the program of a piece; None for other tasks.
      donated: the variables whose memory the piece may overwrite.
      donated_inputs: the indices of those of its other inputs.
      sources: for each step of a `MoveTask`, the value that it moves, with its stage.
      freed: the values that no later task needs.
    """

    task: Task
    program: PieceProgram | None = None
    donated: tuple[Store, ...] = ()
    donated_inputs: tuple[int, ...] = ()
    sources: tuple[Key, ...] = ()
    freed: tuple[Key, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class TaskPlan:
    """The tasks of a program, and where its results are.

    Attributes:
      tasks: the tasks, in order.
      results: for each result of the program, the value that has its array.
      host_inputs: the same for each input of the steps that the host runs; they are on
        stage 0.
    """

    tasks: tuple[PlannedTask, ...]
    results: tuple[Value, ...]
    host_inputs: tuple[Value, ...]


def plan_tasks(program: Program) -> TaskPlan:
    """Returns the tasks of a program.

    Raises:
      PlanError: a value goes from stage to stage in the body of a loop, branch or call.
    """
    program = _with_copied_results(program)
    sources = Sources(program)
    results = tuple(map(sources.before_drop, program.results))
    host_inputs = tuple(
        sources.before_drop(value)
        for step in program.steps
        if is_host_step(step)
        for value in step.values
    )
    result_keys = [
        (source, stage)
        for result, source in zip(program.results, results)
        for stage in stages_of(program.mesh, result.placement)
    ]
    result_keys += [(value, 0) for value in host_inputs]
    planner = _TaskPlanner(program.mesh, sources, tasks_of(program), result_keys)
    return TaskPlan(tuple(planner.planned_tasks()), results, host_inputs)


def _with_copied_results(program: Program) -> Program:
    """Returns a program whose results are no arrays of variables, which a later call may
    overwrite.
    """
    sources = Sources(program)
    copies = {}
    for result in program.results:
        if sources.variable_read(result) is not None:
            reshard = Reshard("copy", program.mesh.stages, Replicated, Replicated)
            out = Value(result.spec, result.placement)
            copies[result] = ReshardStep(reshard, src=result, out=out, node=None)
    return dataclasses.replace(
        program,
        steps=(*program.steps, *copies.values()),
        results=tuple(copies[v].out if v in copies else v for v in program.results),
    )


class _TaskPlanner:
    """Plans the tasks of a program.

    Args:
      mesh: the mesh.
      sources: where values come from.
      tasks: the tasks, in order.
      result_keys: the values that must exist after the last task.
    """

    def __init__(
        self,
        mesh: Mesh,
        sources: Sources,
        tasks: Sequence[Task],
        result_keys: Iterable[Key],
    ) -> None:
        self._mesh = mesh
        self._sources = sources
        self._tasks = tasks
        self._needed = [self._needed_keys(task) for task in tasks]
        # {value: the index of the last task that needs it}.
        self._last_use: dict[Key, int] = {}
        for index, keys in enumerate(self._needed):
            self._last_use.update(dict.fromkeys(keys, index))
        self._last_use.update(dict.fromkeys(result_keys, len(tasks)))
        # The number of pieces so far that wrote a variable on a stage, and its value at
        # the time of each read.
        self._num_writes: Counter[tuple[Store, int]] = Counter()
        self._writes_before: dict[tuple[ReadStep, int], int] = {}

    def planned_tasks(self) -> list[PlannedTask]:
        """Returns the tasks, without pieces that compute nothing."""
        planned = []
        for index, task in enumerate(self._tasks):
            if isinstance(task, ReadTask):
                for stage in task.stages:
                    writes = self._num_writes[task.step.store, stage]
                    self._writes_before[task.step, stage] = writes
                outputs = [(task.step.out, stage) for stage in task.stages]
                planned.append(PlannedTask(task, freed=self._freed(index, outputs)))
            elif isinstance(task, MoveTask):
                outputs = [(s.out, k) for s, stages in task.steps for k in stages]
                planned.append(
                    PlannedTask(
                        task,
                        sources=tuple(map(self._moved_key, (s for s, _ in task.steps))),
                        freed=self._freed(index, outputs),
                    )
                )
            else:
                planned_piece = self._planned_piece(index, task)
                if planned_piece is not None:
                    planned.append(planned_piece)
        return planned

    def _planned_piece(self, index: int, piece: Piece) -> PlannedTask | None:
        """Returns a piece with its program; None: it computes nothing."""
        stage = piece.stage
        (first, *_) = piece.steps
        if is_chunk(first):
            program = chunk_program(first, self._sources, stage)
        else:
            present = self._present_variables(stage)
            program = piece_program(piece, self._sources, set(self._last_use), present)
        if not program.outputs and not program.variables:
            return None
        donated = []
        for store in program.variables:
            used_later = any(
                variable is store and self._last_use[value, stage] > index
                for value, variable in self._present_variables(stage).items()
            )
            if not used_later:
                donated.append(store)
        self._num_writes.update((store, stage) for store in program.variables)
        outputs = [(out, stage) for out in program.outputs]
        return PlannedTask(
            piece,
            program=program,
            donated=tuple(donated),
            freed=self._freed(index, outputs),
        )

    def _present_variables(self, stage: int) -> dict[Value, Store]:
        """Returns {value: variable} for the values on a stage that are the present array of
        a variable.
        """
        present = {}
        for value, value_stage in self._last_use:
            read = self._sources.variable_read(value)
            if value_stage != stage or read is None:
                continue
            writes = self._writes_before.get((read, stage))
            if writes == self._num_writes[read.store, stage]:
                present[value] = read.store
        return present

    def _needed_keys(self, task: Task) -> list[Key]:
        """Returns the values that a task needs of other tasks."""
        if isinstance(task, MoveTask):
            return [self._moved_key(step) for step, _ in task.steps]
        if isinstance(task, Piece):
            needed = needed_values(task, self._sources)
            return [(value, task.stage) for value in needed]
        return []

    def _moved_key(self, step: ReshardStep) -> Key:
        """Returns the value that a send or broadcast copies, with its stage."""
        stage, *_ = stages_of(self._mesh, step.src.placement)
        return self._sources.before_drop(step.src), stage

    def _freed(self, index: int, outputs: Iterable[Key]) -> tuple[Key, ...]:
        """Returns the values to free after a task: those that it was the last to need, and
        those of its outputs that nothing needs.
        """
        freed: dict[Key, None] = {}
        for key in self._needed[index]:
            if self._last_use[key] == index:
                freed[key] = None
        for key in outputs:
            if key not in self._last_use:
                freed[key] = None
        return tuple(freed)
