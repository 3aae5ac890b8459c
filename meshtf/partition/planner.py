"""The planner: how one node runs, given the states of its inputs.

Axis by axis, in the order of the mesh:

    lazy    inputs are unfinished sums, the op is linear and does not grow: nothing is cut, and the
            output stays unfinished
    free    else cut a factor by which every input that is not Replicated here is cut already
    bytes   else, of the factors that an input is cut by and the one wanted by the output, cut the
            one that moves the fewest bytes, the output's move included; at ties the
            wanted one; where what is cut must be whole, another factor that no axis
            cuts, if that moves no more than to make it whole and cut it again: a sort
            along "d" is done cut by "batch"

A factor can be cut if its role is not WHOLE, all its sizes divide, and no other axis
cuts it (unless the layout says so). Outputs are then moved to the wanted placement; but
where Replicated is wanted they stay cut or unfinished until an op needs them whole: w * w of
a cut variable is cut.

    matmul x[batch, k] w[k, n], both cut by k along "model"  ->  free: k; output Partial("sum")
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Sequence
from typing import Any

from meshtf.graph import (
    Op,
    ReshardOp,
    Role,
    Spec,
    factor_of,
)
from meshtf.mesh import (
    Layout,
    Mesh,
    OnStage,
    Partial,
    Placement,
    Replicated,
    Sharded,
    State,
)
from meshtf.partition.cost import bytes_received, local_size
from meshtf.partition.reshard_table import reshards


@dataclasses.dataclass(frozen=True)
class NodePlan:
    """How one node runs."""

    targets: tuple[Placement, ...]  # of the inputs, when `local` runs
    results: tuple[Placement, ...]  # of the outputs, right after `local`
    finals: tuple[Placement, ...]  # of the outputs, after moves to the wanted state
    sharded_factors: tuple[tuple[str, str], ...]  # (axis, factor)
    sizes: tuple[tuple[str, int], ...]  # whole size of each factor
    stage: int | None = None  # where it runs; None: on all stages

    def axes_of(self, factor: str) -> tuple[str, ...]:
        """Returns the axes that cut a factor, major first."""
        return tuple(a for a, f in self.sharded_factors if f == factor)


def plan_node(
    op: Op,
    mesh: Mesh,
    layout: Layout,
    ins: Sequence[Spec],
    states: Sequence[Placement],
    outs: Sequence[Spec],
    wishes: Sequence[Placement],
    stage: int | None = None,
) -> NodePlan:
    """Returns how a node runs: pure, and computed once for equal arguments."""
    arguments = (
        op,
        layout,
        tuple(ins),
        tuple(states),
        tuple(outs),
        tuple(wishes),
        stage,
    )
    plans = _plans.setdefault(mesh, {})
    try:
        plan = plans.get(arguments)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return _Planner(mesh, *arguments).plan()
    if plan is None:
        if len(plans) >= _MOST_PLANS:
            plans.clear()
        plan = plans[arguments] = _Planner(mesh, *arguments).plan()
    return plan


_MOST_PLANS = 20_000  # of a mesh
_plans: weakref.WeakKeyDictionary[Mesh, dict[Any, NodePlan]] = (
    weakref.WeakKeyDictionary()
)


class _Planner:
    """Plans one node; `sharded_factors` grows axis by axis."""

    def __init__(
        self,
        mesh: Mesh,
        op: Op,
        layout: Layout,
        ins: tuple[Spec, ...],
        states: tuple[Placement, ...],
        outs: tuple[Spec, ...],
        wishes: tuple[Placement, ...],
        stage: int | None,
    ) -> None:
        self.stage: State = Replicated if stage is None else OnStage(stage)
        self.op, self.mesh, self.layout = op, mesh, layout
        self.ins, self.states, self.outs, self.wishes = ins, states, outs, wishes
        self.axes = tuple(mesh.axes)
        self.sizes = {
            factor_of(op, d.name): d.size for x in reversed(ins) for d in x.shape
        } | {d.name: d.size for y in outs for d in y.shape}
        self.sharded_factors: dict[str, str] = {}
        self.lazy: set[str] = set()

    def plan(self) -> NodePlan:
        if isinstance(self.op, ReshardOp):
            self.sharded_factors = {
                a: s.dim
                for a, s in zip(self.axes, self.wishes[0])
                if isinstance(s, Sharded)
            }
        else:
            self._choose()
        targets = tuple(
            tuple(
                self._target(x, s, axis, self.sharded_factors.get(axis))
                for s, axis in zip(states, self.axes)
            )
            for x, states in zip(self.ins, self.states)
        )
        results = tuple(
            tuple(
                self._result(y, axis, self.sharded_factors.get(axis))
                for axis in self.axes
            )
            for y in self.outs
        )
        finals = tuple(map(final, results, self.wishes))
        return NodePlan(
            targets,
            results,
            finals,
            tuple(self.sharded_factors.items()),
            tuple(self.sizes.items()),
            self.stage.coordinate if isinstance(self.stage, OnStage) else None,
        )

    def _choose(self) -> None:
        for i, axis in enumerate(self.axes):
            states = [s[i] for s in self.states]
            if self.mesh.axes[axis] == 1 or axis == self.mesh.stages:
                continue
            if self._stays_pending(states):
                self.lazy.add(axis)
                continue
            factor = self._free(axis, states) or self._fewest_bytes(axis, states)
            if factor is not None:
                self.sharded_factors[axis] = factor

    def _stays_pending(self, states: list[State]) -> bool:
        pending = [
            x.shape.size for x, s in zip(self.ins, states) if isinstance(s, Partial)
        ]
        linear = self.op.linearity
        sums = all(s.kind == "sum" for s in states if isinstance(s, Partial))
        if not pending or linear is None or not sums:
            return False
        if sum(y.shape.size for y in self.outs) > max(pending) * max(1, len(self.outs)):
            return False
        if linear == "joint":
            return len(pending) == len(states)
        return len(pending) == 1 and not any(isinstance(s, Sharded) for s in states)

    def _free(self, axis: str, states: list[State]) -> str | None:
        cuts = {
            s if isinstance(s, Partial) else factor_of(self.op, s.dim)
            for s in states
            if isinstance(s, (Sharded, Partial))
        }
        factor = cuts.pop() if len(cuts) == 1 else None
        return (
            factor if isinstance(factor, str) and self._can_cut(factor, axis) else None
        )

    def _fewest_bytes(self, axis: str, states: list[State]) -> str | None:
        i = self.mesh.axis_index[axis]
        wanted = [s.dim for w in self.wishes if isinstance(s := w[i], Sharded)]
        held = [factor_of(self.op, s.dim) for s in states if isinstance(s, Sharded)]
        choices = [f for f in dict.fromkeys(wanted + held) if self._can_cut(f, axis)]
        if not choices and held:
            return self._instead(axis)
        if len(choices) < 2:
            return choices[0] if choices else None
        return min(choices, key=lambda f: self._bytes(f, axis))

    def _instead(self, axis: str) -> str | None:
        """Returns a factor to cut in place of one that must be whole; None: nothing
        moves less.
        """
        taken = {
            factor_of(self.op, s.dim)
            for placement in (*self.states, *self.wishes)
            for s in placement
            if isinstance(s, Sharded)
        }
        free = [f for f in self.sizes if f not in taken and self._can_cut(f, axis)]
        return min([*free, None], key=lambda f: self._bytes(f, axis))

    def _can_cut(self, factor: str, axis: str) -> bool:
        if factor not in self.sizes or self.op.role(factor) is Role.WHOLE:
            return False
        others = [a for a, f in self.sharded_factors.items() if f == factor]
        if others and not {*others, axis} <= set(self.layout.axes(factor)):
            return False
        parts = math.prod(self.mesh.axes[a] for a in (*others, axis))
        sizes = [
            d.size
            for x in self.ins
            for d in x.shape
            if factor_of(self.op, d.name) == factor
        ]
        sizes += [y.shape[factor] for y in self.outs if factor in y.shape]
        return not any(size % parts for size in (*sizes, self.sizes[factor]))

    def _bytes(self, factor: str | None, axis: str) -> float:
        """Elements that one device receives if `axis` cuts `factor`, other axes as they
        are.
        """
        i = self.mesh.axis_index[axis]
        total = 0.0
        for x, states in zip(self.ins, self.states):
            target = (
                *states[:i],
                self._target(x, states[i], axis, factor),
                *states[i + 1 :],
            )
            total += self._moved(x, states, target)
        for y, wish in zip(self.outs, self.wishes):
            result = (*wish[:i], self._result(y, axis, factor), *wish[i + 1 :])
            total += self._moved(y, result, wish)
        return total

    def _moved(self, spec: Spec, old: Placement, new: Placement) -> float:
        return sum(
            bytes_received(
                m.kind, local_size(spec.shape, old, self.mesh), self.mesh.axes[m.axis]
            )
            for m in reshards(self.mesh.axes, old, new)
        )

    def _target(self, x: Spec, state: State, axis: str, factor: str | None) -> State:
        """Returns how an input lies along an axis that shards a factor, or none."""
        if axis == self.mesh.stages and self.mesh.axes[axis] > 1:
            return self.stage
        if axis in self.lazy or self.mesh.axes[axis] == 1:
            return state
        if factor is None:
            return Replicated
        dim = next((n for n in x.shape.names if factor_of(self.op, n) == factor), None)
        return Sharded(dim) if dim is not None else Replicated

    def _result(self, y: Spec, axis: str, factor: str | None) -> State:
        """Returns how an output lies along an axis that shards a factor, or none."""
        if axis == self.mesh.stages and self.mesh.axes[axis] > 1:
            return self.stage
        if axis in self.lazy:
            return Partial("sum")
        if factor is None:
            return Replicated
        role = self.op.role(factor)
        if role is Role.MAP:
            return Sharded(factor) if factor in y.shape else Replicated
        return Replicated if role is Role.SAME else Partial(role.value)


def final(result: Placement, wish: Placement) -> Placement:
    """Returns where an output stays: what is cut or unfinished stays so where Replicated is
    wished, unless another axis is to cut it."""
    return tuple(
        r if w == Replicated and not (isinstance(r, Sharded) and r in wish) else w
        for r, w in zip(result, wish)
    )
