"""The search for the best split of layers into chunks, by dynamic programming.

A split is a list of chunks of consecutive layers, one for each stage. Costs are integers,
so sums are exact.

>>> search = SplitSearch([4, 1, 1, 1, 1, 4], stages=3, memory=None, limit=None)
>>> search.least_maximum()
4
>>> search.least_squares(0, 4)
(1, 4, 1)
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

# Bytes of each layer, or of the chunk of a stage that has the layers [start, end).
Memory = Sequence[float] | Callable[[int, int, int], float]


class ChunkRange(NamedTuple):
    """A chunk of a split: the layers from start to below end, and their bytes."""

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


class SplitSearch:
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
        return least_integer(low, high, lambda max_cost: bool(self.reach(max_cost)))

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
        stages = [*zip(self.reach(max_cost), self.ends(max_cost))]
        for starts, largest_ends in reversed(stages):
            squares, ends = self._best_chunks(starts, largest_ends, min_cost, squares)
            best_ends.append(ends)
        sizes = []
        start = 0
        for ends in reversed(best_ends):
            sizes.append(ends[start] - start)
            start = ends[start]
        return tuple(sizes)

    def _best_chunks(
        self,
        starts: int,
        largest_ends: Sequence[int],
        min_cost: int,
        later_squares: Mapping[int, int],
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Returns, by the start of a stage's chunk, the least sum of squares from this
        chunk on, and the end of the chunk that has this sum.

        Args:
          starts: the possible starts, as a bit mask.
          largest_ends: the largest end for each start.
          min_cost: the least cost of a chunk.
          later_squares: by the start of the next chunk, the least sum of squares from
            that chunk on.
        """
        squares: dict[int, int] = {}
        ends: dict[int, int] = {}
        for start in _bits(starts):
            cost_before = self.sums[start]
            least_cost = cost_before + min_cost
            least_end = bisect.bisect_left(self.sums, least_cost, start + 1)
            for end in range(least_end, largest_ends[start] + 1):
                if end not in later_squares:
                    continue
                cost = self.sums[end] - cost_before
                total = later_squares[end] + cost**2
                if start not in squares or total < squares[start]:
                    squares[start] = total
                    ends[start] = end
        return squares, ends

    def bounds(self, sizes: Sequence[int]) -> tuple[int, int]:
        """Returns the least and the greatest cost of a chunk in a split whose variance
        is at most that of `sizes`.

        If one chunk costs c, the sum of squares is least where the other chunks are equal,
        so c^2 + (sum - c)^2 / (K - 1) is at most the sum of squares.
        """
        total = self.sums[-1]
        k = self.stages
        squares = 0
        for chunk in self.chunks(sizes):
            cost = self.sums[chunk.end] - self.sums[chunk.start]
            squares += cost**2
        deviation = math.isqrt((k - 1) * (k * squares - total**2)) + 1
        lower = (total - deviation) // k
        upper = (total + deviation) // k + 1
        return max(0, lower), upper

    def chunks(self, sizes: Sequence[int]) -> Iterator[ChunkRange]:
        """Yields the chunks of a split."""
        borders = [0, *itertools.accumulate(sizes)]
        for stage, (start, end) in enumerate(itertools.pairwise(borders)):
            yield ChunkRange(stage, start, end, self.bytes(stage, start, end))

    def largest(self, sizes: Sequence[int]) -> ChunkRange:
        """Returns the chunk of a split that takes the most bytes."""
        return max(self.chunks(sizes), key=ChunkRange.size)


def _bits(mask: int) -> Iterator[int]:
    """Yields the indices of the bits that are set, from the lowest to the highest."""
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


def least_integer(low: int, high: int, good: Callable[[int], bool]) -> int:
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
