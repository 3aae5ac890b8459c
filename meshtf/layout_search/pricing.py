"""The price of a structure for all sizes of its axes: one plan, and arrays in place of sizes.

A plan says which ops are sharded along which axes, and which tensors are sent along them; the
sizes of the axes only change the numbers. So the program is planned once, for axes of medium
size, and its time and memory are computed for all sizes, orders of axes and counts of
microbatches at once. The winners are planned in full afterwards: see `search.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshtf.forecast.memory_at_sizes import memory_of, timelines_of
from meshtf.forecast.time.durations import Durations, Sizes
from meshtf.forecast.time.local_sizes import durations_of
from meshtf.forecast.time.schedule import Schedule
from meshtf.forecast.time.step_time import step_seconds
from meshtf.graph.recorder import Recorded
from meshtf.hardware import proportional
from meshtf.layout_search.beginning import Recordings, has_gradient
from meshtf.layout_search.grid import Grid
from meshtf.layout_search.problem import Problem, build_recorded
from meshtf.layout_search.space import MICROBATCHES, Structure
from meshtf.mesh import Mesh
from meshtf.ops.control.microbatch import MICROBATCH
from meshtf.partition import LoopStep, Program, walk, with_overlap

PLANNED_MICROBATCHES = 2  # of the plan that stands for all programs with microbatches


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
        choices = dict(self.structure.choices)
        count = int(self.grid.microbatches[index])
        if count > 1 and not self.grid.stage_axis:
            choices[MICROBATCHES] = count
        return choices

    def mesh_settings(self, index: int) -> dict[str, Any]:
        """Returns the arguments of `Mesh` of a candidate, other than its axes."""
        return settings_at(self.structure, self.grid, index)


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
    index = grid.medium
    settings = settings_at(structure, grid, index)
    axes, choices = grid.axes_text(index), recorded_choices(structure, grid)
    if recordings is None:
        return problem.record(axes, settings, choices)
    return recordings.of(axes, settings, choices, structure.stage_axis)


def recorded_choices(structure: Structure, grid: Grid) -> dict[str, Any]:
    """Returns the further arguments of the program that stands for all sizes of a structure."""
    counts = {MICROBATCHES: PLANNED_MICROBATCHES} if grid.has_microbatches else {}
    return {**dict(structure.choices), **counts}


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
    platform = problem.hardware.platform
    program = with_overlap(build_recorded(recorded), platform)
    timelines = timelines_of(program, problem.hardware)
    if durations is None:
        durations = durations_of_grid(program, problem, grid)
    schedule = Schedule(program, durations, counts=False)
    seconds, memory = (
        np.broadcast_to(x, [len(grid)])
        for x in (step_seconds(schedule), memory_of(timelines, durations))
    )
    return Prices(structure, grid, seconds, memory, program.mesh)


def durations_of_grid(program: Program, problem: Problem, grid: Grid) -> Durations:
    """Returns the durations of a program for all candidates of a grid.

    Args:
      program: the program, which was planned for one of the candidates.
      problem: what is searched for.
      grid: the sizes.
    """
    sizes = sizes_of_grid(program, grid)
    return durations_of(program, problem.hardware, sizes)


def sizes_of_grid(program: Program, grid: Grid) -> Sizes:
    """Returns the sizes of all candidates; the arguments are those of `durations_of_grid`."""
    dims = grid.dims
    if grid.has_microbatches:
        dims = microbatch_dims(program, grid.microbatches)
    return Sizes(grid.axes, dims=dims, strides=grid.strides)


def seconds_of_stages(
    program: Program, problem: Problem, structure: Structure, grid: Grid
) -> Any:
    """Returns the least seconds in which the stages of a pipeline compute a program:
    `[candidates]`.

    Args:
      program: the program without the pipeline, planned for the devices of one stage.
      problem: what is searched for.
      structure: the pipeline.
      grid: its sizes.
    """
    # Ops on microbatches may be the faster ones by measurements.
    hardware = proportional(problem.hardware)
    sizes = sizes_of_grid(program, grid.without_stages)
    durations = durations_of(program, hardware, sizes)
    seconds: Any = Schedule(program, durations, counts=False).computed
    for step in program.steps:
        if step.loop is None:
            continue
        layers = step.bodies[-1]
        if layers.dim in dict(structure.axes)[grid.stage_axis]:
            body = Schedule(layers.program, durations, counts=False)
            of_loop = body.computed * durations.sizes.runs(layers)
            # The bubble: a tick for each stage but one.
            seconds = seconds + of_loop * (grid.stages - 1) / grid.microbatches
    return seconds / grid.stages


def medium_mesh(structure: Structure, grid: Grid) -> Mesh:
    """Returns the mesh that a structure is planned for."""
    index = grid.medium
    settings = settings_at(structure, grid, index)
    return Mesh(grid.axes_text(index), devices="abstract", **settings)


def settings_at(structure: Structure, grid: Grid, index: int) -> dict[str, Any]:
    """Returns the arguments of `Mesh` of a candidate, other than its axes."""
    settings = ordered(structure, grid.orders[index])
    if grid.stage_axis:
        settings["microbatches"] = int(grid.microbatches[index])
    return settings


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
    result: dict[tuple[str, int], Any] = {(MICROBATCH, planned): microbatches}
    for step, _ in walk(program):
        loop = step.loop
        if loop is None or loop.op.dim is None or loop.op.dim.name != MICROBATCH:
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
    loops = [step.loop for step in program.steps if step.loop is not None]
    stacks = [x for loop in loops if not loop.node.primals for x in loop.stacked]
    return sum(map(durations.local_bytes, stacks), 0.0)
