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

from meshtf.forecast.memory.peak_memory import num_stages
from meshtf.forecast.op_costs import global_flops
from meshtf.forecast.placed_tensors import PlacedTensors
from meshtf.forecast.report_data import (
    Collective,
    Phase,
    PlacedTensor,
    without_indices,
)
from meshtf.graph import Node
from meshtf.hardware import CollectiveTimes
from meshtf.mesh import Mesh, OnStage, Partial, Placement
from meshtf.partition import (
    BranchStep,
    CallStep,
    Compute,
    GatherStatisticsStep,
    LoopStep,
    Program,
    ReshardStep,
    Value,
    WindowStep,
)
from meshtf.partition.cost import (
    bytes_received,
    elements_received,
    local_bytes,
    local_shape,
)


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

    def add_reshard(self, step: ReshardStep, times: int) -> None:
        """Adds the collective of a reshard.

        Args:
          step: the reshard.
          times: how often it runs in one call of the program.
        """
        reshard = step.reshard
        origin = self._origins.get(step.src)
        reduces = isinstance(reshard.before, Partial)
        self._add(
            step.node,
            origin=origin if reduces else step.node,
            kind=reshard.kind,
            axis=reshard.axes_text,
            before=self._tensors.of_value(step.src),
            after=self._tensors.of_value(step.out),
            received=_received_by_reshard(step, self._mesh),
            times=times,
        )
        if origin is not None:  # the output may still be partial along other axes
            self._origins[step.out] = origin

    def add_window(self, step: WindowStep, times: int) -> None:
        """Adds the neighbour (halo) exchange of an op, such as a convolution, that reads
        windows of a sharded dimension.
        """
        tensor = self._tensors.of_value(step.src)
        self._add(
            step.node,
            origin=step.node,
            kind="window",
            axis="+".join(step.axes),
            before=tensor,
            after=tensor,
            received=_received_by_window(step, self._mesh),
            times=times,
        )

    def add_statistics(self, step: GatherStatisticsStep, times: int) -> None:
        """Adds the all_gather of an op's statistics: small tensors that each shard computes
        and all shards need, such as the maxima of a softmax.

        An op may exchange several tensors. Their bytes are added, and the largest tensor
        represents them all.
        """
        specs = step.specs(self._mesh)
        largest_spec = max(specs, key=lambda spec: spec.shape.size)
        largest = self._tensors.of(largest_spec, self._mesh.replicated)
        self._add(
            step.node,
            origin=step.node,
            kind="gather_statistics",
            axis="+".join(step.axes),
            before=largest,
            after=largest,
            received=_received_by_statistics(step, self._mesh),
            times=times,
        )

    def _add(
        self,
        node: Node | None,
        *,
        origin: Node | None,
        kind: str,
        axis: str,
        before: PlacedTensor,
        after: PlacedTensor,
        received: float,
        times: int,
    ) -> None:
        """Adds a collective.

        Args:
          node: the op that needs the collective; None: the results of the program.
          origin: the op whose phase the collective has; None: the results.
          kind: the kind of collective, such as "all_reduce".
          axis: the mesh axis; several are joined by "+".
          before: the tensor before the collective.
          after: the tensor after the collective.
          received: the bytes that one device receives, each time.
          times: how often the collective runs in one call of the program.
        """
        path = ""
        named_node = origin or node
        if named_node is not None:
            path = without_indices("/".join(named_node.path))
        seconds = 0.0
        if self._times is not None:
            seconds = float(self._times.seconds(kind, axis.split("+"), received))
        collective = Collective(
            kind=kind,
            axis=axis,
            tensor=before,
            after=after,
            bytes=received,
            phase=self.phase_of(origin),
            times=times,
            path=path,
            seconds=seconds,
        )
        self._pending.setdefault(node, []).append(collective)

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
        if isinstance(step, ReshardStep):
            total += _received_by_reshard(step, program.mesh)
        elif isinstance(step, WindowStep):
            total += _received_by_window(step, program.mesh)
        elif isinstance(step, GatherStatisticsStep):
            total += _received_by_statistics(step, program.mesh)
        elif isinstance(step, LoopStep):
            bodies = [body for body in (step.test, step.body) if body is not None]
            total += sum(map(received_bytes, bodies)) * (step.op.num_iterations or 1)
        elif isinstance(step, CallStep):
            if step.body not in received_by_calls:
                received_by_calls[step.body] = received_bytes(step.body)
            total += received_by_calls[step.body]
        elif isinstance(step, BranchStep):
            total += received_bytes(max(step.bodies, key=global_flops))
    return total


def _received_by_reshard(step: ReshardStep, mesh: Mesh) -> float:
    """Returns the bytes that a device receives in a reshard."""
    reshard = step.reshard
    assert step.src.spec is not None
    num_bytes = local_bytes(step.src.spec, step.src.placement, mesh)
    num_devices = reshard.num_exchanging(mesh.axes)
    received = bytes_received(reshard.kind, num_bytes, num_devices)
    # The mean over the stages of a pipeline. A reshard along the axis of the stages concerns
    # all of them; along any other axis only those that hold the tensor.
    if mesh.stages not in reshard.axes:
        received *= _fraction_of_stages(step.src.placement, mesh)
    return received


def _received_by_window(step: WindowStep, mesh: Mesh) -> float:
    """Returns the bytes that a device receives in an exchange with its neighbours."""
    spec, placement = step.src.spec, step.src.placement
    assert spec is not None
    local_size = local_shape(spec.shape, placement, mesh)[step.dim]
    # `factor_size` is the global size of the dimension in the op's output.
    received_length = elements_received(
        step.window,
        step.factor_size,
        input_size=local_size,
        num_shards=mesh.group_size(*step.axes),
    )
    num_bytes = local_bytes(spec, placement, mesh) * (received_length / local_size)
    return num_bytes * _fraction_of_stages(placement, mesh)


def _received_by_statistics(step: GatherStatisticsStep, mesh: Mesh) -> float:
    """Returns the bytes that a device receives in an exchange of statistics."""
    bytes_per_shard = sum(
        local_bytes(spec, mesh.replicated, mesh) for spec in step.specs(mesh)
    )
    received_shards = float(step.num_shards(mesh) - 1)
    # The mean over the stages, of which only one exchanges these statistics.
    if step.plan.stage is not None:
        received_shards /= num_stages(mesh)
    return bytes_per_shard * received_shards


def _fraction_of_stages(placement: Placement, mesh: Mesh) -> float:
    """Returns the fraction of the pipeline stages that hold a tensor."""
    if any(isinstance(state, OnStage) for state in placement):
        return 1 / num_stages(mesh)
    return 1.0


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
    return any(
        isinstance(state, Partial) and state == state_after
        for state, state_after in zip(before.placement, after.placement)
    )
