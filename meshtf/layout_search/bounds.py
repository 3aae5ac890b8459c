"""Lower bounds of the time and memory of a structure, which need a part of its plan.

    bounds = LowerBounds(problem, choices, microbatches=[1, 2, 4])
    bounds.of_forward(structure, grid)      # seconds [candidates], by a fifth of the plan
    bounds.of_gradient(structure, grid)     # larger ones, by half of the plan

No bound exceeds the seconds that `price` computes. The ops of a program run one after the
other, in the order in which they were recorded, so the forward pass takes as long as if
nothing followed; and N devices need at least an N-th of the time in which one device computes
what follows:

    seconds >= (forward pass, planned) + (what follows, on one device) / N

The program is recorded once, on a mesh of one position. This assumes that `build` makes the
same ops on each mesh; `hold_for` checks that for each structure that is recorded on its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from meshtf.forecast.memory.peak_memory import Timelines
from meshtf.forecast.memory_at_sizes import memory_of, timelines_of
from meshtf.forecast.time.durations import Durations, Sizes
from meshtf.forecast.time.local_sizes import durations_of
from meshtf.forecast.time.memory_traffic import values_in_memory
from meshtf.forecast.time.schedule import Schedule
from meshtf.graph import Node
from meshtf.graph.recorder import Recorded
from meshtf.hardware import Hardware
from meshtf.layout_search.beginning import (
    Beginning,
    Stores,
    forward_nodes,
    nodes_before_updates,
)
from meshtf.layout_search.candidates import MEMORY_MARGIN
from meshtf.layout_search.pipelines import (
    staged_memory,
    staged_seconds,
    without_collectives_of_weights,
)
from meshtf.layout_search.pricing import (
    PLANNED_MICROBATCHES,
    SCANNED,
    Grid,
    durations_of_grid,
    loop_over_microbatches,
    medium_mesh,
    microbatch_dims,
    residual_bytes,
)
from meshtf.layout_search.problem import MICROBATCHES, Problem
from meshtf.layout_search.space import Structure
from meshtf.mesh import Mesh
from meshtf.partition import Compute, LoopStep, Program
from meshtf.partition.build import live_nodes


class LowerBounds:
    """The lower bounds of one program, that is of one combination of choices.

    Args:
      problem: what is searched for.
      choices: the further arguments of `build`.
      microbatches: the numbers of microbatches that are tried.
    """

    def __init__(
        self,
        problem: Problem,
        choices: Mapping[str, Any],
        microbatches: Sequence[int],
    ) -> None:
        self._problem = problem = _with_least_factor(problem)
        self._memory_limit = problem.memory * MEMORY_MARGIN
        choices = dict(choices)
        if max(microbatches) > 1:
            choices[MICROBATCHES] = PLANNED_MICROBATCHES
        recorded = problem.record("", {}, choices)
        nodes = live_nodes(recorded.nodes, recorded.results)
        self._stores = Stores(nodes)
        self._forward = Beginning(forward_nodes(nodes), self._stores)
        self._gradient = Beginning(nodes_before_updates(nodes), self._stores)
        # Structure without stages -> its plan. The one plan stands for all sizes.
        self._planned_forwards: dict[Structure, Program] = {}
        self._planned_gradients: dict[Structure, Timelines] = {}
        # Structure without choices -> the seconds of the forward pass.
        self._forward_seconds: dict[Structure, Any] = {}
        # Number of microbatches -> the least seconds of what follows the forward pass, and
        # the least bytes that it needs of that pass.
        self._following: dict[int, tuple[float, float]] = {}
        self._set_following(recorded.mesh, microbatches)

    def of_forward(self, structure: Structure, grid: Grid) -> np.ndarray:
        """Returns lower bounds of the seconds of each candidate by the plan of the forward
        pass; infinity for those that exceed the memory when it ends: `[candidates]`.
        """
        mesh = medium_mesh(structure, grid)
        key = structure.with_choices(())
        if key not in self._forward_seconds:
            program = self._planned_forward(key.without_stages, mesh)
            durations = durations_of_grid(program, self._problem, grid)
            self._forward_seconds[key] = _seconds_of_forward(
                program, durations, gathers_once=grid.is_estimated
            )
        following = [self._following[int(count)] for count in grid.microbatches]
        seconds, residuals = np.array(following).T
        stored = self._stored_bytes(mesh, grid)
        stages, counts = grid.stages, grid.microbatches
        # All devices of a stage compute an S-th of a microbatch in an S-th of the time.
        seconds = self._forward_seconds[key] / stages + seconds
        seconds = seconds * (counts + (stages - 1) / grid.chunks) / counts
        memory = stored / stages + residuals
        return np.where(memory <= self._memory_limit, seconds, np.inf)

    def of_gradient(
        self, structure: Structure, grid: Grid
    ) -> tuple[np.ndarray, Durations]:
        """Returns lower bounds of the seconds of each candidate by the plan of the forward
        and backward pass, `[candidates]`, and the durations of this plan. Bounds are infinite
        for candidates that exceed the memory during these.
        """
        key = structure.without_stages
        if key not in self._planned_gradients:
            program = self._gradient.plan(medium_mesh(structure, grid))
            self._planned_gradients[key] = timelines_of(program, self._problem.hardware)
        timelines = self._planned_gradients[key]
        program = timelines.program
        durations = durations_of_grid(program, self._problem, grid)
        seconds = Schedule(program, durations, counts=False).computed
        if grid.is_estimated:
            if loop_over_microbatches(program) is None:
                return np.zeros(len(grid)), durations
            seconds = staged_seconds(program, durations, seconds, grid)
            memory = staged_memory(timelines, durations, grid)
        else:
            memory = memory_of(timelines, durations)
        seconds = np.broadcast_to(seconds, [len(grid)])
        return np.where(memory <= self._memory_limit, seconds, np.inf), durations

    def _planned_forward(self, structure: Structure, mesh: Mesh) -> Program:
        """Returns the plan of the forward pass of a structure; those with the same rules share
        it, with any number of stages.
        """
        if structure not in self._planned_forwards:
            self._planned_forwards[structure] = self._forward.plan(mesh)
        return self._planned_forwards[structure]

    def share_forward(self, all_bounds: Iterable[LowerBounds]) -> None:
        """Shares the seconds of forward passes with bounds whose forward pass has equal ops."""
        for bounds in all_bounds:
            has_microbatches = max(bounds._following) > 1
            if has_microbatches != (max(self._following) > 1):
                continue
            if self._forward.is_like(bounds._forward):
                self._planned_forwards = bounds._planned_forwards
                self._forward_seconds = bounds._forward_seconds

    def hold_for(self, recorded: Recorded) -> bool:
        """Returns whether a recording on another mesh begins with the same ops."""
        nodes = live_nodes(recorded.nodes, recorded.results)
        other = Beginning(nodes_before_updates(nodes), self._stores)
        return self._gradient.is_like(other)

    def _stored_bytes(self, mesh: Mesh, grid: Grid) -> Any:
        """Returns the bytes of a device's shards of all variables: `[candidates]`."""
        durations = Durations(
            self._problem.hardware, mesh, Sizes(grid.axes, strides={})
        )
        return sum(
            durations.shard_bytes(store.spec, placement)
            for store, placement in self._stores.placements(mesh).items()
            if store.kind in ("parameter", "state")
        )

    def _set_following(self, mesh: Mesh, microbatches: Sequence[int]) -> None:
        """Computes what follows the forward pass on one device, for numbers of microbatches."""
        hardware = _proportional(self._problem.hardware)
        program = self._gradient.plan(mesh)
        counts = np.array(microbatches)
        dims = microbatch_dims(program, counts)
        sizes = Sizes({}, dims=dims, iterations={SCANNED: counts})
        durations = durations_of(program, hardware, sizes)
        nodes = self._forward.nodes
        loop = loop_over_microbatches(program)
        iterations: Any = 1
        if loop is not None:
            program, nodes = loop.body, forward_nodes(loop.op.body.nodes)
            iterations = counts
        seconds = _seconds_after(nodes, program, durations) * iterations
        amounts = np.broadcast_arrays(
            seconds, residual_bytes(program, durations), counts
        )
        for one_seconds, one_bytes, count in zip(*amounts, strict=True):
            devices = self._problem.devices
            self._following[int(count)] = one_seconds / devices, one_bytes / devices


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


