"""Schedules: the order in which each stage of a pipeline works on microbatches.

A task is the forward or the backward pass of one microbatch through one chunk of layers.
A schedule has a list of tasks for each stage; `order` merges these lists into one, in
which every task comes after the task that it waits for:

>>> schedule = one_f_one_b(stages=2, microbatches=3)
>>> " ".join(task.label for task in schedule.tasks[0])
'F0 F1 B0 F2 B1 B2'
>>> " ".join(f"{task.label}/{task.stage}" for task in schedule.order())
'F0/0 F1/0 F0/1 B0/1 B0/0 F1/1 F2/0 B1/1 B1/0 F2/1 B2/1 B2/0'
>>> peak_activations(schedule.order())
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
from meshtf.names.arguments import (
    as_numbers,
    as_sequence,
    as_text,
    check_ints,
    check_record,
)

Kind = Literal["forward", "backward"]


class Task(NamedTuple):
    """The forward or backward pass of one microbatch through one chunk of a stage.

    Attributes:
      stage: the index of the stage.
      microbatch: the index of the microbatch.
      kind: "forward" or "backward".
      chunk: the index of the chunk among the chunks of the stage.
    """

    stage: int
    microbatch: int
    kind: Kind
    chunk: int = 0

    @property
    def label(self) -> str:
        """The kind and the microbatch, such as "F3"; a task of a chunk after the first has
        a letter at the end, such as "F3b" in chunk 1.
        """
        chunk_letter = ""
        if self.chunk:
            chunk_letter = chr(ord("a") + self.chunk % 26)
        return f"{self.kind[0].upper()}{self.microbatch}{chunk_letter}"


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The tasks of each stage, in order.

    A model on K stages with v chunks each has K v chunks: chunk c of the model is chunk
    c // K of stage c % K.

    Raises:
      PlanError: a task is missing, appears twice, or is listed for another stage.
    """

    tasks: tuple[tuple[Task, ...], ...]

    def __repr__(self) -> str:
        return (
            f"Schedule(stages={self.stages}, microbatches={self.microbatches}, "
            f"chunks={self.chunks})"
        )

    def __post_init__(self) -> None:
        for stage_tasks in as_sequence("tasks", self.tasks, "the tasks of each stage"):
            # Raises ArgumentError unless all elements are tasks.
            as_tasks("tasks", stage_tasks)
        missing_tasks = {
            Task(stage, microbatch, kind, chunk)
            for stage, microbatch, kind, chunk in itertools.product(
                range(self.stages),
                range(self.microbatches),
                get_args(Kind),
                range(self.chunks),
            )
        }
        for stage, stage_tasks in enumerate(self.tasks):
            for task in stage_tasks:
                if task.stage != stage or task not in missing_tasks:
                    raise PlanError(
                        f"stage {stage} has {task}, which is another stage's or is "
                        "there twice."
                    )
                missing_tasks.remove(task)
        if missing_tasks:
            raise PlanError(
                f"a schedule of {self.stages} stages, {self.microbatches} microbatches "
                f"and {self.chunks} chunks has no {min(missing_tasks)}."
            )

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.tasks)

    @functools.cached_property
    def microbatches(self) -> int:
        """The number of microbatches."""
        tasks = itertools.chain(*self.tasks)
        return 1 + max(task.microbatch for task in tasks)

    @functools.cached_property
    def chunks(self) -> int:
        """The number of chunks of each stage."""
        tasks = itertools.chain(*self.tasks)
        return 1 + max(task.chunk for task in tasks)

    def model_chunk(self, task: Task) -> int:
        """Returns the index of the chunk of the model that a task runs."""
        check_record(Task, task=task)
        return task.chunk * self.stages + task.stage

    def before(self, task: Task) -> Task | None:
        """Returns the task whose result a task waits for, or None if it needs only the
        batch.

        The forward pass of a chunk waits for the forward pass of the previous chunk, a
        backward pass for the backward pass of the next chunk. The backward pass of the
        last chunk waits for the forward pass of this chunk.
        """
        check_record(Task, task=task)
        model_chunk = self.model_chunk(task)
        if task.kind == "forward":
            source_chunk = model_chunk - 1
        else:
            source_chunk = model_chunk + 1
        if source_chunk < 0:
            return None
        if source_chunk == self.stages * self.chunks:
            return task._replace(kind="forward")
        return task._replace(
            stage=source_chunk % self.stages, chunk=source_chunk // self.stages
        )

    def order(self) -> tuple[Task, ...]:
        """Returns all tasks in one order, each after the task that it waits for.

        The order consists of rounds: in a round, each stage runs its next task if the task
        that it waits for ran in an earlier round.

        Raises:
          PlanError: stages wait for each other for ever.
        """
        queues = [collections.deque(tasks) for tasks in self.tasks]
        ordered_tasks: list[Task] = []
        # None is the task before the first chunk: see `before`.
        finished: set[Task | None] = {None}
        while any(queues):
            remaining_queues = [queue for queue in queues if queue]
            ready_queues = [
                queue for queue in remaining_queues if self.before(queue[0]) in finished
            ]
            if not ready_queues:
                next_tasks = [queue[0] for queue in remaining_queues]
                waits = [f"{task} waits for {self.before(task)}" for task in next_tasks]
                raise PlanError(
                    explain_error(
                        "the stages of a schedule wait for each other.",
                        tasks="\n".join(waits),
                    )
                )
            round_tasks = [queue.popleft() for queue in ready_queues]
            ordered_tasks += round_tasks
            finished.update(round_tasks)
        return tuple(ordered_tasks)


