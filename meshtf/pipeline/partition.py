"""How layers are split into chunks: one chunk of consecutive layers for each stage of a
pipeline.

The slowest chunk sets the pace of a pipeline, so by default the split is the one whose
largest chunk is the smallest, and of these the one whose chunks differ least:

>>> split([4, 1, 1, 1, 1, 4], stages=3)
(1, 4, 1)
>>> split([4, 1, 1, 1, 1, 4], stages=3, memory=[1, 1, 1, 1, 1, 1], limit=3)
(1, 3, 2)

Costs are compared exactly: they become integer multiples of one common unit, so chunks
of equal cost are equal, whether costs are counted (integers) or measured (floats).
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from numbers import Integral
from typing import NamedTuple, NoReturn

from meshtf.errors import PlanError, explain_error, near_misses
from meshtf.names.arguments import as_float, as_int, as_numbers, as_sequence

# Bytes of each layer, or of the chunk of a stage that has the layers [start, end).
Memory = Sequence[float] | Callable[[int, int, int], float]


class Layer(NamedTuple):
    """A layer's name, cost, number of parameters, and bytes of activations."""

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
    """Returns how many consecutive layers each stage gets, none of them without a
    layer.

    Args:
      costs: what each layer costs to compute, in any unit.
      method: "min_max": the cost of the largest chunk is the least possible, and among such
        splits the variance of costs is. "least_variance": the variance of chunks' costs
        is the least possible, the rule of GPipe (Huang et al. 2019, arXiv:1811.06965,
        section 2.2). "uniform": chunks have equal numbers of layers, give or take one.
        Or the numbers of layers themselves. Where splits are equally good, earlier
        stages get fewer layers, since they hold the most microbatches.
      memory: bytes of each layer; or a function of a stage, its first layer and the one
        after its last, which returns bytes of the chunk. One more layer at the end never
        makes them less.
      limit: the most bytes of a chunk.

    Raises:
      PlanError: there are fewer layers than stages, or no split keeps to the limit.
    """
    _check(costs, stages, memory, limit)
    if not any(costs) or isinstance(method, str) and method == "uniform":
        costs = [1] * len(costs)
    search = _SplitSearch(_as_integers(costs), stages, memory, limit)
    if not isinstance(method, str):
        sizes = as_sequence(
            "method", method, "a name of a method, or numbers of layers"
        )
        return _explicit(search, tuple(as_int("method", size) for size in sizes))
    if method not in ("min_max", "uniform", "least_variance"):
        methods = ("min_max", "least_variance", "uniform")
        raise PlanError(
            explain_error(
                f"there is no method to split layers called {method!r}.",
                methods=", ".join(methods),
                way_out=f"Did you mean {near_misses(method, methods)}?"
                if near_misses(method, methods)
                else "",
            )
        )
    if not search.reach(search.sums[-1]):
        _refuse(search)
    sizes = search.least_squares(0, search.least_maximum())
    if method != "least_variance":
        return sizes
    min_cost, max_cost = search.bounds(sizes)
    return search.least_squares(min_cost, max_cost)


def _check(
    costs: Sequence[float], stages: int, memory: Memory | None, limit: float | None
) -> None:
    """Raises an error for arguments that no split fits."""
    as_int("stages", stages)
    as_numbers("costs", costs, "a list of numbers")
    if limit is not None:
        as_float("limit", limit)
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
    fractions = [
        Fraction(int(c) if isinstance(c, Integral) else float(c)) for c in costs
    ]
    denominator = math.lcm(*(c.denominator for c in fractions))
    return [int(c * denominator) for c in fractions]