def _proportional(hardware: Hardware) -> Hardware:
    """Returns hardware whose times are proportional to sizes, and never longer: measured ones
    are replaced by those of the best measured rates.
    """
    if not hardware.matmuls and not hardware.element_seconds:
        return hardware
    efficiency = hardware.matmul_efficiency
    for matmul in hardware.matmuls:
        share = matmul.flops_per_second / hardware.peak_flops(matmul.dtype)
        efficiency = max(efficiency, share)
    return dataclasses.replace(
        hardware,
        matmuls=(),
        matmul_efficiency=efficiency,
        matmul_tile=1,
        memory_bandwidth=float("inf"),
        vector_flops=float("inf"),
        op_seconds=0.0,
        element_seconds={
            name: [min(seconds)] * len(seconds)
            for name, seconds in hardware.element_seconds.items()
        },
    )


def _seconds_of_forward(
    program: Program, durations: Durations, gathers_once: bool
) -> Any:
    """Returns when devices have computed the forward pass, in all microbatches; if weights are
    gathered once for all of these, without it.
    """
    last = program.steps[-1] if program.steps else None
    if not isinstance(last, LoopStep) or last.outs:
        return Schedule(program, durations, counts=False).computed
    # What follows may run while the last collectives of a microbatch do.
    last_body = without_collectives_of_weights(last.body) if gathers_once else last.body
    body = Schedule(last_body, durations, counts=False)
    return body.computed * durations.sizes.num_iterations(last)


def _seconds_after(
    nodes: Sequence[Node], program: Program, durations: Durations
) -> Any:
    """Returns the seconds of the ops of a program other than `nodes`, on one device."""
    done = {node.serial for node in nodes}
    in_memory = values_in_memory(program, durations.hardware.fuses)
    total: Any = 0.0
    for step in program.steps:
        if isinstance(step, Compute) and step.node.serial not in done:
            total = total + durations.compute(step, in_memory)
        elif isinstance(step, LoopStep) and step.node.serial not in done:
            body = Schedule(step.body, durations, counts=False).computed
            total = total + body * durations.sizes.num_iterations(step)
    return total
