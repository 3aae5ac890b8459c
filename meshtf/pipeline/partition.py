"""Splits the layers of a model into chunks of consecutive layers, one for each stage of
a pipeline.

The slowest chunk determines the speed of a pipeline. So the default split minimizes the
cost of the largest chunk and, among equally good splits, the variance of the chunks'
costs:

>>> split([4, 1, 1, 1, 1, 4], stages=3)
(1, 4, 1)
>>> split([4, 1, 1, 1, 1, 4], stages=3, memory=[1, 1, 1, 1, 1, 1], limit=3)
(1, 3, 2)

Costs are compared exactly: they become integer multiples of one common unit, so chunks
of equal cost are equal, whether costs are counted (integers) or measured (floats).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from numbers import Integral
from typing import NamedTuple, NoReturn

from meshtf.errors import PlanError, explain_error, near_misses
from meshtf.names.arguments import (
    as_int,
    as_numbers,
    as_sequence,
    check_floats,
    check_ints,
)
from meshtf.pipeline.split_search import ChunkRange, Memory, SplitSearch, least_integer


class Layer(NamedTuple):
    """A layer's name, cost, number of parameters, and bytes of activations.

    The unit of the cost depends on how it was obtained: see `costs.cost_unit`.
    """

    name: str
    cost: float
    parameters: int = 0
    activations: float = 0


def split(
    costs: Sequence[float],
    stages: int,
    method: str | Sequence[int] = "min_max",
    memory: Memory | None = None,
    limit: float | None = None,
) -> tuple[int, ...]:
    """Returns the number of consecutive layers that each stage gets, at least one.

    Args:
      costs: the cost of computing each layer, in any unit.
      stages: the number of stages.
      method: one of these names, or the number of layers of each stage. Of equally good
        splits, the one whose earlier stages have fewer layers is chosen, since earlier
        stages store activations of more microbatches.
          "min_max": minimizes the cost of the largest chunk and, among such splits, the
            variance of the chunks' costs.
          "least_variance": minimizes the variance of the chunks' costs, the rule of GPipe
            (Huang et al. 2019, arXiv:1811.06965, section 2.2).
          "uniform": chunks have equal numbers of layers, or differ by one layer.
      memory: the bytes of each layer; or a function (stage, start, end) -> bytes of the
        chunk with layers [start, end) on this stage, which must not decrease with `end`.
      limit: the most bytes of a chunk; None: no limit.

    Raises:
      PlanError: there are fewer layers than stages, or no split keeps to the limit.
    """
    _check_arguments(costs, stages, memory=memory, limit=limit)
    all_free = not any(costs)
    is_uniform = isinstance(method, str) and method == "uniform"
    if all_free or is_uniform:
        costs = [1] * len(costs)
    search = SplitSearch(_as_integers(costs), stages, memory=memory, limit=limit)
    if not isinstance(method, str):
        sizes = as_sequence(
            "method", method, "a name of a method, or numbers of layers"
        )
        return _user_split(search, tuple(as_int("method", size) for size in sizes))
    if method not in ("min_max", "uniform", "least_variance"):
        methods = ("min_max", "least_variance", "uniform")
        similar = near_misses(method, methods)
        raise PlanError(
            explain_error(
                f"there is no method to split layers called {method!r}.",
                methods=", ".join(methods),
                way_out=f"Did you mean {similar}?" if similar else "",
            )
        )
    if not search.possible_starts(search.sums[-1]):
        _raise_over_limit(search)
    sizes = search.least_squares(min_cost=0, max_cost=search.least_maximum())
    if method != "least_variance":
        return sizes
    # The split with the least variance may have a larger chunk: search again, among all
    # splits whose variance can be as low as the one just found.
    min_cost, max_cost = search.bounds(sizes)
    return search.least_squares(min_cost, max_cost)


def _check_arguments(
    costs: Sequence[float], stages: int, memory: Memory | None, limit: float | None
) -> None:
    """Raises an error for arguments that no split fits."""
    check_ints(stages=stages)
    # `as_numbers` raises ArgumentError unless all elements are numbers.
    as_numbers("costs", costs, "a list of numbers")
    if limit is not None:
        check_floats(limit=limit)
    if memory is not None and not callable(memory):
        as_numbers("memory", memory, "bytes of each layer, or a function")
    if not 1 <= stages <= len(costs):
        raise PlanError(
            explain_error(
                f"{len(costs)} layers cannot be split into {stages} chunks: each chunk "
                "needs a layer.",
                way_out=f"Take 1 to {len(costs)} stages, or write the model as more "
                "layers.",
            )
        )
    for i, cost in enumerate(costs):
        if not (math.isfinite(cost) and cost >= 0):
            raise PlanError(
                f"layer {i} costs {cost}; costs are finite and not negative."
            )
    if memory is not None and not callable(memory) and len(memory) != len(costs):
        raise PlanError(f"there are {len(costs)} layers, but bytes of {len(memory)}.")
    if limit is not None and memory is None:
        raise PlanError(
            "a limit needs the bytes of layers: split(..., memory=[...], limit=...)."
        )


def _as_integers(costs: Sequence[float]) -> list[int]:
    """Returns costs as multiples of one unit, so that their sums are exact."""
    fractions = []
    for cost in costs:
        # `Fraction` takes Python's numbers; a cost may be one of NumPy.
        exact_cost = int(cost) if isinstance(cost, Integral) else float(cost)
        fractions.append(Fraction(exact_cost))
    denominator = math.lcm(*(fraction.denominator for fraction in fractions))
    return [int(fraction * denominator) for fraction in fractions]


def _user_split(search: SplitSearch, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the numbers of layers that the user gives. Raises PlanError if they do not
    add up to all layers, or exceed the memory limit.
    """
    if len(sizes) != search.stages or sum(sizes) != search.layers or min(sizes) < 1:
        raise PlanError(
            explain_error(
                f"the split {sizes} does not fit {search.layers} layers and "
                f"{search.stages} chunks.",
                way_out="Give one number for each chunk, at least 1 each, that sum up "
                "to all layers.",
            )
        )
    largest = search.largest(sizes)
    if largest.bytes > search.limit:
        raise PlanError(
            explain_error(
                f"the split {sizes} exceeds the memory limit.",
                largest_chunk=largest,
                limit=f"{search.limit:,.0f} bytes",
                over=f"{largest.bytes - search.limit:,.0f} bytes",
                way_out='"min_max" looks for a split that fits.',
            )
        )
    return sizes


