"""The planner: chooses how one node (an application of an op) runs, from the placements of
its inputs.

For each axis of the mesh, in order, the first of these rules that applies chooses the
factor (the dimension of the op's iteration space, see `graph.Op`) that the axis shards:

    lazy    inputs are partial sums, the op is linear, and its outputs are not larger:
            no factor is sharded, and the output is a partial sum as well
    free    all inputs that are not replicated along this axis are sharded by the same
            factor: shard that factor
    bytes   among the factors that shard an input, or an output in its preferred
            placement, shard the one that sends the fewest bytes, the reshard of the
            output included; at a tie the preferred one. If none of them may be sharded,
            shard a factor that no axis shards, if that sends no more bytes than an
            all_gather: a sort along "d" runs sharded by "batch"

A factor can be sharded if its role is not UNSHARDED, the axis size divides all sizes of the
factor (or the mesh pads, and the op allows it), and no other axis shards it, unless the layout
says so, or an input or the preferred placement of an output is sharded by both. Outputs are then
resharded to the preferred placement. But where the preferred state is Replicated, they stay
sharded or partial until an op needs all elements. Where several axes shard a factor, their order
is the one that most elements of inputs and preferred outputs already have.

    matmul x[batch, k] w[k, n], both sharded by k along "model" -> free: k; output Partial("sum")
"""

from __future__ import annotations

import collections
import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any

from meshtf.graph import Op, ReshardOp, Role, Spec, factor_of
from meshtf.mesh import (
    Layout,
    Mesh,
    Partial,
    Placement,
    Replicated,
    Sharded,
    State,
    Varying,
)
from meshtf.mesh.placement import OtherState
from meshtf.partition.cost import all_sizes, can_pad, factor_sizes, received_elements
from meshtf.partition.preferred_placement import final_placement, rules_for

_MAX_PLANS = 20_000  # of one mesh; when the cache has so many, it is cleared


class _Plans(dict[Any, "NodePlan"]):
    """{arguments of `plan_node`: plan}, for meshes that are equal as far as plans depend on
    them. A subclass of dict can be referred to weakly.
    """


_plans: weakref.WeakKeyDictionary[Mesh, _Plans] = weakref.WeakKeyDictionary()
# What plans depend on -> the plans, as long as a mesh has them.
_shared_plans: weakref.WeakValueDictionary[Any, _Plans] = weakref.WeakValueDictionary()


@dataclasses.dataclass(frozen=True)
class NodePlan:
    """How one node runs.

    Attributes:
      targets: the placement of each input when `Op.local` runs.
      results: the placement of each output right after `Op.local`.
      finals: the placement that each output is resharded to, if a later node needs it.
      factor_axes: (factor, the axes that shard it, the major one first), for each factor that
        is sharded.
      sizes: (factor, its global size) for each factor.
      maps: whether all factors have the role MAP.
      stage: the pipeline stage on which the node runs; None: on all stages.
    """

    targets: tuple[Placement, ...]
    results: tuple[Placement, ...]
    finals: tuple[Placement, ...]
    factor_axes: tuple[tuple[str, tuple[str, ...]], ...]
    sizes: tuple[tuple[str, int], ...]
    maps: bool
    stage: int | None = None

    def axes_of(self, *factors: str) -> tuple[str, ...]:
        """Returns the axes that shard some factors, the major axis of each first."""
        return tuple(
            axis for name, axes in self.factor_axes if name in factors for axis in axes
        )

    @property
    def sharding_axes(self) -> frozenset[str]:
        """The axes that shard a factor."""
        return frozenset(axis for _factor, axes in self.factor_axes for axis in axes)