def _explicit(search: _SplitSearch, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the sizes that the user gives. Raises PlanError if they do not fit."""
    if len(sizes) != search.stages or sum(sizes) != search.layers or min(sizes) < 1:
        raise PlanError(
            explain_error(
                f"the split {sizes} does not fit {search.layers} layers and "
                f"{search.stages} chunks.",
                way_out="Give one number for each chunk, at least 1 each, that sum up "
                "to all layers.",
            )
        )
    worst = search.largest(sizes)
    if worst.bytes > search.limit:
        raise PlanError(
            explain_error(
                f"the split {sizes} exceeds the memory limit.",
                largest_chunk=worst,
                limit=f"{search.limit:,.0f} bytes",
                over=f"{worst.bytes - search.limit:,.0f} bytes",
                way_out='"min_max" looks for a split that fits.',
            )
        )
    return sizes


class _Chunk(NamedTuple):
    """A chunk of a split: the layers [start, end), and their bytes."""

    stage: int
    start: int
    end: int
    bytes: float

    def size(self) -> float:
        """Returns its bytes."""
        return self.bytes

    def __str__(self) -> str:
        layers = f"layers {self.start} to {self.end - 1}"
        if self.end == self.start + 1:
            layers = f"layer {self.start}"
        return f"{layers} in chunk {self.stage}, {self.bytes:,.0f} bytes"


class _SplitSearch:
    """The possible chunks of a split, and searches for the best ones.

    A chunk of a stage that starts at a layer may end anywhere up to where it gets too
    large, in bytes or in cost. So few starts and ends are possible that deep models are
    split quickly.
    """

    def __init__(
        self,
        costs: Sequence[int],
        stages: int,
        memory: Memory | None,
        limit: float | None,
    ) -> None:
        self.layers = len(costs)
        self.stages = stages
        self.memory = memory
        self.limit = math.inf if limit is None else limit
        self.largest_layer = max(costs)
        self.sums = [0, *itertools.accumulate(costs)]
        layer_bytes: Sequence[float] = [0] * len(costs)
        if memory is not None and not callable(memory):
            layer_bytes = memory
        self._byte_sums = [0, *itertools.accumulate(layer_bytes)]
        self._memory_ends = self._largest_ends()

    def bytes(self, stage: int, start: int, end: int) -> float:
        """Returns the bytes of a chunk."""
        if callable(self.memory):
            return self.memory(stage, start, end)
        return self._byte_sums[end] - self._byte_sums[start]

    def _largest_ends(self) -> list[list[int]]:
        """Returns for each stage and start the largest end of a chunk within the memory
        limit.
        """
        if self.limit == math.inf:
            return [[self.layers] * self.layers] * self.stages

        def largest_end(stage: int, start: int) -> int:
            return start + bisect.bisect_right(
                range(start + 1, self.layers + 1),
                self.limit,
                key=lambda end: self.bytes(stage, start, end),
            )

        def ends(stage: int) -> list[int]:
            return [largest_end(stage, start) for start in range(self.layers)]

        if callable(self.memory):
            return [ends(stage) for stage in range(self.stages)]
        return [ends(0)] * self.stages

    def ends(self, max_cost: int) -> Iterator[list[int]]:
        """Yields for each stage and start the largest end of a chunk within the memory
        limit that costs at most `max_cost`.
        """
        cost_ends = [
            bisect.bisect_right(self.sums, cost + max_cost, start) - 1
            for start, cost in enumerate(self.sums[:-1])
        ]
        for memory_ends in self._memory_ends:
            if self.limit == math.inf:
                yield cost_ends
            else:
                yield [*map(min, cost_ends, memory_ends)]

    def reach(self, max_cost: int) -> list[int]:
        """Returns for each stage the layers at which it may start, as a bit mask.

        The list is empty if no split has chunks that cost at most `max_cost`.
        """
        starts = [1]
        all_layers = (1 << self.layers) - 1
        for stage_ends in self.ends(max_cost):
            ends = 0
            for start in _bits(starts[-1] & all_layers):
                # Bits start + 1 to stage_ends[start].
                ends |= (2 << stage_ends[start]) - (2 << start)
            starts.append(ends)
        if starts[-1] <= all_layers:
            return []
        return [mask & all_layers for mask in starts[:-1]]

    def least_maximum(self) -> int:
        """Returns the least cost that the largest chunk of a split can have."""
        low = max(self.largest_layer, -(-self.sums[-1] // self.stages))
        high = low
        while not self.reach(high):
            low = high + 1
            high += high // 16 + 1
        return _least(low, high, lambda max_cost: bool(self.reach(max_cost)))

    def least_squares(self, min_cost: int, max_cost: int) -> tuple[int, ...]:
        """Returns the split with the least sum of squares, among chunks that cost
        `min_cost` to `max_cost`.

        Since all splits have the same mean cost, it is the split of the least variance.
        This is dynamic programming over the stages, from the last one to the first.
        """
        # By start: the least sum of squares of the chunks from there on.
        squares = {self.layers: 0}
        # For each stage, by start: the end of the chunk that has this sum.
        best_ends: list[dict[int, int]] = []
        for starts, largest_ends in reversed(
            [*zip(self.reach(max_cost), self.ends(max_cost))]
        ):
            later_squares = squares
            squares = {}
            ends = {}
            for start in _bits(starts):
                cost = self.sums[start]
                least_end = bisect.bisect_left(self.sums, cost + min_cost, start + 1)
                for end in range(least_end, largest_ends[start] + 1):
                    if end not in later_squares:
                        continue
                    total = later_squares[end] + (self.sums[end] - cost) ** 2
                    if start not in squares or total < squares[start]:
                        squares[start] = total
                        ends[start] = end
            best_ends.append(ends)
        borders = [0]
        for ends in reversed(best_ends):
            borders.append(ends[borders[-1]])
        return tuple(end - start for start, end in itertools.pairwise(borders))

    def bounds(self, sizes: Sequence[int]) -> tuple[int, int]:
        """Returns the least and the greatest cost of a chunk in a split whose variance
        is at most that of `sizes`.

        If one chunk costs c, the sum of squares is least where the other chunks are equal,
        so c^2 + (sum - c)^2 / (K - 1) is at most the sum of squares.
        """
        total = self.sums[-1]
        k = self.stages
        squares = sum(
            (self.sums[chunk.end] - self.sums[chunk.start]) ** 2
            for chunk in self.chunks(sizes)
        )
        deviation = math.isqrt((k - 1) * (k * squares - total**2)) + 1
        return max(0, (total - deviation) // k), (total + deviation) // k + 1

    def chunks(self, sizes: Sequence[int]) -> Iterator[_Chunk]:
        """Yields the chunks of a split."""
        borders = [0, *itertools.accumulate(sizes)]
        for stage, (start, end) in enumerate(itertools.pairwise(borders)):
            yield _Chunk(stage, start, end, self.bytes(stage, start, end))

    def largest(self, sizes: Sequence[int]) -> _Chunk:
        """Returns the chunk of a split that takes the most bytes."""
        return max(self.chunks(sizes), key=_Chunk.size)


def _bits(mask: int) -> Iterator[int]:
    """Yields the indices of the bits that are set, from the lowest to the highest."""
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


def _least(low: int, high: int, good: Callable[[int], bool]) -> int:
    """Returns the least integer from low to high that is good, by bisection.

    `high` is good, and so is every integer above a good one.
    """
    while low < high:
        middle = (low + high) // 2
        if good(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _refuse(search: _SplitSearch) -> NoReturn:
    """Raises the error for a limit that no split keeps to; it names a chunk that is too
    large.
    """
    limit = search.limit
    worst = _too_large(search)
    raise PlanError(
        explain_error(
            f"no split of {search.layers} layers into {search.stages} chunks keeps to the "
            "memory limit.",
            limit=f"{limit:,.0f} bytes",
            needed=f"{worst}, {worst.bytes - limit:,.0f} over the limit",
            way_out="Take more stages, a smaller microbatch, or recompute activations.",
        )
    )


def _too_large(search: _SplitSearch) -> _Chunk:
    """Returns a single layer that exceeds the limit, or the largest chunk of the split
    that needs the least memory.
    """
    k = search.stages
    total = search.sums[-1]

    def smallest_chunk(layer: int) -> _Chunk:
        """Returns the chunk of one layer, at the stage where it has the fewest bytes."""
        sizes = [search.bytes(stage, layer, layer + 1) for stage in range(k)]
        stage = sizes.index(min(sizes))
        return _Chunk(stage, layer, layer + 1, sizes[stage])

    largest = max(map(smallest_chunk, range(search.layers)), key=_Chunk.size)
    if largest.bytes > search.limit:
        return largest
    costs = [end - start for start, end in itertools.pairwise(search.sums)]

    def limited(limit: int) -> _SplitSearch:
        return _SplitSearch(costs, k, search.memory, limit)

    any_split = [1] * (k - 1) + [search.layers - k + 1]
    low = math.floor(search.limit)
    high = math.ceil(search.largest(any_split).bytes)
    least = _least(low, high, lambda limit: bool(limited(limit).reach(total)))
    return search.largest(limited(least).least_squares(0, total))
