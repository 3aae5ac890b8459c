"""The sizes of axes, the orders of axes and the numbers of microbatches for which a structure is
priced.

    grid = make_grid(structure, problem, names, [1, 2, 4], {})
    grid.axes_text(3)           # "data:8;model:4", the axes of candidate 3
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from meshtf.graph.control_flow.scan_dimension import TICK
from meshtf.layout_search.problem import Names, Problem
from meshtf.layout_search.space import Structure
from meshtf.ops.control.microbatch import MICROBATCH

# How many microbatches of a pipeline are tried for each stage, if nothing else is said.
MICROBATCHES_OF_STAGE = (1, 2, 4)


@dataclasses.dataclass(frozen=True)
class Grid:
    """The sizes for which a structure is priced: arrays with an entry for each candidate.

    Attributes:
      axes: axis -> its size: `[candidates]`.
      strides: axis -> how many positions are nearer to each other than those along it.
      orders: for each candidate, the axes from the outermost to the innermost.
      microbatches: the number of microbatches: `[candidates]`.
      medium: the index of the candidate that is planned.
      stage_axis: the axis of the stages of a pipeline, the outermost; "": there is none.
      dims: (dimension, its size in the plan of the pipeline) -> its sizes: `[candidates]`.
    """

    axes: Mapping[str, np.ndarray]
    strides: Mapping[str, np.ndarray]
    orders: Sequence[tuple[str, ...]]
    microbatches: np.ndarray
    medium: int
    stage_axis: str = ""
    dims: Mapping[tuple[str, int], Any] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.orders)

    @property
    def has_microbatches(self) -> bool:
        """Whether the program that is planned has a loop over microbatches."""
        return not self.stage_axis and bool((self.microbatches > 1).any())

    @property
    def stages(self) -> Any:
        """The numbers of stages of pipelines, `[candidates]`; 1 if there are none."""
        return self.axes[self.stage_axis] if self.stage_axis else 1

    @property
    def without_stages(self) -> Grid:
        """These sizes without the stages: those of the devices of one stage."""
        axes = {axis: x for axis, x in self.axes.items() if axis != self.stage_axis}
        return dataclasses.replace(
            self,
            axes=axes,
            strides={axis: self.strides[axis] for axis in axes},
            orders=[tuple(x for x in order if x in axes) for order in self.orders],
            microbatches=np.ones_like(self.microbatches),
            stage_axis="",
            dims={},
        )

    def axes_text(self, index: int) -> str:
        """Returns the axes of a candidate, such as "data:8;model:4"."""
        order = self.orders[index]
        return ";".join(f"{axis}:{int(self.axes[axis][index])}" for axis in order)


def make_grid(
    structure: Structure,
    problem: Problem,
    names: Names,
    microbatches: Sequence[int] | None,
    fixed: Mapping[str, int],
    stages: Sequence[int] | None = None,
) -> Grid | None:
    """Returns the sizes to be priced; None if there are none.

    Args:
      structure: the structure.
      problem: what is searched for.
      names: the names of the program.
      microbatches: the numbers of microbatches; None: 1, and of a pipeline multiples of its
        stages.
      fixed: axis -> its size, for axes that the user fixed; then their order is fixed, too.
      stages: the numbers of stages of a pipeline; None: all.
    """
    axes = [axis for axis, _ in structure.axes]
    split = "batch" if not structure.stage_axis else names.microbatched
    size_columns: dict[str, list[int]] = {axis: [] for axis in axes}
    stride_columns: dict[str, list[int]] = {axis: [] for axis in axes}
    rows: list[tuple[tuple[str, ...], int]] = []
    for size_of in _sizes(structure, problem.devices, fixed, stages):
        shards = _shards(structure, size_of)
        if any(names.divisors[dim] % count for dim, count in shards.items()):
            continue
        # Microbatches are sharded as the batch is.
        legal = [
            count
            for count in _counts(structure, size_of, microbatches)
            if split not in names.divisors
            or names.divisors[split] % (count * shards.get(split, 1)) == 0
        ]
        orders = _orders(structure, fixed)
        strides = [_strides(size_of, order) for order in orders]
        rows += [(order, count) for count in legal for order in orders]
        for axis, size in size_of.items():
            size_columns[axis] += [size] * (len(legal) * len(orders))
            stride_columns[axis] += [x[axis] for x in strides] * len(legal)
    if not rows:
        return None
    row_orders, row_microbatches = zip(*rows)
    grid = Grid(
        axes={axis: np.array(column) for axis, column in size_columns.items()},
        strides={axis: np.array(column) for axis, column in stride_columns.items()},
        orders=row_orders,
        microbatches=np.array(row_microbatches),
        medium=0,
        stage_axis=structure.stage_axis,
    )
    return _with_plan(grid, names)


def _with_plan(grid: Grid, names: Names) -> Grid:
    """Returns the sizes with the candidate to be planned: that whose axes are of the most equal
    sizes. Of pipelines it is one that has several layers on a stage, and several microbatches, as
    many for each stage, if there is one.
    """
    distance = np.zeros(len(grid))
    for sizes in grid.axes.values():
        distance = distance + np.log2(sizes) ** 2
    if not grid.stage_axis:
        return dataclasses.replace(grid, medium=int(distance.argmin()))
    counts = grid.microbatches
    is_regular = (counts > 1) & (counts % grid.stages == 0)
    for size in names.all_sizes(names.pipelined):
        is_regular &= grid.stages < size
    distance = np.where(is_regular, distance, distance + distance.max() + 1)
    grid = dataclasses.replace(grid, medium=int(distance.argmin()))
    return dataclasses.replace(grid, dims=_pipeline_dims(grid, names))


def _pipeline_dims(grid: Grid, names: Names) -> dict[tuple[str, int], Any]:
    """Returns `Grid.dims` of pipelines: the sizes of the dimensions that depend on the numbers of
    stages and microbatches, as `meshtf.ops.loops.schedule` names them.
    """

    def sizes_of(stages: Any, microbatches: Any) -> list[tuple[str, Any]]:
        sizes = [
            (TICK, microbatches + stages - 1),
            (names.pipelined, stages),
            (MICROBATCH, microbatches),
            (MICROBATCH, -(-microbatches // stages)),  # slots
        ]
        for size in sorted(names.all_sizes(names.pipelined)):
            sizes.append(("." + names.pipelined, -(-size // stages)))
        for size in sorted(names.all_sizes(names.microbatched)):
            sizes.append((names.microbatched, size // microbatches))
        return sizes

    planned = grid.stages[grid.medium], grid.microbatches[grid.medium]
    pairs = zip(sizes_of(*map(int, planned)), sizes_of(grid.stages, grid.microbatches))
    return {one: sizes for one, (_, sizes) in pairs}


def _sizes(
    structure: Structure,
    devices: int,
    fixed: Mapping[str, int],
    stages: Sequence[int] | None,
) -> Iterator[dict[str, int]]:
    """Yields all sizes of the axes of a structure; other arguments are those of `make_grid`."""
    if structure.stage_axis in fixed:
        stages = [fixed[structure.stage_axis]]
    elif not structure.stage_axis:
        stages = [1]
    elif stages is None:
        stages = range(2, devices + 1)
    inner_axes = [axis for axis, _ in structure.without_stages.axes]
    for count in stages:
        if devices % count or (structure.stage_axis and count == 1):
            continue
        stage_axis = {structure.stage_axis: count} if structure.stage_axis else {}
        if fixed:
            sizes = {**stage_axis, **{axis: fixed[axis] for axis in inner_axes}}
            if math.prod(sizes.values()) == devices:
                yield sizes
        else:
            for factors in factorizations(devices // count, len(inner_axes)):
                yield {**stage_axis, **dict(zip(inner_axes, factors))}


def _orders(structure: Structure, fixed: Collection[str]) -> list[tuple[str, ...]]:
    """Returns the orders of axes that are tried: all, but stages are the outermost."""
    inner_axes = [axis for axis, _ in structure.without_stages.axes]
    orders = [tuple(inner_axes)] if fixed else list(itertools.permutations(inner_axes))
    stage_axis = (structure.stage_axis,) if structure.stage_axis else ()
    return [stage_axis + order for order in orders]


def _counts(
    structure: Structure, sizes: Mapping[str, int], microbatches: Sequence[int] | None
) -> Sequence[int]:
    """Returns the numbers of microbatches that are tried; `microbatches` as in `make_grid`."""
    if microbatches is not None:
        return microbatches
    if not structure.stage_axis:
        return [1]
    return [sizes[structure.stage_axis] * count for count in MICROBATCHES_OF_STAGE]


def _strides(sizes: Mapping[str, int], order: Sequence[str]) -> dict[str, int]:
    """Returns how many positions are nearer to each other than those along each axis."""
    strides = {}
    stride = 1
    for axis in reversed(order):
        strides[axis] = stride
        stride *= sizes[axis]
    return strides


def _shards(structure: Structure, sizes: Mapping[str, int]) -> dict[str, int]:
    """Returns the number of shards of each dimension that axes of these sizes shard."""
    shards: dict[str, int] = {}
    for axis, dims in structure.axes:
        for dim in dims:
            shards[dim] = shards.get(dim, 1) * sizes[axis]
    if structure.stored_dim and structure.storage != "replicated":
        shards[structure.stored_dim] = math.prod(
            sizes[axis] for axis in structure.stored_axes
        )
    return shards


def factorizations(total: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yields all ways to write a number of devices as a product of `count` sizes above 1.

    >>> list(factorizations(12, 2))
    [(2, 6), (3, 4), (4, 3), (6, 2)]
    """
    if count == 0:
        if total == 1:
            yield ()
        return
    for size in range(2, total + 1):
        if total % size == 0:
            for remaining in factorizations(total // size, count - 1):
                yield (size, *remaining)