def plan_node(
    op: Op,
    mesh: Mesh,
    layout: Layout,
    ins: Sequence[Spec],
    placements: Sequence[Placement],
    outs: Sequence[Spec],
    preferred: Sequence[Placement],
    stage: int | None = None,
) -> NodePlan:
    """Returns how a node runs. The plan is cached: equal arguments give the same plan.

    Args:
      op: the op of the node.
      mesh: the mesh on which the node runs.
      layout: the layout that applies to the node.
      ins: the specs of the inputs.
      placements: the placements of the inputs.
      outs: the specs of the outputs.
      preferred: the placements that the outputs should have.
      stage: the pipeline stage on which the node runs; None: all stages.
    """
    tensors = tuple(ins), tuple(placements), tuple(outs), tuple(preferred)
    arguments = (op, layout, *tensors, stage)
    plans = _plans.get(mesh)
    if plans is None:
        # Meshes of equal axes, stages and padding share plans.
        key = tuple(mesh.axes.items()), mesh.stages, mesh.pads
        plans = _plans[mesh] = _shared_plans.setdefault(key, _Plans())
    try:
        plan = plans.get(arguments)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        # An op with an unhashable attribute is planned anew each time.
        return _Planner(mesh, *arguments).plan()
    if plan is None:
        if len(plans) >= _MAX_PLANS:
            plans.clear()
        # Layouts with the same rules for this op share its plan.
        rules = (op, rules_for(op, layout, ins, outs), *tensors, stage)
        plan = plans.get(rules) or _Planner(mesh, *arguments).plan()
        plans[arguments] = plans[rules] = plan
    return plan


