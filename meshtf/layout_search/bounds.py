"""Lower bounds of the time and memory of a structure, which need a part of its plan.

    bounds = LowerBounds(Recordings(problem), choices, microbatches=[1, 2, 4])
    bounds.of_forward(structure, grid)      # seconds [candidates], by a fifth of the plan
    bounds.fits(structure, grid)            # whether memory suffices, by half of the plan
    bounds.of_gradient(structure, grid)     # larger seconds, by this half

No bound exceeds the seconds that `price` computes. The ops of a program run one after the
other, in the order in which they were recorded, so the forward pass takes as long as if
nothing followed; and N devices need at least an N-th of the time in which one device computes
what follows, but each of them starts all ops:

    seconds >= (forward pass, planned) + (what follows, on one device) / N + (its starts)

The program is recorded once, on a mesh of one position. This assumes that `build` makes the
same ops on each mesh; `hold_for` checks that for each structure that is recorded on its own.

S stages of a pipeline need at least an S-th of the seconds that the devices of one stage need
without it, and for M microbatches (M + S - 1) / M of this in the layers.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from meshtf.forecast.memory.peak_memory import Timelines
from meshtf.forecast.memory_at_sizes import memory_of, timelines_of
from meshtf.forecast.time.durations import Durations, Sizes
from meshtf.forecast.time.local_sizes import durations_of
from meshtf.forecast.time.memory_traffic import values_in_memory
from meshtf.forecast.time.schedule import Schedule
from meshtf.graph import Node, WriteOp, is_variable
from meshtf.graph.recorder import Recorded
from meshtf.hardware import proportional
from meshtf.layout_search.beginning import (
    Beginning,
    Recordings,
    Stores,
    forward_nodes,
    nodes_before_updates,
)
from meshtf.layout_search.grid import Grid
from meshtf.layout_search.order import MEMORY_MARGIN
from meshtf.layout_search.pricing import (
    PLANNED_MICROBATCHES,
    durations_of_grid,
    loop_over_microbatches,
    medium_mesh,
    microbatch_dims,
    residual_bytes,
    seconds_of_stages,
)
from meshtf.layout_search.problem import Problem
from meshtf.layout_search.space import MICROBATCHES, Structure
from meshtf.partition import Program, WriteStep, build
from meshtf.partition.build import live_nodes

# What a beginning of the program depends on: a structure as far as there are no updates yet,
# and how many candidates it has. If slots are sharded, its sizes are some of those of
# replicated variables, in the same order: so it has the same sizes if it has as many.
_Key: TypeAlias = tuple[Structure, int]


class LowerBounds:
    """The lower bounds of one program, that is of one combination of choices.

    Args:
      recordings: those of what is searched for.
      choices: the further arguments of `build`, as pairs.
      microbatches: the numbers of microbatches that are tried.

    Attributes:
      least_memory: the fewest bytes of a device that a bound found too many.
    """

    def __init__(
        self,
        recordings: Recordings,
        choices: Iterable[tuple[str, Any]],
        microbatches: Sequence[int],
    ) -> None:
        self._problem = problem = _with_least_factor(recordings.problem)
        self.least_memory = float("inf")
        self._memory_limit = problem.memory * MEMORY_MARGIN
        arguments = dict(choices)
        if max(microbatches) > 1:
            arguments[MICROBATCHES] = PLANNED_MICROBATCHES
        recorded = recordings.of("", {}, arguments)
        nodes = live_nodes(recorded.nodes, recorded.results)
        self._stores = Stores(nodes)
        self._writes = [x for x in nodes if getattr(x.op, "variables", ())]
        self._forward = Beginning(forward_nodes(nodes), self._stores)
        self._gradient = Beginning(nodes_before_updates(nodes), self._stores)
        # Structure -> its plan. The one plan stands for all sizes.
        self._planned_forwards: dict[Structure, Program] = {}
        self._planned_gradients: dict[Structure, Timelines] = {}
        # The seconds of the forward pass, and of the forward and backward pass.
        self._forward_seconds: dict[_Key, Any] = {}
        self._gradient_seconds: dict[_Key, np.ndarray] = {}
        self._fits: dict[_Key, np.ndarray] = {}
        self._durations: dict[_Key, Durations] = {}
        self._of_sizes: dict[object, Durations] = {}
        # The bytes of all variables, and the seconds of all updates.
        self._of_stores: dict[Structure, tuple[Any, Any]] = {}
        # The numbers of microbatches, and for each of them the least bytes that what follows
        # the forward pass needs of it, the least seconds of the ops of the backward pass
        # without their starts, those of the starts, and those of all ops between the
        # gradients and the updates, as of a norm: [counts, 4].
        self._counts = np.unique(microbatches)
        self._following: np.ndarray
        self._before_updates: collections.Counter[object] = collections.Counter()
        # The dimensions whose sizes depend on the number of microbatches.
        self._dims: set[tuple[str, int]] = set()
        self._set_following(nodes, recorded)

    def of_forward(self, structure: Structure, grid: Grid) -> np.ndarray:
        """Returns lower bounds of the seconds of each candidate by the plan of the forward
        pass; infinity for those that exceed the memory when it ends: `[candidates]`.
        """
        if grid.stage_axis:
            return self._of_pipeline(structure, grid)
        residuals, seconds, starts, _ = self._following_of(grid)
        fits = self._stored(structure, grid)[0] + residuals <= self._memory_limit
        if not fits.any():
            return np.full(len(grid), np.inf)
        seconds = self._seconds_of_forward(structure, grid) + seconds + starts
        seconds = seconds + self._seconds_of_updates(structure, grid)
        return np.where(fits, seconds, np.inf)

    def _of_pipeline(self, structure: Structure, grid: Grid) -> np.ndarray:
        """Returns what `of_forward` does. Stages start more ops, and may keep fewer residuals."""
        stored, seconds_of_updates = self._stored(structure, grid)
        fits = stored <= self._memory_limit
        if not fits.any():
            return np.full(len(grid), np.inf)
        key = structure.before_updates.with_choices(()), len(grid)
        if key not in self._forward_seconds:
            of_stage = grid.without_stages
            program = self._planned_forward(structure.without_stages, of_stage)
            seconds = seconds_of_stages(program, self._problem, structure, grid)
            self._forward_seconds[key] = seconds
        # What follows on one device, with any number of microbatches.
        seconds = self._forward_seconds[key] + self._following[0, 1]
        return np.where(fits, seconds + seconds_of_updates, np.inf)

    def _seconds_of_forward(self, structure: Structure, grid: Grid) -> np.ndarray:
        """Returns the seconds of the forward pass of each candidate: `[candidates]`."""
        key = structure.before_updates.with_choices(()), len(grid)
        if key not in self._forward_seconds:
            program = self._planned_forward(structure, grid)
            durations = self._shared_durations(program, grid)
            self._forward_seconds[key] = _seconds_of_forward(program, durations)
        return self._forward_seconds[key]

    def fits(self, structure: Structure, grid: Grid) -> np.ndarray:
        """Returns whether a device has enough memory for the forward and backward pass of each
        candidate: `[candidates]`.
        """
        key = structure.before_updates, len(grid)
        if key not in self._fits:
            timelines = self._timelines(structure, grid)
            durations = self._durations_of(structure, grid)
            memory = np.broadcast_to(memory_of(timelines, durations), [len(grid)])
            fits = memory <= self._memory_limit
            least = float(memory[~fits].min(initial=np.inf))
            self.least_memory = min(self.least_memory, least)
            self._fits[key] = fits
        return self._fits[key]

    def of_gradient(
        self, structure: Structure, grid: Grid
    ) -> tuple[np.ndarray, Durations | None]:
        """Returns lower bounds of the seconds of each candidate by the plan of the forward
        and backward pass, `[candidates]`, and the durations of this plan; None for pipelines,
        whose own plan has others.
        """
        key = structure.before_updates, len(grid)
        if grid.stage_axis:
            return self._of_stages_and_updates(structure, grid), None
        durations = self._durations_of(structure, grid)
        if key not in self._gradient_seconds:
            program = self._timelines(structure, grid).program
            seconds = Schedule(program, durations, counts=False).computed
            self._gradient_seconds[key] = np.broadcast_to(seconds, [len(grid)])
        updates = self._seconds_of_updates(structure, grid)
        return self._gradient_seconds[key] + updates, durations

    def _of_stages_and_updates(self, structure: Structure, grid: Grid) -> np.ndarray:
        """Returns what `of_gradient` does of a pipeline."""
        key = structure.before_updates, len(grid)
        if key not in self._gradient_seconds:
            of_stage = structure.before_updates.without_stages
            program = self._timelines(of_stage, grid.without_stages).program
            seconds = seconds_of_stages(program, self._problem, structure, grid)
            self._gradient_seconds[key] = seconds
        return self._gradient_seconds[key] + self._stored(structure, grid)[1]

    def _durations_of(self, structure: Structure, grid: Grid) -> Durations:
        """Returns the durations of the forward and backward pass of a structure."""
        key = structure.before_updates.with_choices(()), len(grid)
        if key not in self._durations:
            program = self._timelines(structure, grid).program
            self._durations[key] = self._shared_durations(program, grid)
        return self._durations[key]

    def _shared_durations(self, program: Program, grid: Grid) -> Durations:
        """Returns the durations of a program. Programs on meshes of equal axes share them, unless
        measured steps make them depend on all local sizes of a program.
        """
        if self._problem.hardware.local_steps:
            return durations_of_grid(program, self._problem, grid)
        sizes = [x.tobytes() for x in (*grid.axes.values(), grid.microbatches)]
        axes = tuple(program.mesh.axes.items())
        key = axes, grid.orders, grid.has_microbatches, *sizes
        if key not in self._of_sizes:
            self._of_sizes[key] = durations_of_grid(program, self._problem, grid)
        return self._of_sizes[key]

    def _timelines(self, structure: Structure, grid: Grid) -> Timelines:
        """Returns the timelines of the plan of the forward and backward pass."""
        if structure not in self._planned_gradients:
            program = self._gradient.plan(medium_mesh(structure, grid))
            timelines = timelines_of(program, self._problem.hardware)
            self._planned_gradients[structure] = timelines
        return self._planned_gradients[structure]

    def _planned_forward(self, structure: Structure, grid: Grid) -> Program:
        """Returns the plan of the forward pass of a structure; those with the same rules share
        it.
        """
        key = structure.with_choices(())
        if key not in self._planned_forwards:
            self._planned_forwards[key] = self._forward.plan(
                medium_mesh(structure, grid)
            )
        return self._planned_forwards[key]

    def share_forward(self, all_bounds: Iterable[LowerBounds]) -> None:
        """Shares the seconds of forward passes, and the durations of ops, with bounds whose
        forward pass has equal ops.
        """
        for bounds in all_bounds:
            if not np.array_equal(self._counts, bounds._counts):
                continue
            if self._stores.are_like(bounds._stores):
                self._of_stores = bounds._of_stores
            if self._forward.is_like(bounds._forward):
                self._planned_forwards = bounds._planned_forwards
                self._forward_seconds = bounds._forward_seconds
                if self._dims == bounds._dims:
                    self._durations = bounds._durations
                    self._of_sizes = bounds._of_sizes

    def hold_for(self, recorded: Recorded) -> bool:
        """Returns whether a recording on another mesh begins with the same ops, and has the
        same ones before updates.
        """
        nodes = live_nodes(recorded.nodes, recorded.results)
        other = Beginning(nodes_before_updates(nodes), self._stores)
        missing = self._before_updates - _ops(nodes)
        return self._gradient.is_like(other) and not missing

    def _seconds_of_updates(self, structure: Structure, grid: Grid) -> Any:
        """Returns the seconds of the updates, without what they read but variables, and of ops
        before them, which all run after the backward pass: `[candidates]`.
        """
        return self._stored(structure, grid)[1] + self._following_of(grid)[-1]

    def _following_of(self, grid: Grid) -> np.ndarray:
        """Returns `_following` for each candidate: `[4, candidates]`."""
        return self._following[np.searchsorted(self._counts, grid.microbatches)].T

    def _stored(self, structure: Structure, grid: Grid) -> tuple[Any, Any]:
        """Returns the bytes of a device's shards of all variables, and the seconds of their
        updates: `[candidates]`.
        """
        key = structure.with_choices(())
        if key not in self._of_stores:
            mesh = medium_mesh(structure, grid)
            sizes = Sizes(grid.axes, strides={})
            durations = Durations(self._problem.hardware, mesh, sizes)
            stores = self._stores.on(mesh)
            size = sum(
                durations.shard_bytes(store.spec, store.placement)
                for store in stores.values()
                if is_variable(store)
            )
            writes: Any = 0.0
            for node in self._writes:
                variables = tuple(stores[x] for x in getattr(node.op, "variables", ()))
                step = WriteStep(node, (), variables=variables)
                writes = writes + durations.write(step)
            self._of_stores[key] = size, writes
        return self._of_stores[key]

    def _set_following(self, nodes: Sequence[Node], recorded: Recorded) -> None:
        """Computes what follows the forward pass on one device, for numbers of microbatches.

        Args:
          nodes: the nodes that the program needs.
          recorded: the program, recorded on a mesh of one position.
        """
        program = self._gradient.plan(recorded.mesh)
        counts = self._counts
        dims = microbatch_dims(program, counts)
        self._dims = set(dims)
        sizes = Sizes({}, dims=dims)
        with_updates = build(nodes, [], recorded.mesh, prune=False)
        updates = sum(self._seconds_after(self._gradient.nodes, with_updates, sizes))
        self._before_updates = _ops(nodes) - _ops(self._gradient.nodes)
        forward = self._forward.nodes
        loop = loop_over_microbatches(program)
        iterations: Any = 1
        if loop is not None:
            program, forward = loop.body, forward_nodes(loop.op.body.nodes)
            iterations = counts
        seconds, starts = self._seconds_after(forward, program, sizes)
        durations = durations_of(program, self._problem.hardware, sizes)
        residuals = residual_bytes(program, durations) / self._problem.devices
        columns = residuals, seconds * iterations, starts * iterations, updates, counts
        self._following = np.stack(np.broadcast_arrays(*columns)[:-1], axis=1)

    def _seconds_after(
        self, nodes: Sequence[Node], program: Program, sizes: Sizes
    ) -> tuple[Any, Any]:
        """Returns the least seconds in which each device computes the ops of a program other than
        `nodes`, without the seconds to start them, and those.
        """
        hardware = proportional(self._problem.hardware)
        without_starts = dataclasses.replace(hardware, op_seconds=0.0)
        seconds, least = (
            _seconds_after(nodes, program, durations_of(program, x, sizes))
            for x in (hardware, without_starts)
        )
        starts = seconds - least
        if hardware.shares_equal_work:  # one device starts the ops of all
            starts = starts / self._problem.devices
        return least / self._problem.devices, starts


def _with_least_factor(problem: Problem) -> Problem:
    """Returns the problem with the least factor of all measured local steps at all sizes: the
    beginning of a program may have other local sizes than the whole.
    """
    steps = problem.hardware.local_steps
    if not steps:
        return problem
    least = min(steps, key=lambda step: step.factor)
    hardware = dataclasses.replace(problem.hardware, local_steps=(least,))
    return dataclasses.replace(problem, hardware=hardware)


def _seconds_of_forward(program: Program, durations: Durations) -> Any:
    """Returns when devices have computed the forward pass, in all microbatches."""
    last = program.steps[-1] if program.steps else None
    if last is None or last.loop is None or last.outputs:
        return Schedule(program, durations, counts=False).computed
    # What follows may run while the last collectives of a microbatch do.
    runs = durations.sizes.runs(last.bodies[-1])
    seconds = Schedule(last.loop.body, durations, counts=False).computed * runs
    before = dataclasses.replace(program, steps=program.steps[:-1])
    return Schedule(before, durations, counts=False).start_of(last) + seconds


def _seconds_after(
    nodes: Sequence[Node], program: Program, durations: Durations
) -> Any:
    """Returns the seconds of the ops of a program other than `nodes`, on one device."""
    done = {node.serial for node in nodes}
    in_memory = values_in_memory(program, durations.hardware.fuses)
    total: Any = 0.0
    for step in program.steps:
        if step.node is None or step.node.serial in done:
            continue
        if step.computation is not None:
            total = total + durations.compute(step.computation, in_memory)
        elif step.loop is not None:
            body = Schedule(step.loop.body, durations, counts=False).computed
            total = total + body * durations.sizes.runs(step.bodies[-1])
    return total


def _ops(nodes: Iterable[Node]) -> collections.Counter[object]:
    """Returns how many ops of each type compute outputs of the same specs; no updates."""
    return collections.Counter(
        (type(node.op), tuple(y.spec for y in node.outputs))
        for node in nodes
        if not isinstance(node.op, WriteOp)
    )
