"""Simulates a schedule: when each stage runs which task, and how long it is idle.

>>> from meshtf.pipeline import gpipe
>>> timeline = simulate(gpipe(stages=4, microbatches=8))
>>> timeline.time, timeline.busy
(33, (24, 24, 24, 24))
>>> timeline.bubble == 3 / (8 + 4 - 1), timeline.speed_up == ideal_speed_up(4, 8)
(True, True)

A task is the forward or the backward pass of one microbatch through one chunk of layers.
Times have the unit of the costs. They are exact if the costs are integers or fractions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

from meshtf.errors import PlanError
from meshtf.forecast.time.simulation import Simulation
from meshtf.names.arguments import (
    as_float,
    as_int,
    as_numbers,
    as_sequence,
    check_bools,
    check_floats,
    check_record,
)
from meshtf.pipeline.schedule import Schedule, Task, peak_activations

# The cost of every chunk of the model, or a list with the cost of each chunk.
Cost = float | Sequence[float]


class Span(NamedTuple):
    """The time from start to end in which a stage works on a task.

    A backward task may have two spans: one of kind "recompute", then one of kind
    "backward".
    """

    task: Task
    kind: Literal["forward", "recompute", "backward"]
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class Timeline:
    """When each stage runs which task: simulated or measured."""

    spans: tuple[Span, ...]

    def __repr__(self) -> str:
        return f"Timeline(stages={self.stages}, spans={len(self.spans)})"

    def __post_init__(self) -> None:
        for span in as_sequence("spans", self.spans, "what stages do"):
            check_record(Span, spans=span)

    @property
    def stages(self) -> int:
        """The number of stages."""
        return 1 + max(span.task.stage for span in self.spans)

    @property
    def start(self) -> float:
        """The time at which the first task starts."""
        return min(span.start for span in self.spans)

    @property
    def time(self) -> float:
        """The time from the first start to the last end."""
        return max(span.end for span in self.spans) - self.start

    @property
    def busy(self) -> tuple[float, ...]:
        """The time that each stage works, recomputing included."""
        busy_times: list[float] = [0] * self.stages
        for span in self.spans:
            busy_times[span.task.stage] += span.end - span.start
        return tuple(busy_times)

    @property
    def bubble(self) -> float:
        """The fraction of all stages' time in which they are idle.

        M microbatches on K stages with one chunk each, all equal, give (K - 1) / (M + K
        - 1).
        """
        total = self.stages * self.time
        idle = total - sum(self.busy)
        return idle / total

    @property
    def idle_per_work(self) -> float:
        """The idle time of all stages, divided by the time that they work.

        M microbatches on K stages with v chunks each, all equal, give (K - 1) / (M v).
        """
        work = sum(self.busy)
        return (self.stages * self.time - work) / work

    @property
    def speed_up(self) -> float:
        """The time that one stage would take for all tasks, divided by `time`."""
        return sum(self.busy) / self.time

    def peak_activations(
        self, sizes: Sequence[float] | None = None
    ) -> tuple[float, ...]:
        """Returns for each stage the peak size of the activations that it stores; see
        `schedule.peak_activations`.
        """
        if sizes is not None:
            sizes = as_numbers("sizes", sizes, "a number for each chunk")
        spans = sorted(self.spans, key=lambda span: span.start)
        tasks = [span.task for span in spans if span.kind != "recompute"]
        return peak_activations(tasks, sizes)


def ideal_speed_up(stages: int, microbatches: int, chunks: int = 1) -> float:
    """Returns the speed-up of K stages over one, K M / (M + (K - 1) / v), for M
    microbatches and v chunks of each stage, if chunks cost the same and sending takes no
    time.
    """
    stages = as_int("stages", stages, least=1)
    microbatches = as_int("microbatches", microbatches, least=1)
    chunks = as_int("chunks", chunks, least=1)
    chunk_tasks = microbatches * chunks
    return stages * chunk_tasks / (chunk_tasks + stages - 1)


def simulate(
    schedule: Schedule,
    forward: Cost = 1,
    backward: Cost | None = None,
    *,
    send: float = 0,
    recompute: Cost = 0,
    early: bool = False,
) -> Timeline:
    """Returns the time line of a schedule in which each task starts as soon as possible.

    Args:
      schedule: the tasks of each stage, in order.
      forward: the cost of a microbatch's forward pass through each chunk of the model:
        one number for each chunk, or one for all chunks.
      backward: the cost of the backward pass through each chunk; None: twice the cost of
        the forward pass.
      send: the time to send a result to another stage. It delays only the task that
        waits for the result.
      recompute: the cost of computing the activations of each chunk again before its
        backward pass.
      early: whether a stage recomputes before the gradient from the next stage arrives.

    Raises:
      PlanError: there are not as many costs as chunks, or stages wait for each other.
    """
    check_record(Schedule, schedule=schedule)
    check_floats(send=send)
    check_bools(early=early)
    num_chunks = schedule.stages * schedule.chunks
    forward_costs = _chunk_costs(forward, num_chunks)
    recompute_costs = _chunk_costs(recompute, num_chunks)
    if backward is None:
        backward = [2 * cost for cost in forward_costs]
    backward_costs = _chunk_costs(backward, num_chunks)
    simulation = Simulation()
    spans = []
    for task in schedule.order():
        chunk = schedule.model_chunk(task)
        source_task = schedule.before(task)  # the task whose result this task needs
        # The input of the model, which the first chunk needs, exists at time 0.
        ready_time = simulation.ready_at([source_task])
        if source_task is not None and source_task.stage != task.stage:
            ready_time += send
        costs = forward_costs
        if task.kind == "backward":
            costs = backward_costs
            if recompute_costs[chunk]:
                # With `early`, recomputation does not wait for the result of the source
                # task: it needs only the input that the stage has stored.
                after = [] if early else [ready_time]
                times = simulation.run([task.stage], recompute_costs[chunk], after)
                spans.append(Span(task, "recompute", *times))
        start, end = simulation.run([task.stage], costs[chunk], [ready_time])
        spans.append(Span(task, task.kind, start, end))
        simulation.ready[task] = end
    return Timeline(tuple(spans))


def _chunk_costs(cost: Cost, num_chunks: int) -> Sequence[float]:
    """Returns the cost of each chunk."""
    if isinstance(cost, Sequence) and not isinstance(cost, str):
        costs = cost
    else:
        costs = [cost] * num_chunks
    for chunk_cost in costs:
        # Raises ArgumentError unless it is a number.
        as_float("cost", chunk_cost, "a number, or one for each chunk")
    if len(costs) != num_chunks:
        raise PlanError(
            f"there are {num_chunks} chunks in this schedule, but costs of {len(costs)}."
        )
    return costs