def _raise_over_limit(search: SplitSearch) -> NoReturn:
    """Raises the error for a memory limit that every split exceeds. The message names a
    chunk that is too large.
    """
    limit = search.limit
    chunk = _too_large_chunk(search)
    raise PlanError(
        explain_error(
            f"no split of {search.layers} layers into {search.stages} chunks keeps to the "
            "memory limit.",
            limit=f"{limit:,.0f} bytes",
            needed=f"{chunk}, {chunk.bytes - limit:,.0f} over the limit",
            way_out="Take more stages, a smaller microbatch, or recompute activations.",
        )
    )


def _too_large_chunk(search: SplitSearch) -> ChunkRange:
    """Returns a single layer that exceeds the limit or, if none does, the largest chunk
    of the split that needs the least memory.
    """
    num_stages = search.stages
    total_cost = search.sums[-1]

    def smallest_chunk(layer: int) -> ChunkRange:
        """Returns the chunk of one layer, at the stage where it has the fewest bytes."""
        chunks = []
        for stage in range(num_stages):
            start = layer
            end = layer + 1
            num_bytes = search.bytes(stage, start, end)
            chunks.append(ChunkRange(stage, start=start, end=end, bytes=num_bytes))
        return min(chunks, key=lambda chunk: chunk.bytes)

    single_layers = [smallest_chunk(layer) for layer in range(search.layers)]
    largest = max(single_layers, key=lambda chunk: chunk.bytes)
    if largest.bytes > search.limit:
        return largest
    costs = [end - start for start, end in itertools.pairwise(search.sums)]

    def search_with(limit: int) -> SplitSearch:
        """Returns the same search with another memory limit."""
        return SplitSearch(costs, num_stages, memory=search.memory, limit=limit)

    def fits(limit: int) -> bool:
        """Returns whether any split keeps to a memory limit."""
        return bool(search_with(limit).possible_starts(total_cost))

    # The least limit is at most the memory that an arbitrary split needs: here one layer for
    # each stage, and all remaining layers for the last one.
    num_single = num_stages - 1
    arbitrary_split = [1] * num_single + [search.layers - num_single]
    low = math.floor(search.limit)
    high = math.ceil(search.largest(arbitrary_split).bytes)
    least_limit = least_integer(low, high, fits)
    sizes = search_with(least_limit).least_squares(min_cost=0, max_cost=total_cost)
    return search.largest(sizes)
