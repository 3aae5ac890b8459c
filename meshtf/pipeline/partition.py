"""How layers are split into cells: one cell of consecutive layers for each stage of a
pipeline.

The slowest cell sets the pace of a pipeline, so by default the split is the one whose
largest cell is the smallest, and of these the one whose cells differ least:

>>> split([4, 1, 1, 1, 1, 4], stages=3)
(1, 4, 1)
>>> split([4, 1, 1, 1, 1, 4], stages=3, memory=[1, 1, 1, 1, 1, 1], limit=3)
(1, 3, 2)

Numbers are exact: costs become whole numbers of one common unit first, so cells of
equal cost are equal, whether costs are counted (integers) or measured (floats).
"""

from __future__ import annotations

import bisect
import itertools
import math
import numbers
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple, NoReturn

from meshtf.errors import PlanError, explain_error, near_misses
from meshtf.names.arguments import as_float, as_int, as_numbers, as_sequence

# Bytes of each layer, or of the cell of a stage made of the layers [first, last).
Memory = Sequence[float] | Callable[[int, int, int], float]


class Layer(NamedTuple):
    """What is known of a layer: its name, its cost, how many parameters, bytes of
    activations.
    """

    name: str
    cost: float
    parameters: int = 0
    activations: float = 0


def split(
    costs: Sequence[float],
    stages: int,
    how: str | Sequence[int] = "min_max",
    memory: Memory | None = None,
    limit: float | None = None,
) -> tuple[int, ...]:
    """Returns how many consecutive layers each stage gets, none of them without a
    layer.

    Args:
      costs: what each layer costs to compute, in any unit.
      how: "min_max": the cost of the largest cell is the least possible, and among such
        splits the variance of costs is. "least_variance": the variance of cells' costs
        is the least possible, the rule of GPipe (Huang et al. 2019, arXiv:1811.06965,
        section 2.2). "uniform": cells have equal numbers of layers, give or take one.
        Or the numbers of layers themselves. Where splits are equally good, earlier
        stages get fewer layers, since they hold the most microbatches.
      memory: bytes of each layer; or a function of a stage, its first layer and the one
        after its last, which returns bytes of the cell. One more layer at the end never
        makes them less.
      limit: the most bytes of a cell.

    Raises:
      PlanError: there are fewer layers than stages, or no split keeps to the limit.
    """
    _check(costs, stages, memory, limit)
    if not any(costs) or isinstance(how, str) and how == "uniform":
        costs = [1] * len(costs)
    cells = _Cells(_whole_numbers(costs), stages, memory, limit)
    if not isinstance(how, str):
        sizes = as_sequence("how", how, "a way to split, or numbers of layers")
        return _explicit(cells, tuple(as_int("how", size) for size in sizes))
    if how not in ("min_max", "uniform", "least_variance"):
        ways = ("min_max", "least_variance", "uniform")
        raise PlanError(
            explain_error(
                f"there is no way to split layers called {how!r}.",
                ways=", ".join(ways),
                way_out=f"Did you mean {near_misses(how, ways)}?"
                if near_misses(how, ways)
                else "",
            )
        )
    if not cells.reach(cells.sums[-1]):
        _refuse(cells)
    most = cells.least_maximum()
    sizes = cells.least_squares(0, most)
    return (
        cells.least_squares(*cells.bounds(sizes)) if how == "least_variance" else sizes
    )


