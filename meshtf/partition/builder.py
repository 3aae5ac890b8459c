"""The builder of a program: plans node after node, and writes steps on values.

Equal reshards are made once: a tensor's versions are kept by placement, and a wanted
one is made from the version that moves fewest bytes. But a parameter that is gathered
for the forward pass is freed, and gathered again for the backward pass, unless the mesh
says `keep_gathered`.

    builder = Builder(mesh, planners)
    builder.node(node)
    builder.steps, builder.bring(tensor, placement, None)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from meshtf.errors import PlanError, explain_error
from meshtf.graph import (
    Body,
    HostOp,
    Node,
    Op,
    OpWithStatistics,
    ReadOp,
    Spec,
    Store,
    Tensor,
    WriteOp,
    factor_of,
    window_of,
)
from meshtf.mesh import Mesh, OnStage, Partial, Placement, Replicated, Sharded
from meshtf.mesh.state import finished
from meshtf.partition.control_dependencies import Waiting
from meshtf.partition.cost import bytes_received, local_size, reads_local_only
from meshtf.partition.planner import NodePlan, plan_node
from meshtf.partition.preferred_placement import PreferredPlacement
from meshtf.partition.reshard_table import placement_after, reshards
from meshtf.partition.steps import (
    Compute,
    GatherStatisticsStep,
    Program,
    ReadStep,
    ReshardStep,
    Step,
    Value,
    WindowStep,
    WriteStep,
)


class PlannedBody(NamedTuple):
    """The body of a call as it was planned at its first call."""

    program: Program
    arguments: tuple[Value, ...]
    captures: tuple[Value, ...]


class Builder:
    """Writes steps; knows in which placements each tensor is available.

    Args:
      mesh: the program's.
      planners: what plans ops with bodies and writes their steps, by kind of op.
      notes: those of the program around, for the builder of a body.
    """

    def __init__(
        self,
        mesh: Mesh,
        planners: Mapping[type[Op], Planner],
        notes: dict[str, None] | None = None,
    ) -> None:
        self.mesh = mesh
        self.planners = planners
        self.notes: dict[str, None] = {} if notes is None else notes
        self.gathered: dict[
            Tensor, dict[Placement, Value]
        ] = {}  # again, for the backward pass
        self.called: dict[Body, PlannedBody] = {}
        self.waiting = Waiting(self)
        self.wanted = PreferredPlacement(mesh, self, self.notes)
        self.steps: list[Step] = []
        self.versions: dict[Tensor, dict[Placement, Value]] = {}
        self.states: dict[
            Tensor, Placement
        ] = {}  # the placement that planning starts from

    def state(self, tensor: Tensor) -> Placement:
        """Returns where a tensor is, loading one that was made outside of the graph."""
        if tensor not in self.states:
            if tensor.sharded_value is None:
                raise PlanError(
                    explain_error(
                        "a recorded tensor is used outside of the mtf.function that "
                        "made it.",
                        tensor=repr(tensor),
                        **{"made by": tensor.node.source},
                        way_out="Return it from that function.",
                    )
                )
            self._load(tensor, _HeldStore(tensor))
        return self.states[tensor]

    def node(self, node: Node) -> None:
        """Plans a node and writes its steps."""
        op = node.op
        if isinstance(op, ReadOp):
            self._load(node.outputs[0], op.store)
        elif isinstance(op, WriteOp):
            self._write(node, op)
        elif isinstance(op, HostOp):
            self.steps.append(
                WriteStep(
                    node,
                    tuple(
                        self.reshard_to(x, self.mesh.replicated, node)
                        for x in node.inputs
                    ),
                )
            )
        elif type(op) in self.planners:
            self.planners[type(op)](self, node)
        else:
            self._compute(node)

    def given(
        self, tensor: Tensor, versions: dict[Placement, Value], state: Placement
    ) -> None:
        """Takes a tensor that is there from outside, in these versions."""
        self.versions[tensor], self.states[tensor] = versions, state

    def reshard_to(self, tensor: Tensor, target: Placement, node: Node | None) -> Value:
        """Returns a tensor in a placement, moving the nearest version of it."""
        self.state(tensor)
        versions = self.at_hand(tensor, node)
        if target not in versions:
            start = min(versions, key=lambda p: self._distance(tensor.spec, p, target))
            value, placement = versions[start], start
            for reshard in reshards(self.mesh.axes, start, target):
                placement = placement_after(self.mesh.axes, placement, reshard)
                if placement not in versions:
                    versions[placement] = Value(tensor.spec, placement)
                    freed = reshard.kind == "all_gather" and _is_freed(tensor)
                    after = self.waiting.before_gathering(placement) if freed else None
                    self.steps.append(
                        ReshardStep(reshard, value, versions[placement], node, after)
                    )
                value = versions[placement]
        if any(
            isinstance(s, Partial) for s in self.states[tensor]
        ) and target == finished(target):
            self.states[tensor] = (
                target  # it was finished once: nobody need finish it again
            )
        return versions[target]

    def at_hand(self, tensor: Tensor, node: Node | None) -> dict[Placement, Value]:
        """Where a tensor is at hand: a parameter is freed between the forward and
        backward pass.
        """
        versions = self.versions[tensor]
        if node is None or not node.primals or not _is_freed(tensor):
            return versions
        return self.gathered.setdefault(tensor, dict(list(versions.items())[:1]))

    def _beside(self, store: Store, x: Tensor, node: Node) -> Value:
        """Brings x to where a store's slices are."""
        target = tuple(
            s
            if isinstance(s, OnStage) or isinstance(s, Sharded) and s.dim in x.shape
            else Replicated
            for s in store.placement
        )
        return self.reshard_to(x, target, node)

    def _distance(self, spec: Spec, old: Placement, new: Placement) -> float:
        if any(isinstance(n, Partial) and n != o for o, n in zip(old, new)):
            return float("inf")  # nothing becomes unfinished again
        path = reshards(self.mesh.axes, old, new)
        return len(path) * 1e-3 + sum(
            bytes_received(
                m.kind, local_size(spec.shape, old, self.mesh), self.mesh.axes[m.axis]
            )
            for m in path
        )

    def _load(self, tensor: Tensor, store: Any) -> None:
        """Loads a store as it lies; whole, where it lies on another mesh than the
        program.
        """
        placement = store.placement if store.mesh is self.mesh else self.mesh.replicated
        value = Value(tensor.spec, placement)
        self.steps.append(ReadStep(store, value))
        self.versions[tensor] = {placement: value}
        self.states[tensor] = placement

    def _write(self, node: Node, op: WriteOp) -> None:
        store = op.variables[0]
        outs = tuple(Value(y.spec, store.placement) for y in node.outputs)
        for y, value in zip(node.outputs, outs):
            self.given(y, {value.placement: value}, value.placement)
        values = tuple(self._beside(store, x, node) for x in node.inputs)
        self.steps.append(WriteStep(node, values, outs))

    def _compute(self, node: Node) -> None:
        ins = tuple(x.spec for x in node.inputs)
        outs = tuple(y.spec for y in node.outputs)
        wanted = [self.wanted.placement(node, y) for y in node.outputs]
        stage = self.wanted.stage(node)
        plan = plan_node(
            node.op,
            self.mesh,
            node.layout,
            ins,
            self._states(node),
            outs,
            wanted,
            stage,
        )
        values = tuple(
            self._windowed(node, i, plan, self.reshard_to(x, target, node))
            for i, (x, target) in enumerate(zip(node.inputs, plan.targets))
        )
        results = tuple(Value(y, p) for y, p in zip(outs, plan.results))
        after = self.waiting.before(node)
        gathered, residuals = self._statistics(node, plan, values, after)
        self.steps.append(
            Compute(
                node,
                plan,
                values,
                results,
                gathered=gathered,
                residuals=residuals,
                wait_for=after,
            )
        )
        if any(
            _is_freed(x) and target != self.states[x]
            for x, target in zip(node.inputs, plan.targets)
        ):
            self.waiting.used_gathered(results[0])
        for y, value, final in zip(node.outputs, results, plan.finals):
            self.versions[y] = {value.placement: value}
            self.states[y] = final  # moved there when something needs it there

    def _states(self, node: Node) -> list[Placement]:
        """Where inputs are; where sums are added up that nobody finished yet, that is
        how they are.
        """
        states = [self.state(x) for x in node.inputs]
        if node.op.linearity == "joint" and len(states) > 1:
            made = [list(self.versions[x]) for x in node.inputs]
            if all(len(placements) == 1 for placements in made):
                return [placements[0] for placements in made]
        return states

    def _statistics(
        self, node: Node, plan: NodePlan, values: tuple[Value, ...], after: Value | None
    ) -> tuple[Value | None, Value | None]:
        """Writes the steps that exchange statistics of shards, where an op has any.

        Returns:
          What is gathered of all shards, and the residuals of each; None, None where
          the op runs without.
        """
        op, here = node.op, self.mesh.replicated
        if not isinstance(op, OpWithStatistics):
            return None, None
        axes = tuple(a for a, f in plan.sharded_factors if f in op.statistics_dims())
        if not axes:
            return None, None
        exchanged, residuals, gathered = (
            Value(None, here, is_tuple=True) for _ in range(3)
        )
        outs = exchanged, residuals
        self.steps.append(
            Compute(node, plan, values, outs, makes_statistics=True, wait_for=after)
        )
        self.steps.append(GatherStatisticsStep(axes, exchanged, gathered, node, plan))
        return gathered, residuals

    def _windowed(self, node: Node, i: int, plan: NodePlan, value: Value) -> Value:
        assert value.spec is not None
        for dim in value.spec.shape.names:
            factor = factor_of(node.op, dim)
            window = window_of(node.op, i, dim)
            for axis in plan.axes_of(factor) if window is not None else ():
                assert window is not None
                size, parts = dict(plan.sizes)[factor], self.mesh.axes[axis]
                if reads_local_only(
                    window, size, value.spec.shape[dim] // parts, parts
                ):
                    continue
                out = Value(value.spec, value.placement)
                self.steps.append(WindowStep(axis, dim, window, size, value, out, node))
                value = out
        return value


def _is_freed(tensor: Tensor) -> bool:
    """Whether a tensor is a parameter, or its cast, that is made whole only while it is
    in use.
    """
    node, mesh = tensor.node, tensor.mesh
    while len(node.inputs) == 1 and node.inputs[0].shape == tensor.shape:
        node = node.inputs[0].node
    return (
        isinstance(node.op, ReadOp)
        and node.op.store.kind == "parameter"
        and mesh is not None
        and not mesh.keep_gathered
    )


Planner = Callable[[Builder, Node], None]


class _HeldStore:
    """An eager tensor that a recorded program uses."""

    kind: Literal["argument"] = "argument"

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.name, self.spec, self.mesh = "a tensor", tensor.spec, tensor.mesh

    @property
    def placement(self) -> Placement:
        assert self.tensor.sharded_value is not None
        return self.tensor.sharded_value.placement

    def read(self) -> list[Any]:
        """Returns the values."""
        assert self.tensor.sharded_value is not None
        return self.tensor.sharded_value.values
