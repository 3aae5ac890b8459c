"""Candidates: layouts with sizes, planned in full."""

from __future__ import annotations

import dataclasses
import functools
import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshtf.errors import MeshtfError
from meshtf.forecast import Forecast
from meshtf.forecast.outline import Outline
from meshtf.layout_search.pricing import Prices, ordered
from meshtf.layout_search.problem import MICROBATCHES, Problem

# Candidates whose estimated memory exceeds the limit by more than this are not planned: the
# estimate is for the moment of another plan's peak.
MEMORY_MARGIN = 1.1
_MORE = 3  # times as many candidates are planned in full as are shown


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A layout with sizes, and what its own plan says.

    Attributes:
      problem: what was searched for.
      axes: the axes of the mesh, such as "data:8;model:4".
      layout: the rules for tensors.
      variable_layout: the further rules for variables.
      optimizer_layout: the further rules for slots.
      choices: the further arguments of the program.
      seconds: the predicted time of a step.
      estimated: the time that the search estimated before it planned this candidate.
      outline: the time, memory and bytes of the plan.
      measured: the measured time of a step; None: it did not run.
    """

    problem: Problem
    axes: str
    layout: str
    variable_layout: str
    optimizer_layout: str
    choices: Mapping[str, Any]
    seconds: float
    estimated: float
    outline: Outline
    measured: float | None = None

    def __repr__(self) -> str:
        return f"Candidate({self.axes!r}, {self.layout!r}, {self.seconds:.4g} s)"

    @functools.cached_property
    def forecast(self) -> Forecast:
        """The forecast, with all ops and collectives."""
        settings = {**self.mesh_settings}
        axes = settings.pop("axes")
        return self.problem.forecast(axes, settings, self.choices)

    @property
    def fits(self) -> bool:
        """Whether the peak of memory fits on a device."""
        return self.outline.peak <= self.problem.memory

    @property
    def mesh_settings(self) -> dict[str, Any]:
        """The arguments of `Mesh`."""
        return {
            "axes": self.axes,
            "layout": self.layout,
            "variable_layout": self.variable_layout,
            "optimizer_layout": self.optimizer_layout,
        }


class Estimate(NamedTuple):
    """A layout with sizes that has no plan of its own.

    Attributes:
      mesh_settings: the arguments of `Mesh`.
      choices: the further arguments of the program.
      seconds: the estimated time of a step.
    """

    mesh_settings: Mapping[str, Any]
    choices: Mapping[str, Any]
    seconds: float


class FullPlans:
    """The candidates that are planned in full, each once.

    Args:
      problem: what is searched for.
      count: how many candidates are shown.

    Attributes:
      limit: no candidate whose estimate exceeds these seconds can be among the best, if
        estimates err by no more than they did so far.
    """

    def __init__(self, problem: Problem, count: int) -> None:
        self._problem = problem
        self._count = count
        self._planned: dict[tuple[int, int], Candidate | None] = {}
        self.limit = math.inf

    def best(self, all_prices: Sequence[Prices]) -> list[Candidate]:
        """Returns the best candidates; the fastest comes first.

        Args:
          all_prices: the prices of all structures, which may be more at the next call.
        """
        fitting: list[Candidate] = []
        seen = set()
        for prices, index in _fastest(self._problem, all_prices):
            if prices.seconds[index] > self._limit_of(fitting):
                break
            # Of orders of the axes that make no difference, one is shown.
            rounded = f"{prices.seconds[index]:.8g}"
            key = id(prices), *_sizes(prices, index), rounded
            if key in seen:
                continue
            seen.add(key)
            candidate = self._plan(prices, index)
            if candidate is not None and candidate.fits:
                fitting.append(candidate)
            if len(fitting) >= _MORE * self._count:
                break
        self.limit = self._limit_of(fitting)
        return sorted(fitting, key=lambda candidate: candidate.seconds)[: self._count]

    def _limit_of(self, fitting: Sequence[Candidate]) -> float:
        """Returns what `limit` is if these candidates are those that fit."""
        if len(fitting) < self._count:
            return math.inf
        largest_error = max(c.estimated / c.seconds for c in fitting)
        last_shown = sorted(c.seconds for c in fitting)[self._count - 1]
        return last_shown * max(largest_error, 1.0)

    def _plan(self, prices: Prices, index: int) -> Candidate | None:
        """Returns what `plan_in_full` does, by one plan for each candidate."""
        key = id(prices), index  # the search keeps all prices
        if key not in self._planned:
            self._planned[key] = plan_in_full(self._problem, prices, index)
        return self._planned[key]


def _fastest(
    problem: Problem, all_prices: Sequence[Prices]
) -> Iterator[tuple[Prices, int]]:
    """Yields (prices, index) of candidates that may fit, from the fastest on."""
    limit = problem.memory * MEMORY_MARGIN
    heap: list[tuple[float, int, int, np.ndarray]] = []
    orders = []
    for i, prices in enumerate(all_prices):
        seconds = np.where(prices.memory <= limit, prices.seconds, np.inf)
        order = seconds.argsort(kind="stable")
        order = order[np.isfinite(seconds[order])]
        orders.append(order)
        if len(order):
            heap.append((float(seconds[order[0]]), i, 0, order))
    heapq.heapify(heap)
    while heap:
        _, i, rank, order = heapq.heappop(heap)
        prices = all_prices[i]
        yield prices, int(order[rank])
        if rank + 1 < len(order):
            next_seconds = float(prices.seconds[order[rank + 1]])
            heapq.heappush(heap, (next_seconds, i, rank + 1, order))


def distinct_sizes(
    problem: Problem, all_prices: Sequence[Prices], count: int
) -> list[Estimate]:
    """Returns the fastest candidates whose devices compute with other local sizes than those
    of all faster ones; none with pipeline stages.

    Args:
      problem: what was searched for.
      all_prices: the prices of all structures.
      count: how many are returned, at most.
    """
    result: dict[frozenset[tuple[str, int]], Estimate] = {}
    for prices, index in _fastest(problem, all_prices):
        if len(result) == count:
            break
        if prices.grid.stages == 1:
            shards = frozenset(_num_shards(prices, index).items())
            result.setdefault(shards, _estimate(prices, index))
    return list(result.values())


def _sizes(prices: Prices, index: int) -> tuple[int, ...]:
    """Returns the sizes of the axes of a candidate, in any order, and its microbatches."""
    grid = prices.grid
    sizes = [int(grid.axes[axis][index]) for axis, _ in prices.structure.axes]
    return (*sizes, int(grid.microbatches[index]))


def _num_shards(prices: Prices, index: int) -> dict[str, int]:
    """Returns into how many sections axes and microbatches divide each dimension."""
    grid = prices.grid
    counts = {"batch": int(grid.microbatches[index])}
    for axis, dims in prices.structure.axes:
        for dim in dims:
            counts[dim] = counts.get(dim, 1) * int(grid.axes[axis][index])
    return {dim: count for dim, count in counts.items() if count > 1}


def _estimate(prices: Prices, index: int) -> Estimate:
    """Returns a candidate without a plan."""
    grid = prices.grid
    settings = ordered(prices.structure, grid.orders[index])
    return Estimate(
        mesh_settings={"axes": grid.axes_text(index), **settings},
        choices=_choices(prices, index),
        seconds=float(prices.seconds[index]),
    )


def _choices(prices: Prices, index: int) -> dict[str, Any]:
    """Returns the further arguments of the program of a candidate."""
    choices = dict(prices.structure.choices)
    microbatches = int(prices.grid.microbatches[index])
    if microbatches > 1:
        choices[MICROBATCHES] = microbatches
    return choices


def plan_in_full(problem: Problem, prices: Prices, index: int) -> Candidate | None:
    """Returns a candidate with its own plan; None: the program does not allow it."""
    grid = prices.grid
    choices = _choices(prices, index)
    settings = ordered(prices.structure, grid.orders[index])
    try:
        outline = problem.outline(grid.axes_text(index), settings, choices)
    except MeshtfError:
        return None
    return Candidate(
        problem,
        axes=grid.axes_text(index),
        choices=choices,
        seconds=outline.time.seconds,
        estimated=float(prices.seconds[index]),
        outline=outline,
        **settings,
    )


def pareto_front(all_prices: Sequence[Prices]) -> list[tuple[float, float, str]]:
    """Returns (seconds, bytes, text) of all candidates that no other one beats in both time
    and memory, from the fastest on; estimates.
    """
    if not all_prices:
        return []
    seconds = np.concatenate([prices.seconds for prices in all_prices])
    memory = np.concatenate([prices.memory for prices in all_prices])
    owners = [(p, i) for p in all_prices for i in range(len(p.grid))]
    front = []
    least = np.inf
    for index in np.lexsort((memory, seconds)):
        if memory[index] < least:
            least = memory[index]
            prices, i = owners[index]
            settings = ordered(prices.structure, prices.grid.orders[i])
            stored = settings["variable_layout"] or settings["optimizer_layout"]
            text = f"{prices.grid.axes_text(i)} | {settings['layout']}"
            if stored:
                text += f" | {prices.structure.storage} {stored}"
            for name, value in prices.structure.choices:
                text += f" | {name}={value}"
            if prices.grid.stages == 1 and prices.grid.microbatches[i] > 1:
                text += f" | {MICROBATCHES}={prices.grid.microbatches[i]}"
            front.append((float(seconds[index]), float(memory[index]), text))
    return front
