"""The price of a structure for all sizes of its axes: one plan, and arrays in place of sizes.

A plan says which ops are sharded along which axes, and which tensors are sent along them; the
sizes of the axes only change the numbers. So the program is planned once, for axes of medium
size, and its time and memory are computed for all sizes, orders of axes and counts of
microbatches at once. The winners are planned in full afterwards: see `search.py`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from meshtf.forecast.memory.peak_memory import Timelines
from meshtf.forecast.memory_at_sizes import memory_of, timelines_of
from meshtf.forecast.time.durations import Durations, Sizes
from meshtf.forecast.time.local_sizes import durations_of
from meshtf.forecast.time.schedule import Schedule
from meshtf.forecast.time.step_time import step_seconds
from meshtf.graph.recorder import Recorded
from meshtf.layout_search.beginning import Recordings, has_gradient
from meshtf.layout_search.problem import (
    Names,
    Problem,
    build_recorded,
)
from meshtf.layout_search.space import (
    CHUNKS,
    MICROBATCHES,
    STAGE,
    Structure,
    factorizations,
)
from meshtf.mesh import Mesh
from meshtf.partition import LoopStep, Program, Value, walk

PLANNED_MICROBATCHES = 2  # of the plan that stands for all programs with microbatches
SCANNED = "microbatch"  # the dimension that a loop over microbatches scans


@dataclasses.dataclass(frozen=True)
class Grid:
    """The sizes for which a structure is priced: arrays with an entry for each candidate.

    Attributes:
      axes: axis -> its size: `[candidates]`.
      strides: axis -> how many positions are nearer to each other than those along it.
      orders: for each candidate, the axes from the outermost to the innermost.
      microbatches: the number of microbatches: `[candidates]`.
      chunks: the number of chunks of each stage of a pipeline: `[candidates]`.
      stages: the number of stages of a pipeline; they are along the outermost axis.
      plans_each: whether each number of microbatches has its own plan.
    """

    axes: Mapping[str, np.ndarray]
    strides: Mapping[str, np.ndarray]
    orders: Sequence[tuple[str, ...]]
    microbatches: np.ndarray
    chunks: np.ndarray
    stages: int = 1
    plans_each: bool = False

    def __len__(self) -> int:
        return len(self.orders)

    @property
    def has_microbatches(self) -> bool:
        """Whether the program that is planned has a loop over microbatches."""
        return not self.plans_each and bool((self.microbatches > 1).any())

    @property
    def is_estimated(self) -> bool:
        """Whether a pipeline is estimated from the program without stages."""
        return self.stages > 1 and not self.plans_each

    @property
    def planned(self) -> Grid:
        """The sizes of the program that is planned: of one stage, if it is estimated."""
        return dataclasses.replace(self, stages=1) if self.is_estimated else self

    def axes_text(self, index: int) -> str:
        """Returns the axes of a candidate, such as "data:8;model:4"."""
        order = self.orders[index]
        sizes = [f"{axis}:{int(self.axes[axis][index])}" for axis in order]
        if self.stages > 1:
            sizes.insert(0, f"{STAGE}:{self.stages}")
        return ";".join(sizes)


@dataclasses.dataclass(frozen=True)
class Prices:
    """The predicted seconds and peak bytes of all candidates of a structure: `[candidates]`.

    The mesh is kept, since later plans share those of its ops.
    """

    structure: Structure
    grid: Grid
    seconds: np.ndarray
    memory: np.ndarray
    mesh: Mesh

    def choices(self, index: int) -> dict[str, Any]:
        """Returns the further arguments of the program of a candidate."""
        choices = self.structure.arguments
        counts = {MICROBATCHES: self.grid.microbatches, CHUNKS: self.grid.chunks}
        if not self.structure.pipelined:
            choices |= {k: int(v[index]) for k, v in counts.items() if v[index] > 1}
        return choices


def make_grid(
    structure: Structure,
    problem: Problem,
    names: Names,
    microbatches: Sequence[int],
    fixed: Mapping[str, int],
    chunks: Sequence[int] = (1,),
) -> Grid | None:
    """Returns the sizes to be priced; None if there are none.

    Args:
      structure: the structure; its choices may say the numbers of microbatches and chunks.
      problem: what is searched for.
      names: the names of the program.
      microbatches: the numbers of microbatches.
      fixed: axis -> its size, for axes that the user fixed; then their order is fixed, too.
      chunks: the numbers of chunks of each stage.
    """
    chosen: dict[str, Any] = dict(structure.choices)
    microbatches = [chosen[MICROBATCHES]] if MICROBATCHES in chosen else microbatches
    chunks = [chosen[CHUNKS]] if CHUNKS in chosen else chunks
    axes = [axis for axis, _ in structure.axes]
    if fixed:
        if math.prod(fixed.values()) * structure.stages != problem.devices:
            return None
        all_sizes = [tuple(fixed[axis] for axis in axes)]
        orders = [tuple(axes)]
    else:
        if problem.devices % structure.stages:
            return None
        all_sizes = list(factorizations(problem.devices // structure.stages, len(axes)))
        orders = list(itertools.permutations(axes))
    if structure.stages == 1:
        chunks = (1,)
    counts = list(_counts(microbatches, structure.stages, chunks))
    size_columns: dict[str, list[int]] = {axis: [] for axis in axes}
    stride_columns: dict[str, list[int]] = {axis: [] for axis in axes}
    rows: list[tuple[tuple[str, ...], int, int]] = []
    for sizes in all_sizes:
        size_of = dict(zip(axes, sizes))
        shards = _shards(structure, size_of)
        if any(names.divisors[dim] % count for dim, count in shards.items()):
            continue
        # Microbatches are sharded as the batch is.
        batch_shards = shards.get("batch")
        legal = [
            pair
            for pair in counts
            if batch_shards is None
            or names.divisors["batch"] % (pair[0] * batch_shards) == 0
        ]
        strides = [_strides(size_of, order) for order in orders]
        rows += [(order, *pair) for pair in legal for order in orders]
        for axis, size in size_of.items():
            size_columns[axis] += [size] * (len(legal) * len(orders))
            stride_columns[axis] += [x[axis] for x in strides] * len(legal)
    if not rows:
        return None
    row_orders, row_microbatches, row_chunks = zip(*rows)
    return Grid(
        axes={axis: np.array(column) for axis, column in size_columns.items()},
        strides={axis: np.array(column) for axis, column in stride_columns.items()},
        orders=row_orders,
        microbatches=np.array(row_microbatches),
        chunks=np.array(row_chunks),
        stages=structure.stages,
        plans_each=MICROBATCHES in chosen,
    )


def _strides(sizes: Mapping[str, int], order: Sequence[str]) -> dict[str, int]:
    """Returns how many positions are nearer to each other than those along each axis."""
    strides = {}
    stride = 1
    for axis in reversed(order):
        strides[axis] = stride
        stride *= sizes[axis]
    return strides


def _counts(
    microbatches: Sequence[int], stages: int, chunks: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yields (number of microbatches, number of chunks of a stage)."""
    for pair in itertools.product(microbatches, chunks):
        num_microbatches, num_chunks = pair
        # Only multiples of the number of stages can be interleaved.
        if num_chunks == 1 or num_microbatches % stages == 0:
            yield pair


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


