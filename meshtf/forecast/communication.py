"""The communication of a program: the bytes and the phase of each collective, and the op
that needs it.

A collective that reduces a partial sum has the phase of the op that computed the sum, even
if ops that keep the sum partial, or the end of a loop, lie between the two. Any other
collective has the phase of the op that needs it. Everything in the body of a loop of the
backward pass is backward.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from meshtf.forecast.op_costs import global_flops
from meshtf.forecast.placed_tensors import PlacedTensors
from meshtf.forecast.report_data import (
    Collective,
    Phase,
    without_indices,
)
from meshtf.graph import Node
from meshtf.hardware import CollectiveTimes
from meshtf.mesh import Mesh
from meshtf.mesh.shard_sizes import shard_size
from meshtf.partition import CollectiveStep, Compute, Program, Value
from meshtf.partition.cost import local_bytes
from meshtf.partition.reshard_table import Reshard


class Communication:
    """Collects collectives while the steps of a program are visited in order.

    Args:
      phases: the phase of each node.
      tensors: describes the tensors before and after a collective.
      mesh: the mesh of the program.
      times: predicts the seconds of collectives; None: the hardware is unknown.
    """

    def __init__(
        self,
        phases: Mapping[Node, Phase],
        tensors: PlacedTensors,
        mesh: Mesh,
        times: CollectiveTimes | None = None,
    ) -> None:
        self._phases = phases
        self._tensors = tensors
        self._mesh = mesh
        self._times = times
        # The phase of the innermost loop, branch or call that contains the current step.
        self._enclosing_phase: Phase = "forward"
        self._origins: dict[Value, Node] = {}  # the op that computed a partial sum
        # Collectives by the op that needs them, until `pop` returns them.
        self._pending: dict[Node | None, list[Collective]] = {}

    @contextlib.contextmanager
    def body_of(self, node: Node) -> Iterator[None]:
        """Within this context, steps belong to the body of a loop, branch or call."""
        outer_phase = self._enclosing_phase
        self._enclosing_phase = self.phase_of(node)
        yield
        self._enclosing_phase = outer_phase

    def phase_of(self, node: Node | None) -> Phase:
        """Returns the phase of the steps of a node; None: of the program's results.

        All of a body has the phase of its loop, branch or call, if that is not the forward
        pass: a body that the backward pass runs belongs to it as a whole.
        """
        if self._enclosing_phase != "forward" or node is None:
            return self._enclosing_phase
        return self._phases.get(node, "forward")

    def record_origins(self, step: Compute) -> None:
        """Records which op computed each output of a step.

        A partial sum that a step keeps partial keeps its origin, unless the step belongs
        to the backward pass and the origin to the forward pass.
        """
        backward = self.phase_of(step.node) == "backward"
        for out in step.outs:
            self._origins[out] = step.node
            for value in step.ins:
                origin = self._origins.get(value)
                if origin is None or not _stays_partial(value, out):
                    continue
                # The phase of the origin itself, which may be outside of the present body.
                if backward and self._phases.get(origin, "forward") == "forward":
                    continue
                self._origins[out] = origin
                break

    def pass_origins(self, results: Iterable[Value], outs: Iterable[Value]) -> None:
        """Copies the origins of a body's results to the outputs of its loop, branch or
        call.
        """
        for result, out in zip(results, outs):
            if result in self._origins:
                self._origins[out] = self._origins[result]

    def add(self, step: CollectiveStep, times: int, merged: bool = False) -> None:
        """Adds a collective.

        Args:
          step: the collective.
          times: how often it runs in one call of the program.
          merged: whether it runs together with another one, which has the latency.
        """
        node = step.node
        origin = node
        for reduction in step.reductions:
            origin = self._origins.get(reduction.src)
        before, after = step.exchanged(self._mesh)
        named_node = origin or node
        path = ""
        if named_node is not None:
            path = without_indices("/".join(named_node.path))
        received = _received(step, self._mesh)
        seconds = 0.0
        if self._times is not None:
            seconds = float(self._times.seconds(step.kind, step.axes, received, merged))
        collective = Collective(
            kind=step.kind,
            axis="+".join(step.axes),
            tensor=self._tensors.of(*before),
            after=self._tensors.of(*after),
            bytes=received,
            phase=self.phase_of(origin),
            times=times,
            path=path,
            seconds=seconds,
        )
        self._pending.setdefault(node, []).append(collective)
        # The output may still be partial along other axes.
        for reshard in step.reshards:
            if reshard.src in self._origins:
                self._origins[reshard.out] = self._origins[reshard.src]

    def pop(self, node: Node | None) -> tuple[Collective, ...]:
        """Removes and returns the collectives that were added for a node; None: for the
        results of the program.
        """
        return tuple(self._pending.pop(node, ()))


def received_bytes(program: Program) -> float:
    """Returns the bytes that a device receives in one call of a program, as the mean over the
    stages: `ForecastData.bytes_moved` without a forecast.
    """
    total = 0.0
    received_by_calls: dict[Program, float] = {}
    for step in program.steps:
        if step.collective is not None:
            total += _received(step.collective, program.mesh)
        for body in step.bodies_by(global_flops):
            if step.call is None or body.program not in received_by_calls:
                received_by_calls[body.program] = received_bytes(body.program)
            total += received_by_calls[body.program] * body.runs
    return total


def _received(step: CollectiveStep, mesh: Mesh) -> float:
    """Returns the bytes that a device receives in a collective, as the mean over the stages of
    a pipeline. A collective along the axis of the stages concerns all of them; along any other
    axis only those that run it.
    """
    received = float(step.received(PlannedSizes(mesh)))
    if mesh.stages not in step.axes and step.stage is not None:
        received /= mesh.num_stages
    return received


class PlannedSizes(NamedTuple):
    """The sizes on one device for which a program was planned: see `ShardSizes`."""

    mesh: Mesh

    def local_bytes(self, value: Value) -> float:
        """Returns the bytes of one shard of a value."""
        assert value.spec is not None
        return local_bytes(value.spec, value.placement, self.mesh)

    def group_size(self, axes: tuple[str, ...]) -> int:
        """Returns how many devices differ along axes."""
        return self.mesh.group_size(*axes)

    def num_exchanging(self, reshard: Reshard) -> float:
        """Returns `Reshard.num_exchanging`."""
        return reshard.num_exchanging(self.mesh.axes)

    def local_size(self, name: str, size: int, axes: tuple[str, ...]) -> int:
        """Returns the size of a dimension on one device, with padding."""
        for axis in axes:
            size = shard_size(size, self.mesh.axes[axis])
        return size


def merge_equal(collectives: Iterable[Collective]) -> tuple[Collective, ...]:
    """Returns each distinct collective once, with the sum of its `times`."""
    times: collections.Counter[Collective] = collections.Counter()
    for collective in collectives:
        times[dataclasses.replace(collective, times=1)] += collective.times
    return tuple(
        dataclasses.replace(collective, times=total)
        for collective, total in times.items()
    )


def _stays_partial(before: Value, after: Value) -> bool:
    """Returns whether both values are partial results of one kind along a mesh axis."""
    partial = before.placement.partial.items()
    return not partial.isdisjoint(after.placement.partial.items())