def _check(
    costs: Sequence[float], stages: int, memory: Memory | None, limit: float | None
) -> None:
    """Raises an error for what can be split in no way."""
    as_int("stages", stages)
    as_numbers("costs", costs, "a list of numbers")
    if limit is not None:
        as_float("limit", limit)
    if memory is not None and not callable(memory):
        as_numbers("memory", memory, "bytes of each layer, or a function")
    if not 1 <= stages <= len(costs):
        raise PlanError(
            explain_error(
                f"{len(costs)} layers cannot be split into {stages} cells: each cell "
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


def _whole_numbers(costs: Sequence[float]) -> list[int]:
    """Returns costs as multiples of one unit, so that their sums are exact."""
    exact = [
        Fraction(int(c) if isinstance(c, numbers.Integral) else float(c)) for c in costs
    ]
    unit = math.lcm(*(c.denominator for c in exact))
    return [int(c * unit) for c in exact]


def _explicit(cells: _Cells, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns sizes that the user gives, if they fit."""
    if len(sizes) != cells.stages or sum(sizes) != cells.layers or min(sizes) < 1:
        raise PlanError(
            explain_error(
                f"the split {sizes} does not fit {cells.layers} layers and "
                f"{cells.stages} cells.",
                way_out="Give one number for each cell, at least 1 each, that sum up "
                "to all layers.",
            )
        )
    worst = cells.largest(sizes)
    if worst.bytes > cells.limit:
        raise PlanError(
            explain_error(
                f"the split {sizes} exceeds the memory limit.",
                largest_cell=worst,
                limit=f"{cells.limit:,.0f} bytes",
                over=f"{worst.bytes - cells.limit:,.0f} bytes",
                way_out='how="min_max" looks for a split that fits.',
            )
        )
    return sizes


class _Cell(NamedTuple):
    """A cell of a split, and its bytes."""

    stage: int
    first: int
    last: int  # the one after its last layer
    bytes: float

    def size(self) -> float:
        """Returns its bytes."""
        return self.bytes

    def __str__(self) -> str:
        layers = (
            f"layer {self.first}"
            if self.last == self.first + 1
            else f"layers {self.first} to {self.last - 1}"
        )
        return f"{layers} in cell {self.stage}, {self.bytes:,.0f} bytes"


class _Cells:
    """The cells that may be, and the best choices among them.

    A cell of a stage that starts at a layer may end anywhere up to where it gets too
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
        self.layers, self.stages, self.memory = len(costs), stages, memory
        self.limit = math.inf if limit is None else limit
        self.largest_layer = max(costs)
        self.sums = [0, *itertools.accumulate(costs)]
        each = [0] * len(costs) if memory is None or callable(memory) else memory
        self._bytes = [0, *itertools.accumulate(each)]
        self._fits = self._ends()

    def bytes(self, stage: int, first: int, last: int) -> float:
        """Returns the bytes of a cell."""
        if callable(self.memory):
            return self.memory(stage, first, last)
        return self._bytes[last] - self._bytes[first]

    def _ends(self) -> list[list[int]]:
        """Returns for each stage and first layer how far a cell goes that keeps to the
        limit.
        """
        if self.limit == math.inf:
            return [[self.layers] * self.layers] * self.stages

        def ends(stage: int) -> list[int]:
            return [
                first
                + bisect.bisect_right(
                    range(first + 1, self.layers + 1),
                    self.limit,
                    key=lambda last: self.bytes(stage, first, last),
                )
                for first in range(self.layers)
            ]

        return (
            [*map(ends, range(self.stages))]
            if callable(self.memory)
            else [ends(0)] * self.stages
        )

    def ends(self, most: int) -> Iterator[list[int]]:
        """Yields for each stage and first layer how far a cell goes that costs no more
        than `most`.
        """
        ends = [
            bisect.bisect_right(self.sums, c + most, first) - 1
            for first, c in enumerate(self.sums[:-1])
        ]
        for fits in self._fits:
            yield ends if self.limit == math.inf else [*map(min, ends, fits)]

    def reach(self, most: int) -> list[int]:
        """Returns for each stage the layers at which it may start, as bits; nothing if
        none does.
        """
        starts, inside = [1], (1 << self.layers) - 1
        for end in self.ends(most):
            ends = 0
            for first in _bits(starts[-1] & inside):
                ends |= (2 << end[first]) - (2 << first)
            starts.append(ends)
        return [s & inside for s in starts[:-1]] if starts[-1] > inside else []

    def least_maximum(self) -> int:
        """Returns the least cost that the largest cell of a split can have."""
        low = high = max(self.largest_layer, -(-self.sums[-1] // self.stages))
        while not self.reach(high):
            low, high = high + 1, high + high // 16 + 1
        return _least(low, high, lambda most: bool(self.reach(most)))

    def least_squares(self, least: int, most: int) -> tuple[int, ...]:
        """Returns the split of the least sum of squares, of cells that cost `least` to
        `most`.

        Since the mean of cells is given, it is the split of the least variance.
        """
        rest = {self.layers: 0}  # the sum of squares from each start on
        chosen: list[dict[int, int]] = []  # and where the cell ends
        for starts, end in reversed([*zip(self.reach(most), self.ends(most))]):
            after, rest, ends = rest, {}, {}
            for first in _bits(starts):
                start = bisect.bisect_left(
                    self.sums, self.sums[first] + least, first + 1
                )
                for last in range(start, end[first] + 1):
                    if last in after:
                        squares = (
                            after[last] + (self.sums[last] - self.sums[first]) ** 2
                        )
                        if first not in rest or squares < rest[first]:
                            rest[first], ends[first] = squares, last
            chosen.append(ends)
        borders = [0]
        for ends in reversed(chosen):
            borders.append(ends[borders[-1]])
        return tuple(last - first for first, last in itertools.pairwise(borders))

    def bounds(self, sizes: Sequence[int]) -> tuple[int, int]:
        """Returns between which costs the cells of a split lie that has no more
        variance than this.

        One cell of cost c leaves the others at best equal, so c^2 + (sum - c)^2 / (K -
        1) is no more than the sum of squares.
        """
        total, k = self.sums[-1], self.stages
        squares = sum(
            (self.sums[c.last] - self.sums[c.first]) ** 2 for c in self.cells(sizes)
        )
        away = math.isqrt((k - 1) * (k * squares - total**2)) + 1
        return max(0, (total - away) // k), (total + away) // k + 1

    def cells(self, sizes: Sequence[int]) -> Iterator[_Cell]:
        """Yields the cells of a split."""
        for stage, (first, last) in enumerate(
            itertools.pairwise([0, *itertools.accumulate(sizes)])
        ):
            yield _Cell(stage, first, last, self.bytes(stage, first, last))

    def largest(self, sizes: Sequence[int]) -> _Cell:
        """Returns the cell of a split that takes the most bytes."""
        return max(self.cells(sizes), key=_Cell.size)


def _bits(mask: int) -> Iterator[int]:
    """Yields the numbers of the bits that are set, least first."""
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


def _least(low: int, high: int, good: Callable[[int], bool]) -> int:
    """Returns the least number of a range from which on all are good; the last
    one is.
    """
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle + 1, high)
    return low


def _refuse(cells: _Cells) -> NoReturn:
    """Raises the error for a limit that no split keeps to, with what is too large for
    it.
    """
    limit = cells.limit
    worst = _too_large(cells)
    raise PlanError(
        explain_error(
            f"no split of {cells.layers} layers into {cells.stages} cells keeps to the "
            "memory limit.",
            limit=f"{limit:,.0f} bytes",
            needed=f"{worst}, {worst.bytes - limit:,.0f} over the limit",
            way_out="Take more stages, a smaller microbatch, or recompute activations.",
        )
    )


def _too_large(cells: _Cells) -> _Cell:
    """Returns a layer that exceeds the limit alone, or the largest cell of the smallest
    split.
    """
    n, k, total = cells.layers, cells.stages, cells.sums[-1]
    alone = [
        min(
            (
                _Cell(stage, i, i + 1, cells.bytes(stage, i, i + 1))
                for stage in range(k)
            ),
            key=_Cell.size,
        )
        for i in range(n)
    ]
    largest = max(alone, key=_Cell.size)
    if largest.bytes > cells.limit:
        return largest
    costs = [b - a for a, b in itertools.pairwise(cells.sums)]

    def under(limit: int) -> _Cells:
        return _Cells(costs, k, cells.memory, limit)

    high = math.ceil(cells.largest([1] * (k - 1) + [n - k + 1]).bytes)  # some split's
    least = _least(
        math.floor(cells.limit), high, lambda limit: bool(under(limit).reach(total))
    )
    return cells.largest(under(least).least_squares(0, total))