def record(
    structure: Structure,
    problem: Problem,
    grid: Grid,
    recordings: Recordings | None = None,
) -> Recorded:
    """Returns the program of a structure, recorded for axes of medium size.

    Args:
      structure: the structure.
      problem: what is searched for.
      grid: the sizes.
      recordings: those that are shared; None: it is recorded on its own mesh.

    Raises:
      MeshtfError: the layout does not allow it.
    """
    record_on = problem.record if recordings is None else recordings.of
    index = _medium(grid)
    choices = recorded_choices(structure, grid)
    grid = grid.planned
    settings = ordered(structure, grid.orders[index])
    return record_on(grid.axes_text(index), settings, choices)


def recorded_choices(structure: Structure, grid: Grid) -> dict[str, Any]:
    """Returns the further arguments of the program that stands for all sizes of a structure."""
    has_loop = grid.planned.has_microbatches
    counts = {MICROBATCHES: PLANNED_MICROBATCHES} if has_loop else {}
    return {**structure.arguments, **counts}


def price(
    structure: Structure,
    problem: Problem,
    grid: Grid,
    recorded: Recorded,
    durations: Durations | None = None,
) -> Prices:
    """Returns the prices of all candidates of a grid.

    Args:
      structure: the structure.
      problem: what is searched for.
      grid: the sizes.
      recorded: the program, as `record` returns it.
      durations: those of the beginning of the program; None: there are none yet.

    Raises:
      MeshtfError: the program cannot be planned.
    """
    return price_by(structure, problem, grid, recorded, durations, _seconds_and_memory)


