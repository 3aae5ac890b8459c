"""The search for the best split of layers into chunks, by dynamic programming.

A split is a list of chunks of consecutive layers, one chunk for each stage. Costs are
integers, so their sums are exact.

>>> search = SplitSearch([4, 1, 1, 1, 1, 4], stages=3, memory=None, limit=None)
>>> search.least_maximum()
4
>>> search.least_squares(min_cost=0, max_cost=4)
(1, 4, 1)
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

# The bytes of each layer; or a function (stage, start, end) -> bytes of the chunk with
# layers [start, end) on this stage.
Memory = Sequence[float] | Callable[[int, int, int], float]


class ChunkRange(NamedTuple):
    """A chunk of a split: the layers [start, end) on a stage, and their bytes."""

    stage: int
    start: int
    end: int
    bytes: float

    def __str__(self) -> str:
        layers = f"layers {self.start} to {self.end - 1}"
        if self.end == self.start + 1:
            layers = f"layer {self.start}"
        return f"{layers} in chunk {self.stage}, {self.bytes:,.0f} bytes"


class SplitSearch:
    """The possible chunks of a split, and searches for the best splits.

    A chunk that starts at a given layer may end at any layer up to its largest end, beyond
    which it has too many bytes or costs too much. This leaves so few starts and ends that
    deep models are split quickly.

    Args:
      costs: the cost of each layer.
      stages: the number of stages.
      memory: the bytes of layers; None: 0 for each.
      limit: the most bytes of a chunk; None: no limit.

    Attributes:
      layers: the number of layers.
      largest_layer: the cost of the most expensive layer.
      sums: the cumulative costs: sums[i] is the cost of layers [0, i).
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
            # Every chunk may end after the last layer.
            return [[self.layers] * self.layers] * self.stages

        def largest_end(stage: int, start: int) -> int:
            ends = range(start + 1, self.layers + 1)
            # The bytes do not decrease with the end, so bisection finds the first end that
            # exceeds the limit.
            num_possible = bisect.bisect_right(
                ends, self.limit, key=lambda end: self.bytes(stage, start, end)
            )
            return start + num_possible

        def largest_ends(stage: int) -> list[int]:
            return [largest_end(stage, start) for start in range(self.layers)]

        if callable(self.memory):
            return [largest_ends(stage) for stage in range(self.stages)]
        # The bytes of layers do not depend on the stage.
        return [largest_ends(stage=0)] * self.stages

    def ends(self, max_cost: int) -> Iterator[list[int]]:
        """Yields for each stage a list: for each start, the largest end of a chunk within
        the memory limit that costs at most `max_cost`.
        """
        # For each start, the last end with sums[end] - sums[start] <= max_cost.
        cost_ends = [
            bisect.bisect_right(self.sums, cost + max_cost, start) - 1
            for start, cost in enumerate(self.sums[:-1])
        ]
        for memory_ends in self._memory_ends:
            if self.limit == math.inf:
                yield cost_ends
            else:
                yield [*map(min, cost_ends, memory_ends)]

    def possible_starts(self, max_cost: int) -> list[int]:
        """Returns for each stage the layers at which it may start, as a bit mask: bit i
        is set if the stage may start at layer i.

        The list is empty if every split has a chunk that costs more than `max_cost`.
        """
        # The first stage starts at layer 0, so bit 0 is set; every other stage starts where
        # the stage before it ends.
        starts = [1]
        all_layers = (1 << self.layers) - 1
        for largest_ends in self.ends(max_cost):
            ends = 0
            for start in _bits(starts[-1] & all_layers):
                # Sets the bits start + 1 to largest_ends[start].
                ends |= (2 << largest_ends[start]) - (2 << start)
            starts.append(ends)
        # The last stage must be able to end after the last layer: bit `self.layers`, the
        # highest one, must be set.
        if starts[-1] <= all_layers:
            return []
        return [mask & all_layers for mask in starts[:-1]]

    def least_maximum(self) -> int:
        """Returns the least cost that the largest chunk of a split can have."""
        mean_cost = math.ceil(Fraction(self.sums[-1], self.stages))
        low = max(self.largest_layer, mean_cost)
        high = low
        # Raises the upper bound by a sixteenth until a split keeps to it.
        while not self.possible_starts(high):
            low = high + 1
            high += high // 16 + 1
        return least_integer(
            low, high, lambda max_cost: bool(self.possible_starts(max_cost))
        )

    def least_squares(self, min_cost: int, max_cost: int) -> tuple[int, ...]:
        """Returns the split whose chunks' costs have the least sum of squares, among the
        splits whose chunks cost `min_cost` to `max_cost` each.

        Since all splits have the same mean cost, this split has the least variance. The
        algorithm is dynamic programming over the stages, from the last one to the first.
        """
        # {start: the least sum of squares of chunks that cover the layers [start, end)}.
        squares = {self.layers: 0}
        # For each stage, from the last to the first: {start: end of the best chunk}.
        best_ends: list[dict[int, int]] = []
        ranges = [*zip(self.possible_starts(max_cost), self.ends(max_cost))]
        for starts, largest_ends in reversed(ranges):
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
        """Returns ({start: least sum of squares}, {start: end of the best chunk}) for a
        stage: the sum is over the chunks of this stage and the stages after it.

        Args:
          starts: the possible starts of the stage's chunk, as a bit mask.
          largest_ends: for each start, the largest end of the chunk.
          min_cost: the least cost of a chunk.
          later_squares: {start: least sum of squares} of the next stage.
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
        """Returns (least cost, greatest cost) that a chunk can have in a split whose
        variance is at most the variance of the split `sizes`.

        Let Q be the sum of squares of the costs of `sizes`, and S their sum. In a split
        into K chunks of which one costs c, the sum of squares is least if the other chunks
        are equal. So c^2 + (S - c)^2 / (K - 1) <= Q, which gives
        |K c - S| <= sqrt((K - 1) (K Q - S^2)).
        """
        total = self.sums[-1]
        k = self.stages
        squares = 0
        for chunk in self.chunks(sizes):
            cost = self.sums[chunk.end] - self.sums[chunk.start]
            squares += cost**2
        # Rounded up, so that the bounds never exclude a split.
        deviation = math.isqrt((k - 1) * (k * squares - total**2)) + 1
        lower = (total - deviation) // k
        upper = (total + deviation) // k + 1
        return max(0, lower), upper

    def chunks(self, sizes: Sequence[int]) -> Iterator[ChunkRange]:
        """Yields the chunks of a split."""
        borders = [0, *itertools.accumulate(sizes)]
        for stage, (start, end) in enumerate(itertools.pairwise(borders)):
            num_bytes = self.bytes(stage, start, end)
            yield ChunkRange(stage, start=start, end=end, bytes=num_bytes)

    def largest(self, sizes: Sequence[int]) -> ChunkRange:
        """Returns the chunk of a split that has the most bytes."""
        return max(self.chunks(sizes), key=lambda chunk: chunk.bytes)


def _bits(mask: int) -> Iterator[int]:
    """Yields the indices of the bits that are set, from the lowest to the highest."""
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


def least_integer(low: int, high: int, is_enough: Callable[[int], bool]) -> int:
    """Returns the least integer n in [low, high] with is_enough(n), by bisection.

    is_enough(high) must be true, and is_enough(n) must imply is_enough(n + 1).
    """
    while low < high:
        middle = (low + high) // 2
        if is_enough(middle):
            high = middle
        else:
            low = middle + 1
    return low
