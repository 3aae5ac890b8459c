"""Schedules: in which order each stage of a pipeline does its work.

The work of a stage are tasks: the forward or the backward pass of one microbatch
through one of its cells. A schedule has one list of tasks for each stage; `order`
merges them into one, in which every task comes after the one that it waits for:

>>> schedule = one_f_one_b(stages=2, microbatches=3)
>>> " ".join(task.label for task in schedule.tasks[0])
'F0 F1 B0 F2 B1 B2'
>>> " ".join(f"{task.label}/{task.stage}" for task in schedule.order())
'F0/0 F1/0 F0/1 B0/1 B0/0 F1/1 F2/0 B1/1 B1/0 F2/1 B2/1 B2/0'
>>> held(schedule.order())
(2, 1)
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, get_args

from meshtf.errors import PlanError, explain_error
from meshtf.names.arguments import as_int, as_numbers, as_sequence, check_record

Kind = Literal["forward", "backward"]


class Task(NamedTuple):
    """The forward or backward pass of one microbatch through one cell of a stage."""

    stage: int
    microbatch: int
    kind: Kind
    chunk: int = 0  # which of the stage's cells, where it has several

    @property
    def label(self) -> str:
        """Its kind and microbatch, such as "F3"; chunks after the first have a letter:
        "F3b".
        """
        chunk = chr(ord("a") + self.chunk % 26) if self.chunk else ""
        return f"{self.kind[0].upper()}{self.microbatch}{chunk}"


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The tasks of each stage, in order.

    A model on K stages with v chunks each has K v cells: cell c is chunk c // K of
    stage c % K.

    Raises:
      PlanError: a task is missing, is there twice, or is another stage's.
    """

    tasks: tuple[tuple[Task, ...], ...]

    def __post_init__(self) -> None:
        for mine in as_sequence("tasks", self.tasks, "the tasks of each stage"):
            as_tasks("tasks", mine)
        missing = {
            Task(stage, microbatch, kind, chunk)
            for stage, microbatch, kind, chunk in itertools.product(
                range(self.stages),
                range(self.microbatches),
                get_args(Kind),
                range(self.chunks),
            )
        }
        for stage, mine in enumerate(self.tasks):
            for task in mine:
                if task.stage != stage or task not in missing:
                    raise PlanError(
                        f"stage {stage} has {task}, which is another stage's or is "
                        "there twice."
                    )
                missing.remove(task)
        if missing:
            raise PlanError(
                f"a schedule of {self.stages} stages, {self.microbatches} microbatches "
                f"and {self.chunks} chunks has no {min(missing)}."
            )

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return len(self.tasks)

    @functools.cached_property
    def microbatches(self) -> int:
        """How many microbatches there are."""
        return 1 + max(task.microbatch for task in itertools.chain(*self.tasks))

    @functools.cached_property
    def chunks(self) -> int:
        """How many cells a stage has."""
        return 1 + max(task.chunk for task in itertools.chain(*self.tasks))

    def cell(self, task: Task) -> int:
        """Returns which cell of the model a task runs."""
        check_record(Task, task=task)
        return task.chunk * self.stages + task.stage

    def before(self, task: Task) -> Task | None:
        """Returns the task whose result a task waits for, or None if it needs the batch
        alone.

        Forward passes wait for the cell before, backward passes for the cell after; the
        first backward pass of a microbatch waits for the last forward pass.
        """
        check_record(Task, task=task)
        forward = task.kind == "forward"
        cell = self.cell(task) + (-1 if forward else 1)
        if cell < 0:
            return None
        if cell == self.stages * self.chunks:
            return task._replace(kind="forward")
        return task._replace(stage=cell % self.stages, chunk=cell // self.stages)

    def order(self) -> tuple[Task, ...]:
        """Returns all tasks in one order, each after what it waits for, as if in
        rounds.

        In a round each stage does its next task, if what that waits for was done in
        rounds before.

        Raises:
          PlanError: stages wait for each other for ever.
        """
        lists = [collections.deque(mine) for mine in self.tasks]
        done: dict[Task | None, None] = {None: None}
        while any(lists):
            ready = [mine for mine in lists if mine and self.before(mine[0]) in done]
            if not ready:
                waits = [
                    f"{mine[0]} waits for {self.before(mine[0])}"
                    for mine in lists
                    if mine
                ]
                raise PlanError(
                    explain_error(
                        "the stages of a schedule wait for each other.",
                        tasks="\n".join(waits),
                    )
                )
            done.update(dict.fromkeys([mine.popleft() for mine in ready]))
        return tuple(task for task in done if task is not None)


def as_tasks(name: str, tasks: Any) -> list[Task]:
    """Returns a list of tasks. Raises ArgumentError."""
    found = list(as_sequence(name, tasks, "tasks"))
    for task in found:
        check_record(Task, **{name: task})
    return found


def gpipe(stages: int, microbatches: int) -> Schedule:
    """Returns GPipe's schedule: all forward passes, then all backward passes, the last
    one first.

    A stage holds all microbatches at once. (Huang et al. 2019, arXiv:1811.06965, figure
    2.)
    """
    _check(stages, microbatches)

    def tasks(stage: int) -> tuple[Task, ...]:
        forward = [Task(stage, m, "forward") for m in range(microbatches)]
        backward = [Task(stage, m, "backward") for m in reversed(range(microbatches))]
        return _in_turns(forward, backward, microbatches)

    return Schedule(tuple(map(tasks, range(stages))))


def one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """Returns the schedule 1F1B: each stage turns to a backward pass as soon as there
    is one.

    Stage k is at most K - k forward passes ahead, and holds no more microbatches.
    (Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1.)
    """
    _check(stages, microbatches)

    def tasks(stage: int) -> tuple[Task, ...]:
        forward = [Task(stage, m, "forward") for m in range(microbatches)]
        backward = [Task(stage, m, "backward") for m in range(microbatches)]
        return _in_turns(forward, backward, stages - 1 - stage)

    return Schedule(tuple(map(tasks, range(stages))))


def interleaved(stages: int, microbatches: int, chunks: int) -> Schedule:
    """Returns 1F1B for stages of several cells each, which takes a v-th of the idle
    time.

    Each stage takes K microbatches through one of its chunks, then the same ones
    through its next chunk. (Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2.)

    Raises:
      PlanError: the number of microbatches is no multiple of the number of stages.
    """
    _check(stages, microbatches, chunks)
    if chunks == 1:
        return one_f_one_b(stages, microbatches)
    if microbatches % stages:
        raise PlanError(
            explain_error(
                f"{microbatches} microbatches cannot be interleaved over {stages} "
                "stages.",
                way_out=f"Take a multiple of {stages} microbatches, or one chunk for "
                "each stage.",
            )
        )

    def tasks(stage: int) -> tuple[Task, ...]:
        steps = [
            (first + m, chunk)
            for first in range(0, microbatches, stages)
            for chunk in range(chunks)
            for m in range(stages)
        ]
        forward = [Task(stage, m, "forward", chunk) for m, chunk in steps]
        backward = [
            Task(stage, m, "backward", chunks - 1 - chunk) for m, chunk in steps
        ]
        return _in_turns(
            forward, backward, 2 * (stages - 1 - stage) + (chunks - 1) * stages
        )

    return Schedule(tuple(map(tasks, range(stages))))


def _in_turns(
    forward: Sequence[Task], backward: Sequence[Task], ahead: int
) -> tuple[Task, ...]:
    """Returns some forward passes, then forward and backward passes in turns, then what
    is left.
    """
    turns = itertools.chain(*zip(forward[ahead:], backward))
    return *forward[:ahead], *turns, *backward[max(0, len(forward) - ahead) :]


def _check(stages: int, microbatches: int, chunks: int = 1) -> None:
    as_int("stages", stages)
    as_int("microbatches", microbatches)
    as_int("chunks", chunks)
    if min(stages, microbatches, chunks) < 1:
        raise PlanError(
            f"there is no schedule of {stages} stages, {microbatches} microbatches and "
            f"{chunks} chunks; each is at least 1."
        )


def held(
    order: Iterable[Task], sizes: Sequence[float] | None = None
) -> tuple[float, ...]:
    """Returns the most that each stage holds at once: forward is done, backward is not.

    Args:
      order: tasks of all stages, those of one stage in the order in which they run.
      sizes: what one microbatch takes in each cell of the model, such as bytes of
        activations. By default each counts 1, so that stages with one cell hold so many
        microbatches.
    """
    if sizes is not None:
        sizes = as_numbers("sizes", sizes, "a number for each cell")
    order = as_tasks("order", order)
    stages = 1 + max(task.stage for task in order)
    now: list[float] = [0] * stages
    most: list[float] = [0] * stages
    for task in order:
        size = 1 if sizes is None else sizes[task.chunk * stages + task.stage]
        now[task.stage] += size if task.kind == "forward" else -size
        most[task.stage] = max(most[task.stage], now[task.stage])
    return tuple(most)