def as_tasks(name: str, tasks: Any) -> list[Task]:
    """Returns an argument as a list of tasks. Raises ArgumentError if it is none."""
    task_list = list(as_sequence(name, tasks, "tasks"))
    for task in task_list:
        check_record(Task, **{name: task})
    return task_list


def gpipe(stages: int, microbatches: int) -> Schedule:
    """Returns GPipe's schedule: all forward passes, then all backward passes, the last
    microbatch first.

    A stage stores the activations of all microbatches at once. (Huang et al. 2019,
    arXiv:1811.06965, figure 2.)
    """
    _check_counts(stages, microbatches)

    def tasks(stage: int) -> tuple[Task, ...]:
        forward = [Task(stage, m, "forward") for m in range(microbatches)]
        backward = [Task(stage, m, "backward") for m in reversed(range(microbatches))]
        return _alternate(forward, backward, warmup=microbatches)

    return Schedule(tuple(map(tasks, range(stages))))


def one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """Returns the schedule 1F1B: each stage runs a backward pass as soon as one is ready.

    Stage k of K stages stores the activations of at most K - k microbatches at once.
    (Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1.)
    """
    _check_counts(stages, microbatches)

    def tasks(stage: int) -> tuple[Task, ...]:
        forward = [Task(stage, m, "forward") for m in range(microbatches)]
        backward = [Task(stage, m, "backward") for m in range(microbatches)]
        # Until the first microbatch has gone through the stages after this one.
        return _alternate(forward, backward, warmup=stages - 1 - stage)

    return Schedule(tuple(map(tasks, range(stages))))


def interleaved(stages: int, microbatches: int, chunks: int) -> Schedule:
    """Returns 1F1B for K stages of v chunks each, which reduces the idle time to 1 / v.

    Each stage runs K microbatches through one of its chunks, then the same microbatches
    through its next chunk. (Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2.)

    Raises:
      PlanError: the number of microbatches is no multiple of the number of stages.
    """
    _check_counts(stages, microbatches, chunks)
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
        forward = []
        backward = []
        # Groups of K microbatches; each group runs through all chunks of the stage.
        group_starts = range(0, microbatches, stages)
        for start, chunk, m in itertools.product(
            group_starts, range(chunks), range(stages)
        ):
            backward_chunk = chunks - 1 - chunk
            forward.append(
                Task(stage, microbatch=start + m, kind="forward", chunk=chunk)
            )
            backward.append(
                Task(stage, microbatch=start + m, kind="backward", chunk=backward_chunk)
            )
        # The number of warm-up passes in Narayanan et al., section 2.2.2.
        warmup = 2 * (stages - 1 - stage) + (chunks - 1) * stages
        return _alternate(forward, backward, warmup)

    return Schedule(tuple(map(tasks, range(stages))))


_SCHEDULES = {"gpipe": gpipe, "1f1b": one_f_one_b}


def schedule_called(name: str, stages: int, microbatches: int, chunks: int) -> Schedule:
    """Returns the schedule with this name, "gpipe" or "1f1b"; several chunks for each
    stage are interleaved.

    Raises:
      PlanError: there is no such schedule, or no such schedule with several chunks.
    """
    name = as_text("schedule", name)
    if name not in _SCHEDULES or (chunks > 1 and name != "1f1b"):
        raise PlanError(
            explain_error(
                f"there is no schedule {name!r}"
                + (f" with {chunks} chunks." if chunks > 1 else "."),
                way_out=f"Take one of {', '.join(map(repr, _SCHEDULES))}; chunks "
                "interleave 1f1b.",
            )
        )
    if chunks > 1:
        return interleaved(stages, microbatches, chunks)
    return _SCHEDULES[name](stages, microbatches)


def _alternate(
    forward: Sequence[Task], backward: Sequence[Task], warmup: int
) -> tuple[Task, ...]:
    """Returns the first `warmup` forward passes, then forward and backward passes in
    turn, then the remaining backward passes.
    """
    steady = itertools.chain(*zip(forward[warmup:], backward))
    cooldown = backward[max(0, len(forward) - warmup) :]
    return *forward[:warmup], *steady, *cooldown


def _check_counts(stages: int, microbatches: int, chunks: int = 1) -> None:
    """Raises an error for counts that are no integers or less than 1."""
    check_ints(stages=stages, microbatches=microbatches, chunks=chunks)
    if min(stages, microbatches, chunks) < 1:
        raise PlanError(
            f"there is no schedule of {stages} stages, {microbatches} microbatches and "
            f"{chunks} chunks; each is at least 1."
        )


def peak_activations(
    order: Iterable[Task], sizes: Sequence[float] | None = None
) -> tuple[float, ...]:
    """Returns for each stage the peak size of the activations that it stores: those of
    microbatches whose forward pass is done, and whose backward pass is not.

    Args:
      order: the tasks of all stages; the tasks of one stage are in the order in which
        they run.
      sizes: for each chunk of the model, the size of the activations of one microbatch,
        such as bytes; None: each size is 1, so that the result counts microbatches.
    """
    if sizes is not None:
        sizes = as_numbers("sizes", sizes, "a number for each chunk")
    order = as_tasks("order", order)
    stages = 1 + max(task.stage for task in order)
    current_sizes: list[float] = [0] * stages
    peak_sizes: list[float] = [0] * stages
    for task in order:
        stage = task.stage
        chunk = task.chunk * stages + stage
        size = 1 if sizes is None else sizes[chunk]
        if task.kind == "forward":
            current_sizes[stage] += size
        else:
            current_sizes[stage] -= size
        peak_sizes[stage] = max(peak_sizes[stage], current_sizes[stage])
    return tuple(peak_sizes)
