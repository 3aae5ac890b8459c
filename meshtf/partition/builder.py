"""The builder of a program: it plans one node (application of an op) after another, and
appends the node's reshards and its computation to the steps of the program.

A tensor is resharded to each placement at most once, from the cheapest value. But a parameter
that was gathered is freed: see `Mesh.keep_gathered`.

    builder = Builder(mesh, planners)
    builder.add_node(node)
    builder.steps, builder.reshard_to(tensor, placement, node=None)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

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
    WindowedOp,
    WriteOp,
    factor_of,
)
from meshtf.graph.recorder import EagerStore
from meshtf.mesh import Layout, Mesh, Placement
from meshtf.mesh.placement import can_become
from meshtf.partition.control_dependencies import ControlDependencies, is_freed
from meshtf.partition.cost import reads_local_only, received_elements
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

# Tensor -> (its values, the placement that planning assumes for it).
Invariant = dict[Tensor, tuple[dict[Placement, Value], Placement]]


class PlannedBody(NamedTuple):
    """The body of a `Call`, planned at the first call; later calls reuse the plan.

    Attributes:
      program: the steps and results of the body.
      arguments: the arguments of the body, as values that its steps use.
      captures: the values of the surrounding program that the body uses.
      invariant: the tensors that are equal in all calls, and computed outside of the body.
    """

    program: Program
    arguments: tuple[Value, ...]
    captures: tuple[Value, ...]
    invariant: Invariant


class Builder:
    """Plans nodes, appends their steps, and records the values of each tensor.

    Args:
      mesh: the mesh of the program.
      planners: {type of op: function (builder, node) that plans a node of this type and
        appends its steps}, for ops with bodies: loops, branches and calls.
      notes: those of the surrounding program, if this is the builder of a body.
      stores, regions: see `build`; a store that they lack is replicated.
      varying: for the body of a loop, the axes along which devices run iterations of their own.

    Attributes:
      steps: the steps of the program so far, in the order in which they run.
      notes: remarks for the user, as the keys of a dict, so that each appears once.
      placements: {tensor: the placement that planning assumes for it}. A value in this
        placement is computed only when a node needs it.
      values: {tensor: {placement: the tensor's value in this placement}}.
      backward_values: the same for the backward pass, which gathers parameters again.
      planned_bodies: {body: the plan that all its calls share}.
    """

    def __init__(
        self,
        mesh: Mesh,
        planners: Mapping[type[Op], Planner],
        notes: dict[str, None] | None = None,
        stores: Mapping[Store, Store] | None = None,
        regions: Mapping[Layout, Layout] | None = None,
        varying: tuple[str, ...] = (),
    ) -> None:
        self.mesh = mesh
        self.varying = varying
        self.planners = planners
        self.stores = stores or {}
        self.regions = regions or {}
        self.notes: dict[str, None] = {} if notes is None else notes
        self.steps: list[Step] = []
        self.placements: dict[Tensor, Placement] = {}
        self.values: dict[Tensor, dict[Placement, Value]] = {}
        self.backward_values: dict[Tensor, dict[Placement, Value]] = {}
        self.planned_bodies: dict[Body, PlannedBody] = {}
        self.preferred = PreferredPlacement(mesh, self, self.notes)
        self.control_dependencies = ControlDependencies(self)

    def placement_of(self, tensor: Tensor) -> Placement:
        """Returns the placement that planning assumes for a tensor; appends a step that
        reads an eager tensor, at its first use.

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
            self._read(tensor, EagerStore(tensor))
        return self.placements[tensor]

    def add_node(self, node: Node) -> None:
        """Plans a node and appends its steps."""
        op = node.op
        if isinstance(op, ReadOp):
            self._read(node.outputs[0], op.store)
        elif isinstance(op, WriteOp):
            self._write(node, op)
        elif isinstance(op, HostOp):
            # The host runs the op once, so it needs the global value of each input.
            replicated = self.mesh.replicated
            values = [self.reshard_to(x, replicated, node) for x in node.inputs]
            self.steps.append(WriteStep(node, tuple(values)))
        elif type(op) in self.planners:
            self.planners[type(op)](self, node)
        else:
            self._compute(node)

    def add_tensor(
        self, tensor: Tensor, values: dict[Placement, Value], placement: Placement
    ) -> None:
        """Adds a tensor whose values other steps compute.

        Args:
          tensor: the tensor.
          values: the tensor's values by placement.
          placement: the placement that planning assumes for the tensor.
        """
        self.values[tensor] = values
        self.placements[tensor] = placement

    def reshard_to(self, tensor: Tensor, target: Placement, node: Node | None) -> Value:
        """Returns the value of a tensor in the placement `target`, and appends the
        reshards that compute it, from the cheapest existing value. `node` is the node that
        needs the value; None: a result of the program.
        """
        current = self.placement_of(tensor)
        values = self.available_values(tensor, node)
        if target not in values:
            self._append_reshards(tensor, target, node, values)
        was_partial = target is not current and bool(current.partial)
        if was_partial and not target.partial:
            # From now on, nodes use the reduced value and do not reduce the sum again.
            self.placements[tensor] = target
        return values[target]

    def _append_reshards(
        self,
        tensor: Tensor,
        target: Placement,
        node: Node | None,
        values: dict[Placement, Value],
    ) -> None:
        """Appends the reshards to `target`; adds the value that each of them computes to
        `values`, the tensor's values by placement.
        """
        start, *remaining = values
        if remaining:
            start = min(values, key=lambda p: self._cost(tensor.spec, p, target))
        placement = start
        for reshard in reshards(self.mesh.axes, start, target, tensor.shape):
            source = values[placement]
            placement = placement_after(placement, reshard)
            if placement in values:
                continue
            values[placement] = Value(tensor.spec, placement)
            waits_for: tuple[Value, ...] = ()
            if reshard.kind == "all_gather" and is_freed(tensor):
                waits_for = self.control_dependencies.of_all_gather(placement)
            self.steps.append(
                ReshardStep(
                    reshard=reshard,
                    src=source,
                    out=values[placement],
                    node=node,
                    waits_for=waits_for,
                )
            )

    def available_values(
        self, tensor: Tensor, node: Node | None
    ) -> dict[Placement, Value]:
        """Returns the values of a tensor, by placement, that a node may use.

        The gathered values of a parameter are freed after the forward pass, so a node of
        the backward pass starts from the stored value again.
        """
        values = self.values[tensor]
        # A node with primals computes cotangents: it belongs to the backward pass.
        is_backward = node is not None and bool(node.primals)
        if not is_backward or not is_freed(tensor):
            return values
        # The first value in the dict is the one that was read from the variable.
        placement, stored_value = next(iter(values.items()))
        return self.backward_values.setdefault(tensor, {placement: stored_value})

    def _cost(self, spec: Spec, old: Placement, new: Placement) -> float:
        """Returns the elements that a device receives, and 0.001 for each collective."""
        if not can_become(old, new):
            return float("inf")
        num_reshards = len(reshards(self.mesh.axes, old, new, spec.shape))
        return num_reshards * 1e-3 + received_elements(self.mesh, spec, old, new)

    def _read(self, tensor: Tensor, store: Any) -> None:
        """Appends the step that reads a store, such as a variable, as `tensor`."""
        store = self.stores.get(store, store)
        is_here = store.mesh is self.mesh
        placement = store.placement if is_here else self.mesh.replicated
        value = Value(tensor.spec, placement)
        self.steps.append(ReadStep(store, value))
        self.add_tensor(tensor, {placement: value}, placement)

    def _write(self, node: Node, op: WriteOp) -> None:
        """Appends the step that writes the variables of an op, which share one placement."""
        stores = tuple(self.stores.get(store, store) for store in op.variables)
        store = stores[0]
        outs = tuple(Value(y.spec, store.placement) for y in node.outputs)
        for y, value in zip(node.outputs, outs):
            self.add_tensor(y, {store.placement: value}, store.placement)
        values = []
        for x in node.inputs:
            # Variables with dimensions that the tensor lacks are written replicated.
            placement = store.placement.with_dims(x.shape.names)
            values.append(self.reshard_to(x, placement, node))
        self.steps.append(WriteStep(node, tuple(values), outs, stores))

    def _compute(self, node: Node) -> None:
        """Plans a node that every device computes on its shards, and appends its steps."""
        plan = self._plan(node)
        values = []
        for i, x in enumerate(node.inputs):
            value = self.reshard_to(x, plan.targets[i], node)
            values.append(self._with_window(node, i, plan, value))
        ins = tuple(values)
        outs = tuple(Value(y.spec, p) for y, p in zip(node.outputs, plan.results))
        waits_for = self.control_dependencies.of_node(node)
        gathered, residuals = self._exchange_statistics(node, plan, ins, waits_for)
        self.steps.append(
            Compute(
                node=node,
                plan=plan,
                ins=ins,
                outs=outs,
                gathered=gathered,
                residuals=residuals,
                waits_for=waits_for,
            )
        )
        uses_gathered_parameter = any(
            target != self.placements[x] and is_freed(x)
            for x, target in zip(node.inputs, plan.targets)
        )
        if uses_gathered_parameter:
            self.control_dependencies.add_user(outs[0])
        for y, value, placement in zip(node.outputs, outs, plan.finals):
            self.add_tensor(y, {value.placement: value}, placement)

    def layout_of(self, node: Node) -> Layout:
        """Returns the rules for the tensors of a node."""
        region = self.regions.get(node.region, node.region)
        return self.mesh.layout_in(region)

    def _plan(self, node: Node) -> NodePlan:
        return plan_node(
            op=node.op,
            mesh=self.mesh,
            layout=self.layout_of(node),
            ins=tuple(x.spec for x in node.inputs),
            placements=self._input_placements(node),
            outs=tuple(y.spec for y in node.outputs),
            preferred=[self.preferred.placement(node, y) for y in node.outputs],
            stage=self.preferred.stage(node),
        )

    def _input_placements(self, node: Node) -> list[Placement]:
        """Returns the placements of inputs that the planner starts from.

        An addition of partial sums that no other node has reduced starts from the partial
        sums, so that only their total is reduced.
        """
        placements = [self.placement_of(x) for x in node.inputs]
        if node.op.linearity != "joint" or len(placements) == 1:
            return placements
        computed_placements = [list(self.values[x]) for x in node.inputs]
        if any(len(candidates) > 1 for candidates in computed_placements):
            return placements
        return [candidates[0] for candidates in computed_placements]

    def _exchange_statistics(
        self,
        node: Node,
        plan: NodePlan,
        ins: tuple[Value, ...],
        waits_for: tuple[Value, ...],
    ) -> tuple[Value | None, Value | None]:
        """Appends the steps by which shards exchange statistics, if the op needs any.

        Returns:
          (gathered statistics, local residuals), the further inputs of
          `OpWithStatistics.local_sharded`; (None, None) where the op needs none.
        """
        op = node.op
        if not isinstance(op, OpWithStatistics):
            return None, None
        axes = plan.axes_of(*op.statistics_dims())
        if not axes:
            return None, None
        replicated = self.mesh.replicated
        statistics = Value(spec=None, placement=replicated, is_tuple=True)
        residuals = Value(spec=None, placement=replicated, is_tuple=True)
        gathered = Value(spec=None, placement=replicated, is_tuple=True)
        self.steps.append(
            Compute(
                node=node,
                plan=plan,
                ins=ins,
                outs=(statistics, residuals),
                makes_statistics=True,
                waits_for=waits_for,
            )
        )
        self.steps.append(
            GatherStatisticsStep(
                axes=axes, src=statistics, out=gathered, node=node, plan=plan
            )
        )
        return gathered, residuals

    def _with_window(self, node: Node, i: int, plan: NodePlan, value: Value) -> Value:
        """Returns input i of a node, extended by the elements of neighbouring shards that
        the op's windows read, such as those of a convolution.
        """
        if not isinstance(node.op, WindowedOp):
            return value
        assert value.spec is not None
        shape = value.spec.shape
        for dim in shape.names:
            window = node.op.window(i, dim)
            if window is None:
                continue
            factor = factor_of(node.op, dim)
            factor_size = dict(plan.sizes)[factor]
            axes = plan.axes_of(factor)
            num_shards = self.mesh.group_size(*axes)
            size = shape[dim]
            if not axes or reads_local_only(window, factor_size, size, num_shards):
                continue
            out = Value(value.spec, value.placement)
            self.steps.append(
                WindowStep(
                    axes=axes,
                    dim=dim,
                    window=window,
                    factor_size=factor_size,
                    src=value,
                    out=out,
                    node=node,
                )
            )
            value = out
        return value


Planner = Callable[[Builder, Node], None]
