"""The time line of a schedule: when each stage does what, and how long it waits.

>>> from meshtf.pipeline import gpipe
>>> line = simulate(gpipe(stages=4, microbatches=8))
>>> line.time, line.busy
(33, (24, 24, 24, 24))
>>> line.bubble == 3 / (8 + 4 - 1), line.speed_up == ideal_speed_up(4, 8)
(True, True)

Times have the unit of the costs. With integers or fractions all of it is exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

from meshtf.errors import PlanError
from meshtf.names.arguments import (
    as_bool,
    as_float,
    as_int,
    as_numbers,
    as_sequence,
    check_floats,
    check_record,
)
from meshtf.pipeline.schedule import Schedule, Task, held

Cost = float | Sequence[float]  # of every cell, or of each one


class Span(NamedTuple):
    """What a stage does from one time to another; recompute belongs to a
    backward task.
    """

    task: Task
    what: Literal["forward", "recompute", "backward"]
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class Timeline:
    """When each stage does what: simulated, or measured."""

    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        for span in as_sequence("spans", self.spans, "what stages do"):
            check_record(Span, spans=span)

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return 1 + max(span.task.stage for span in self.spans)

    @property
    def start(self) -> float:
        """When the first task starts."""
        return min(span.start for span in self.spans)

    @property
    def time(self) -> float:
        """How long it takes from the first start to the last end."""
        return max(span.end for span in self.spans) - self.start

    @property
    def busy(self) -> tuple[float, ...]:
        """How long each stage works, recomputing included."""
        return tuple(
            sum(
                span.end - span.start for span in self.spans if span.task.stage == stage
            )
            for stage in range(self.stages)
        )

    @property
    def bubble(self) -> float:
        """The share of all stages' time in which they are idle.

        M microbatches on K stages with one cell each, all equal, give (K - 1) / (M + K
        - 1).
        """
        whole = self.stages * self.time
        return (whole - sum(self.busy)) / whole

    @property
    def idle_per_work(self) -> float:
        """How long stages are idle for each unit of time that they work.

        M microbatches on K stages with v cells each, all equal, give (K - 1) / (M v).
        """
        return (self.stages * self.time - sum(self.busy)) / sum(self.busy)

    @property
    def speed_up(self) -> float:
        """How many times longer one stage would take for all of the work."""
        return sum(self.busy) / self.time

    def held(self, sizes: Sequence[float] | None = None) -> tuple[float, ...]:
        """Returns the most that each stage holds at once; see `schedule.held`."""
        if sizes is not None:
            sizes = as_numbers("sizes", sizes, "a number for each cell")
        return held(
            (
                span.task
                for span in sorted(self.spans, key=lambda span: span.start)
                if span.what != "recompute"
            ),
            sizes,
        )


def ideal_speed_up(stages: int, microbatches: int, chunks: int = 1) -> float:
    """Returns K M / (M + (K - 1) / v), the speed-up of equal cells that send in no
    time.
    """
    for name, number in (
        ("stages", stages),
        ("microbatches", microbatches),
        ("chunks", chunks),
    ):
        as_int(name, number, least=1)
    return stages * microbatches * chunks / (microbatches * chunks + stages - 1)


def simulate(
    schedule: Schedule,
    forward: Cost = 1,
    backward: Cost | None = None,
    *,
    send: float = 0,
    recompute: Cost = 0,
    early: bool = False,
) -> Timeline:
    """Returns when each task of a schedule runs, if each starts as soon as it can.

    Args:
      schedule: what each stage does, in order.
      forward: cost of a microbatch's forward pass through each cell of the model, or
        through any.
      backward: the same of the backward pass; twice the forward pass by default.
      send: how long a result takes to another stage, which delays only who waits for
        it.
      recompute: cost of making the activations of each cell again before its backward
        pass.
      early: whether to recompute before the gradient has come from the stage after.

    Raises:
      PlanError: there are not as many costs as cells, or stages wait for each other.
    """
    check_record(Schedule, schedule=schedule)
    check_floats(send=send)
    as_bool("early", early)
    cells = schedule.stages * schedule.chunks
    ahead, again = _each(forward, cells), _each(recompute, cells)
    back = [2 * cost for cost in ahead] if backward is None else _each(backward, cells)
    free: list[float] = [0] * schedule.stages
    ended: dict[Task | None, float] = {None: 0}
    spans = []
    for task in schedule.order():
        cell, before = schedule.cell(task), schedule.before(task)
        ready = ended[before] + (
            0 if before is None or before.stage == task.stage else send
        )
        start = free[task.stage] if early else max(free[task.stage], ready)
        if task.kind == "backward" and again[cell]:
            spans.append(Span(task, "recompute", start, start + again[cell]))
            start += again[cell]
        start = max(start, ready)
        end = start + (ahead if task.kind == "forward" else back)[cell]
        spans.append(Span(task, task.kind, start, end))
        free[task.stage] = ended[task] = end
    return Timeline(tuple(spans))


def _each(cost: Cost, cells: int) -> Sequence[float]:
    """Returns the cost of each cell."""
    costs = (
        cost
        if isinstance(cost, Sequence) and not isinstance(cost, str)
        else [cost] * cells
    )
    for one in costs:
        as_float("cost", one, "a number, or one for each cell")
    if len(costs) != cells:
        raise PlanError(
            f"there are {cells} cells in this schedule, but costs of {len(costs)}."
        )
    return costs
