"""The order of candidates: the fastest first, and of equally fast ones the simplest.

for prices, index, seconds in fastest(problem, all_prices):
    ...
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from meshtf.layout_search.pricing import Prices
from meshtf.layout_search.problem import Problem
from meshtf.layout_search.space import Structure

Item = TypeVar("Item")
# Candidates whose estimated memory exceeds the limit by more than this are not planned: the
# estimate is for the moment of another plan's peak.
MEMORY_MARGIN = 1.1
# Of candidates whose seconds are within this factor of the fastest, the simplest comes first:
# forecasts are not more certain than that.
EQUAL = 1.01


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


def simplest_first(timed: Iterable[tuple[float, Structure, Item]]) -> list[Item]:
    """Returns items in the order of their seconds, but of those that are as fast as the fastest
    of them, the one with the fewest axes and rules first.

    Args:
      timed: (seconds, structure, item) of each item.
    """
    remaining = sorted(timed, key=lambda entry: entry[0])
    result: list[Item] = []
    while remaining:
        limit = remaining[0][0] * EQUAL
        equal = [entry for entry in remaining if entry[0] <= limit]
        remaining = remaining[len(equal) :]
        equal.sort(key=lambda entry: _complexity(entry[1]))
        result += [item for _, _, item in equal]
    return result


def _complexity(structure: Structure) -> tuple[int, int]:
    """Returns the numbers of axes and of rules of a layout."""
    num_rules = sum(len(dims) for _, dims in structure.axes)
    if structure.storage != "replicated":
        num_rules += 1
    return len(structure.axes), num_rules


def fastest(
    problem: Problem, all_prices: Sequence[Prices]
) -> Iterator[tuple[Prices, int, float]]:
    """Yields (prices, index, seconds) of candidates that may fit, from the fastest on, but of
    those that are as fast as the first the simplest ones first.

    Args:
      problem: what is searched for.
      all_prices: the prices of all structures.
    """
    limit = problem.memory * MEMORY_MARGIN
    all_seconds = []
    orders = []
    for prices in all_prices:
        seconds = np.where(prices.memory <= limit, prices.seconds, np.inf)
        order = seconds.argsort(kind="stable")
        order = order[np.isfinite(seconds[order])]
        all_seconds.append(seconds[order])
        orders.append(order)
    least = min((float(s[0]) for s in all_seconds if len(s)), default=0.0)
    heap: list[tuple[float, tuple[int, int], float, int, int]] = []

    def push(i: int, rank: int) -> None:
        if rank < len(orders[i]):
            value = float(all_seconds[i][rank])
            complexity = _complexity(all_prices[i].structure)
            rounded = least if value <= least * EQUAL else value
            heapq.heappush(heap, (rounded, complexity, value, i, rank))

    for i in range(len(orders)):
        push(i, 0)
    while heap:
        _, _, value, i, rank = heapq.heappop(heap)
        yield all_prices[i], int(orders[i][rank]), value
        push(i, rank + 1)


def nth_seconds(problem: Problem, all_prices: Sequence[Prices], count: int) -> float:
    """Returns the estimated seconds of the last of `count` candidates that fit, the fastest
    ones; infinity if there are fewer.
    """
    estimates = [np.full(count, np.inf)]
    for prices in all_prices:
        fits = prices.memory <= problem.memory
        estimates.append(prices.seconds[fits])
    return float(np.partition(np.concatenate(estimates), count - 1)[count - 1])


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
    for prices, index, _ in fastest(problem, all_prices):
        if len(result) == count:
            break
        if not prices.grid.stage_axis:
            shards = frozenset(num_shards(prices, index).items())
            result.setdefault(shards, estimate_of(prices, index))
    return list(result.values())


def num_shards(prices: Prices, index: int) -> dict[str, int]:
    """Returns into how many sections axes and microbatches divide each dimension."""
    grid = prices.grid
    counts = {"batch": int(grid.microbatches[index])}
    for axis, dims in prices.structure.axes:
        for dim in dims:
            counts[dim] = counts.get(dim, 1) * int(grid.axes[axis][index])
    return {dim: count for dim, count in counts.items() if count > 1}


def estimate_of(prices: Prices, index: int) -> Estimate:
    """Returns a candidate without a plan."""
    axes = prices.grid.axes_text(index)
    return Estimate(
        mesh_settings={"axes": axes, **prices.mesh_settings(index)},
        choices=prices.choices(index),
        seconds=float(prices.seconds[index]),
    )