@dataclasses.dataclass
class _Planner:
    """Plans one node; the arguments are those of `plan_node`."""

    mesh: Mesh
    op: Op
    layout: Layout
    ins: tuple[Spec, ...]
    placements: tuple[Placement, ...]
    outs: tuple[Spec, ...]
    preferred: tuple[Placement, ...]
    stage: int | None

    def __post_init__(self) -> None:
        self.axes = tuple(self.mesh.axes)
        self.sizes = factor_sizes(self.op, self.ins, self.outs)
        # A factor may have several sizes, in the tensors of an op with windows.
        self.all_sizes = all_sizes(self.op, self.ins, self.outs)
        # Factor -> the axes that shard it, of the axes that were planned so far.
        self.factor_axes: dict[str, tuple[str, ...]] = {}
        self.lazy: set[str] = set()  # the axes along which partial sums stay partial
        # The axes along which devices run iterations of their own.
        self.varying = {
            axis
            for placement in (*self.placements, *self.preferred)
            for axis, state in placement.other_states.items()
            if state is Varying
        }

    def plan(self) -> NodePlan:
        """Returns the plan of the node."""
        if isinstance(self.op, ReshardOp):
            self.factor_axes = dict(self.preferred[0].shards)
        else:
            self._choose_factors()
            for factor, axes in self.factor_axes.items():
                self.factor_axes[factor] = self._in_order(factor, axes)
        targets = tuple(map(self._input_placement, self.ins, self.placements))
        results = tuple(map(self._output_placement, self.outs))
        return NodePlan(
            targets=targets,
            results=results,
            finals=tuple(map(final_placement, results, self.preferred)),
            factor_axes=tuple(self.factor_axes.items()),
            sizes=tuple(self.sizes.items()),
            maps=all(self.op.role(factor) is Role.MAP for factor in self.sizes),
            stage=self.stage,
        )

    def _choose_factors(self) -> None:
        """Chooses a factor, or none, for each axis."""
        for axis in self.axes:
            if self.mesh.axes[axis] == 1 or axis == self.mesh.stages:
                continue
            if axis in self.varying:
                continue
            # The state of each input along this axis.
            states = [placement[axis] for placement in self.placements]
            if self._stays_partial(states):
                self.lazy.add(axis)
                continue
            factor = self._free_factor(axis, states)
            if factor is None:
                factor = self._cheapest_factor(axis, states)
            if factor is not None:
                self.factor_axes[factor] = (*self.factor_axes.get(factor, ()), axis)

    def _in_order(self, factor: str, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the axes of a factor in the order that most elements have, of tensors that all
        of them shard; as they are, in the order of the mesh, without such a tensor.
        """
        if len(axes) == 1:
            return axes
        elements: collections.Counter[tuple[str, ...]] = collections.Counter()
        for y, placement in zip(self.outs, self.preferred):
            elements[placement.axes_of(factor)] += y.shape.size
        for x, placement in zip(self.ins, self.placements):
            for dim, dim_axes in placement.shards.items():
                if factor_of(self.op, dim) == factor:
                    elements[dim_axes] += x.shape.size
        orders = [order for order in elements if set(order) == set(axes)]
        return max(orders, key=elements.__getitem__, default=axes)

    def _stays_partial(self, states: list[State]) -> bool:
        """Whether the op computes a partial sum from the partial sums among its inputs,
        whose states along one axis are `states`: rule lazy.
        """
        partial_sizes = [
            x.shape.size for x, s in zip(self.ins, states) if isinstance(s, Partial)
        ]
        all_sums = all(s.kind == "sum" for s in states if isinstance(s, Partial))
        linearity = self.op.linearity
        if not partial_sizes or linearity is None or not all_sums:
            return False
        # Each output may be as large as the largest partial input, or sparse: a loop adds those up.
        output_size = sum(y.shape.size for y in self.outs)
        limit = max(partial_sizes) * max(1, len(self.outs))
        if linearity != "sparse" and output_size > limit:
            return False
        # "joint" (x + y): all inputs are partial; "each" (x * y): one, and no other is sharded;
        # "first" (a lookup): the first one, and no other is sharded.
        if linearity == "joint":
            return len(partial_sizes) == len(states)
        any_sharded = any(isinstance(s, Sharded) for s in states)
        partial = [i for i, s in enumerate(states) if isinstance(s, Partial)]
        is_linear = linearity == "each" or partial == [0]
        return len(partial) == 1 and is_linear and not any_sharded

    def _free_factor(self, axis: str, states: list[State]) -> str | None:
        """Returns the factor that rule free shards; None: the rule does not apply."""
        if any(isinstance(s, Partial) for s in states):
            return None
        factors = {factor_of(self.op, s.dim) for s in states if isinstance(s, Sharded)}
        if len(factors) != 1:
            return None
        factor = factors.pop()
        if self._can_shard(factor, axis):
            return factor
        return None

    def _cheapest_factor(self, axis: str, states: list[State]) -> str | None:
        """Returns the factor that rule bytes shards; None: the rule shards no factor."""
        # Dimensions of outputs are named as their factors.
        preferred_states = [placement[axis] for placement in self.preferred]
        preferred_factors = [s.dim for s in preferred_states if isinstance(s, Sharded)]
        current_factors = [
            factor_of(self.op, s.dim) for s in states if isinstance(s, Sharded)
        ]
        # Preferred factors come first, so that they are chosen at ties.
        candidates = dict.fromkeys(preferred_factors + current_factors)
        choices = [factor for factor in candidates if self._can_shard(factor, axis)]
        if not choices and current_factors:
            return self._unused_factor(axis)
        if not choices:
            return None
        if len(choices) == 1:
            return choices[0]
        return min(choices, key=lambda factor: self._num_received(factor, axis))

    def _unused_factor(self, axis: str) -> str | None:
        """Returns a factor that no axis shards yet, for `axis` to shard while the factors
        that must not be sharded are gathered; None: fewer bytes are sent without it.
        """
        sharded = {
            factor_of(self.op, dim)
            for placement in (*self.placements, *self.preferred)
            for dim in placement.shards
        }
        choices: list[str | None] = []
        for factor in self.sizes:
            is_even = not self.sizes[factor] % self.mesh.axes[axis]
            if factor not in sharded and is_even and self._can_shard(factor, axis):
                choices.append(factor)
        choices.append(None)
        return min(choices, key=lambda factor: self._num_received(factor, axis))

    def _can_shard(self, factor: str, axis: str) -> bool:
        """Whether an axis may shard a factor, given the factors that earlier axes shard."""
        if factor not in self.sizes or self.op.role(factor) is Role.UNSHARDED:
            return False
        axes = (*self.factor_axes.get(factor, ()), axis)
        if len(axes) > 1 and not any(
            set(axes) <= allowed_axes for allowed_axes in self._axes_together(factor)
        ):
            return False
        num_shards = self.mesh.group_size(*axes)
        sizes = self.all_sizes[factor]
        if not any(size % num_shards for size in sizes):
            return True
        if not self.mesh.pads or len(sizes) > 1:
            return False
        return can_pad(factor, self.op, self.ins, [self.mesh.axes[a] for a in axes])

    def _axes_together(self, factor: str) -> list[set[str]]:
        """Returns sets of axes that may shard a factor together: those of the layout, and
        those that shard it in an input, or in the preferred placement of an output.
        """
        result = [set(self.layout.axes(factor))]
        for placement in self.placements:
            axes_together: set[str] = set()
            for dim, axes in placement.shards.items():
                if factor_of(self.op, dim) == factor:
                    axes_together.update(axes)
            result.append(axes_together)
        result += [set(placement.axes_of(factor)) for placement in self.preferred]
        return result

    def _num_received(self, factor: str | None, axis: str) -> float:
        """Returns the elements that one device receives if `axis` shards `factor` (None:
        no factor), and the states along all other axes do not change.
        """
        total = 0.0
        for x, placement in zip(self.ins, self.placements):
            state = self._input_state(x, factor)
            target = placement.with_state(axis, state, self.axes)
            total += received_elements(self.mesh, x, placement, target)
        for y, preferred in zip(self.outs, self.preferred):
            state = self._output_state(y, factor)
            result = preferred.with_state(axis, state, self.axes)
            total += received_elements(self.mesh, y, result, preferred)
        return total

    def _input_placement(self, x: Spec, placement: Placement) -> Placement:
        """Returns the placement in which the op takes an input that has `placement` before."""
        shards: dict[str, tuple[str, ...]] = {}
        for factor, axes in self.factor_axes.items():
            state = self._input_state(x, factor)
            if isinstance(state, Sharded):
                shards[state.dim] = axes
        other_states = {
            axis: state
            for axis, state in placement.other_states.items()
            if axis in self.lazy or state is Varying
        }
        target = Placement.of(shards, other_states)
        return target.with_stage(self.mesh.stages, self.stage)

    def _input_state(self, x: Spec, factor: str | None) -> State:
        """Returns the state of an input along an axis that shards `factor` (None: no
        factor).
        """
        for name in x.shape.names:
            if factor_of(self.op, name) == factor:
                return Sharded(name)
        return Replicated

    def _output_placement(self, y: Spec) -> Placement:
        """Returns the placement of an output, as the op computes it."""
        shards: dict[str, tuple[str, ...]] = {}
        other_states: dict[str, OtherState] = dict.fromkeys(self.lazy, Partial("sum"))
        other_states.update(dict.fromkeys(self.varying, Varying))
        for factor, axes in self.factor_axes.items():
            state = self._output_state(y, factor)
            if isinstance(state, Sharded):
                shards[factor] = axes
            elif isinstance(state, Partial):
                other_states.update(dict.fromkeys(axes, state))
        return Placement.of(shards, other_states).with_stage(
            self.mesh.stages, self.stage
        )

    def _output_state(self, y: Spec, factor: str | None) -> State:
        """Returns the state of an output along an axis that shards `factor` (None: no
        factor).
        """
        if factor is None:
            return Replicated
        role = self.op.role(factor)
        # An output that has the factor is sharded by it if another output is reduced over it.
        is_mapped = role is Role.MAP or any(
            factor not in out.shape for out in self.outs
        )
        if role is not Role.SAME and is_mapped and factor in y.shape:
            return Sharded(factor)
        return Replicated if role in (Role.MAP, Role.SAME) else Partial(role.value)
