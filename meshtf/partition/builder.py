"""The builder of a program: plans node after node, and appends steps on values.

Equal reshards are done once: the builder has the values of each tensor by placement,
and makes one in a further placement from the value that sends the fewest bytes. But a
parameter that is gathered for the forward pass is freed, and gathered again for the
backward pass, unless the mesh says `keep_gathered`.

    builder = Builder(mesh, planners)
    builder.node(node)
    builder.steps, builder.reshard_to(tensor, placement, None)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from meshtf.mesh.state import reduced_placement
from meshtf.partition.control_dependencies import ControlDependencies
from meshtf.partition.cost import reads_local_only
from meshtf.partition.planner import NodePlan, plan_node, received_elements
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
    """The body of a call, as it was planned at its first call."""

    program: Program
    arguments: tuple[Value, ...]
    captures: tuple[Value, ...]


class Builder:
    """Appends steps; knows the values of each tensor.

    Args:
      mesh: of the program.
      planners: by kind of op, the functions that plan ops with bodies and append their
        steps.
      notes: of the surrounding program, for the builder of a body.

    Attributes:
      placements: by tensor, the placement that planning assumes. A value in it is made
        when a node needs it.
      values: by tensor, its values by placement.
      backward_values: the same for the backward pass, of parameters that are gathered
        again.
      planned_bodies: by body, the program that its calls share.
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
        self.steps: list[Step] = []
        self.placements: dict[Tensor, Placement] = {}
        self.values: dict[Tensor, dict[Placement, Value]] = {}
        self.backward_values: dict[Tensor, dict[Placement, Value]] = {}
        self.planned_bodies: dict[Body, PlannedBody] = {}
        self.preferred = PreferredPlacement(mesh, self, self.notes)
        self.control_dependencies = ControlDependencies(self)

    def placement_of(self, tensor: Tensor) -> Placement:
        """Returns the placement of a tensor; reads an eager tensor at its first use.

        Raises:
          PlanError: the tensor belongs to another recorded function.
        """
        if tensor not in self.placements:
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
            self._read(tensor, _EagerStore(tensor))
        return self.placements[tensor]

    def node(self, node: Node) -> None:
        """Plans a node and appends its steps."""
        op = node.op
        if isinstance(op, ReadOp):
            self._read(node.outputs[0], op.store)
        elif isinstance(op, WriteOp):
            self._write(node, op)
        elif isinstance(op, HostOp):
            values = [
                self.reshard_to(x, self.mesh.replicated, node) for x in node.inputs
            ]
            self.steps.append(WriteStep(node, tuple(values)))
        elif type(op) in self.planners:
            self.planners[type(op)](self, node)
        else:
            self._compute(node)

    def add_tensor(
        self, tensor: Tensor, values: dict[Placement, Value], placement: Placement
    ) -> None:
        """Adds a tensor that other steps make, with its values by placement."""
        self.values[tensor] = values
        self.placements[tensor] = placement

    def reshard_to(self, tensor: Tensor, target: Placement, node: Node | None) -> Value:
        """Returns a tensor in a placement, made from its nearest value."""
        self.placement_of(tensor)
        values = self.available_values(tensor, node)
        if target not in values:
            self._append_reshards(tensor, target, node, values)
        is_partial = any(isinstance(s, Partial) for s in self.placements[tensor])
        if is_partial and target == reduced_placement(target):
            # The sum is reduced now, so no other node need reduce it again.
            self.placements[tensor] = target
        return values[target]

    def _append_reshards(
        self,
        tensor: Tensor,
        target: Placement,
        node: Node | None,
        values: dict[Placement, Value],
    ) -> None:
        """Appends the reshards to a placement; adds the values they make to `values`."""
        start = min(values, key=lambda p: self._distance(tensor.spec, p, target))
        placement = start
        for reshard in reshards(self.mesh.axes, start, target):
            source = values[placement]
            placement = placement_after(self.mesh.axes, placement, reshard)
            if placement in values:
                continue
            values[placement] = Value(tensor.spec, placement)
            freed = reshard.kind == "all_gather" and _is_freed(tensor)
            if freed:
                wait_for = self.control_dependencies.of_gathering(placement)
            else:
                wait_for = None
            self.steps.append(
                ReshardStep(reshard, source, values[placement], node, wait_for)
            )

    def available_values(
        self, tensor: Tensor, node: Node | None
    ) -> dict[Placement, Value]:
        """Returns the values of a tensor, by placement, that a node may use.

        The gathered values of a parameter are freed between the forward and the
        backward pass.
        """
        values = self.values[tensor]
        if node is None or not node.primals or not _is_freed(tensor):
            return values
        stored = dict(list(values.items())[:1])
        return self.backward_values.setdefault(tensor, stored)

    def _distance(self, spec: Spec, old: Placement, new: Placement) -> float:
        """Returns the cost of a reshard: elements received, and a little for each
        collective. It is infinite where a partial sum would have to be made.
        """
        if any(isinstance(n, Partial) and n != o for o, n in zip(old, new)):
            return float("inf")
        num_reshards = len(reshards(self.mesh.axes, old, new))
        return num_reshards * 1e-3 + received_elements(self.mesh, spec, old, new)

    def _read(self, tensor: Tensor, store: Any) -> None:
        """Reads a store in its placement; a store of another mesh is replicated."""
        placement = self.mesh.replicated
        if store.mesh is self.mesh:
            placement = store.placement
        value = Value(tensor.spec, placement)
        self.steps.append(ReadStep(store, value))
        self.add_tensor(tensor, {placement: value}, placement)

    def _write(self, node: Node, op: WriteOp) -> None:
        """Writes variables: inputs are resharded to the placement of the variables."""
        store = op.variables[0]
        outs = tuple(Value(y.spec, store.placement) for y in node.outputs)
        for y, value in zip(node.outputs, outs):
            self.add_tensor(y, {value.placement: value}, value.placement)
        values = tuple(self._like_store(store, x, node) for x in node.inputs)
        self.steps.append(WriteStep(node, values, outs))

    def _like_store(self, store: Store, x: Tensor, node: Node) -> Value:
        """Returns x in the placement of a store; x may lack dimensions of the store."""
        target = tuple(
            s
            if isinstance(s, OnStage) or isinstance(s, Sharded) and s.dim in x.shape
            else Replicated
            for s in store.placement
        )
        return self.reshard_to(x, target, node)

    def _compute(self, node: Node) -> None:
        """Plans a node that runs on all devices, and appends its steps."""
        plan = self._plan(node)
        values = []
        for i, (x, target) in enumerate(zip(node.inputs, plan.targets)):
            value = self.reshard_to(x, target, node)
            values.append(self._with_window(node, i, plan, value))
        ins = tuple(values)
        outs = tuple(Value(y.spec, p) for y, p in zip(node.outputs, plan.results))
        wait_for = self.control_dependencies.of_node(node)
        gathered, residuals = self._exchange_statistics(node, plan, ins, wait_for)
        self.steps.append(
            Compute(
                node,
                plan,
                ins,
                outs,
                gathered=gathered,
                residuals=residuals,
                wait_for=wait_for,
            )
        )
        uses_gathered = any(
            _is_freed(x) and target != self.placements[x]
            for x, target in zip(node.inputs, plan.targets)
        )
        if uses_gathered:
            self.control_dependencies.add_user(outs[0])
        for y, value, final in zip(node.outputs, outs, plan.finals):
            self.add_tensor(y, {value.placement: value}, final)

    def _plan(self, node: Node) -> NodePlan:
        preferred = [self.preferred.placement(node, y) for y in node.outputs]
        stage = self.preferred.stage(node)
        return plan_node(
            node.op,
            self.mesh,
            node.layout,
            tuple(x.spec for x in node.inputs),
            self._input_placements(node),
            tuple(y.spec for y in node.outputs),
            preferred,
            stage,
        )

    def _input_placements(self, node: Node) -> list[Placement]:
        """Returns the placements of inputs.

        For an addition of partial sums that nothing has reduced, they are those of the
        partial sums: then one reduction of the total is enough.
        """
        placements = [self.placement_of(x) for x in node.inputs]
        if node.op.linearity == "joint" and len(placements) > 1:
            existing = [list(self.values[x]) for x in node.inputs]
            if all(len(candidates) == 1 for candidates in existing):
                return [candidates[0] for candidates in existing]
        return placements

    def _exchange_statistics(
        self,
        node: Node,
        plan: NodePlan,
        ins: tuple[Value, ...],
        wait_for: Value | None,
    ) -> tuple[Value | None, Value | None]:
        """Appends the steps by which shards exchange statistics, if the op needs any.

        Returns:
          The gathered statistics and the local residuals; None, None where the op runs
          without statistics.
        """
        op = node.op
        if not isinstance(op, OpWithStatistics):
            return None, None
        dims = op.statistics_dims()
        axes = tuple(axis for axis, factor in plan.sharded_factors if factor in dims)
        if not axes:
            return None, None
        statistics = Value(None, self.mesh.replicated, is_tuple=True)
        residuals = Value(None, self.mesh.replicated, is_tuple=True)
        gathered = Value(None, self.mesh.replicated, is_tuple=True)
        self.steps.append(
            Compute(
                node,
                plan,
                ins,
                (statistics, residuals),
                makes_statistics=True,
                wait_for=wait_for,
            )
        )
        self.steps.append(GatherStatisticsStep(axes, statistics, gathered, node, plan))
        return gathered, residuals

    def _with_window(self, node: Node, i: int, plan: NodePlan, value: Value) -> Value:
        """Returns input i with the elements that its windows read from neighbours."""
        assert value.spec is not None
        shape = value.spec.shape
        for dim in shape.names:
            window = window_of(node.op, i, dim)
            if window is None:
                continue
            factor = factor_of(node.op, dim)
            factor_size = dict(plan.sizes)[factor]
            for axis in plan.axes_of(factor):
                num_shards = self.mesh.axes[axis]
                local_size = shape[dim] // num_shards
                if reads_local_only(window, factor_size, local_size, num_shards):
                    continue
                out = Value(value.spec, value.placement)
                self.steps.append(
                    WindowStep(axis, dim, window, factor_size, value, out, node)
                )
                value = out
        return value


def _is_freed(tensor: Tensor) -> bool:
    """Whether a tensor is a parameter, or a cast of one, that is gathered only while it
    is in use.
    """
    node = tensor.node
    mesh = tensor.mesh
    while len(node.inputs) == 1 and node.inputs[0].shape == tensor.shape:
        node = node.inputs[0].node
    return (
        isinstance(node.op, ReadOp)
        and node.op.store.kind == "parameter"
        and mesh is not None
        and not mesh.keep_gathered
    )


Planner = Callable[[Builder, Node], None]


class _EagerStore:
    """An eager tensor that a recorded program uses."""

    kind: Literal["argument"] = "argument"

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.name = "a tensor"
        self.spec = tensor.spec
        self.mesh = tensor.mesh

    @property
    def placement(self) -> Placement:
        assert self.tensor.sharded_value is not None
        return self.tensor.sharded_value.placement

    def read(self) -> Sequence[Any]:
        """Returns the shard of each position."""
        assert self.tensor.sharded_value is not None
        return self.tensor.sharded_value.values