def price_by(
    structure: Structure,
    problem: Problem,
    grid: Grid,
    recorded: Recorded,
    durations: Durations | None,
    seconds_and_memory: Callable[[Timelines, Durations, Grid], tuple[Any, Any]],
) -> Prices:
    """Returns the prices that a function computes from the plan of a structure. The other
    arguments are those of `price`.
    """
    program = build_recorded(recorded)
    timelines = timelines_of(program, problem.hardware)
    if durations is None:
        durations = durations_of_grid(program, problem, grid)
    seconds, memory = (
        np.broadcast_to(x, [len(grid)])
        for x in seconds_and_memory(timelines, durations, grid)
    )
    return Prices(structure, grid, seconds, memory, program.mesh)


def _seconds_and_memory(
    timelines: Timelines, durations: Durations, _grid: Grid
) -> tuple[Any, Any]:
    """Returns the seconds and bytes of the program as it was planned."""
    schedule = Schedule(timelines.program, durations, counts=False)
    return step_seconds(schedule), memory_of(timelines, durations)


def durations_of_grid(program: Program, problem: Problem, grid: Grid) -> Durations:
    """Returns the durations of a program for all candidates of a grid.

    Args:
      program: the program, which was planned for one of the candidates.
      problem: what is searched for.
      grid: the sizes.
    """
    sizes = _sizes_of_grid(program, problem, grid)
    return durations_of(program, problem.hardware, sizes)


def _sizes_of_grid(program: Program, problem: Problem, grid: Grid) -> Sizes:
    """Returns the sizes of all candidates; the arguments are those of `durations_of_grid`."""
    grid = grid.planned
    axes = dict(grid.axes)
    strides = dict(grid.strides)
    if grid.stages > 1:
        axes[STAGE] = np.full(len(grid), grid.stages)
        strides[STAGE] = np.full(len(grid), problem.devices // grid.stages)
    if not grid.has_microbatches:
        return Sizes(axes, strides=strides)
    return Sizes(
        axes,
        dims=microbatch_dims(program, grid.microbatches),
        iterations={SCANNED: grid.microbatches},
        strides=strides,
    )


def medium_mesh(structure: Structure, grid: Grid) -> Mesh:
    """Returns the mesh that a structure is planned for."""
    index = _medium(grid)
    settings = ordered(structure, grid.orders[index])
    return Mesh(grid.planned.axes_text(index), devices="abstract", **settings)


def _medium(grid: Grid) -> int:
    """Returns the index of the candidate whose axes are of the most equal sizes."""
    distance = np.zeros(len(grid))
    for sizes in grid.axes.values():
        distance = distance + np.log2(sizes) ** 2
    return int(distance.argmin())


def ordered(structure: Structure, order: Sequence[str]) -> dict[str, Any]:
    """Returns the layouts of a structure on a mesh whose axes have this order."""
    pairs = dict(structure.axes)
    stored_axes = [axis for axis in order if axis in structure.stored_axes]
    return dataclasses.replace(
        structure,
        axes=tuple((axis, pairs[axis]) for axis in order),
        stored_axes=tuple(stored_axes),
    ).mesh_settings()


def microbatch_dims(
    program: Program, microbatches: np.ndarray
) -> dict[tuple[str, int], Any]:
    """Returns the sizes of dimensions that depend on the number of microbatches."""
    planned = PLANNED_MICROBATCHES
    result: dict[tuple[str, int], Any] = {(SCANNED, planned): microbatches}
    for step, _ in walk(program):
        loop = step.loop
        if loop is None or loop.op.dim is None or loop.op.dim.name != SCANNED:
            continue
        for value in loop.scanned_inputs:
            assert value.spec is not None
            for dim in value.spec.shape:
                if dim.name == "batch":
                    full_size = dim.size * planned
                    result["batch", dim.size] = full_size // microbatches
    return result


def loop_over_microbatches(program: Program) -> LoopStep | None:
    """Returns the loop that computes gradients; None: there is none."""
    for step in program.steps:
        if step.loop is not None and has_gradient(step.loop.op):
            return step.loop
    return None


def residual_bytes(program: Program, durations: Durations) -> Any:
    """Returns the bytes that the loops of the forward pass, such as that over layers, have
    stacked for the gradient.
    """
    return sum(map(durations.local_bytes, stacks(program, of_forward=True)), 0.0)


def stacks(program: Program, of_forward: bool) -> Iterator[Value]:
    """Yields the values that loops of the forward pass, or of the backward pass, stack."""
    for step in program.steps:
        loop = step.loop
        if loop is not None and bool(loop.node.primals) != of_forward:
            yield from loop.stacked
