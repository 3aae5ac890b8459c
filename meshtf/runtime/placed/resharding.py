"""Moves of the placed runtime: plain TensorFlow ops between the devices of positions.

    class Placed(Mover): ...       # `execute` of a move finds these

A value is a list with one tensor for each position, None where it lies at another
stage. What groups of positions would do alike, since they hold the very same tensors,
is done once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from meshtf.mesh import Mesh, OnStage, Partial, Sharded
from meshtf.partition import Bucket, GatherStatisticsStep, MoveStep, WindowStep
from meshtf.runtime.devices.resolve import devices_of, kept_separate
from meshtf.runtime.lowering.step_executor import StepExecutor
from meshtf.runtime.placed.collectives import bucketed, collectives_for, shared_memory
from meshtf.runtime.placed.collectives.primitives import piece, send
from meshtf.runtime.placed.collectives.window_exchange import rows_of_slices
from meshtf.runtime.placed.program.symbolic_tensor import runs_now
from meshtf.runtime.placed.program.tensor_ops import identity, split

Shards = list[Any]


class ReshardExecutor(StepExecutor):
    """Carries out communication between the positions of a mesh."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__(mesh)
        self.devices = devices_of(mesh)
        self.separate = kept_separate(mesh)

    def _reshard(self, step: MoveStep) -> Shards:
        cut, join = _axes(step)
        before, kind = step.move.before, step.move.kind
        reduction = before.kind if isinstance(before, Partial) else ""

        def collective(xs: Shards, devices: Sequence[str]) -> Shards:
            how = collectives_for(devices, self.separate)
            if kind == "all_reduce":
                return how.all_reduce(xs, devices, reduction)
            if kind == "reduce_scatter":
                return how.reduce_scatter(xs, devices, reduction, cut)
            if kind == "all_gather":
                return how.all_gather(xs, devices, join)
            return how.all_to_all(xs, devices, cut, join)

        if kind == "slice":
            return self._slice(step, cut)
        if kind in ("drop", "send", "broadcast"):
            return self._restage(step)
        if kind == "collective_permute":
            return self._permute(step)
        return self._grouped(self._gated(step), (step.move.axis,), collective)

    def _bucket(self, step: Bucket) -> list[Shards]:
        """Returns what each of several reductions makes, all of them in one
        collective.
        """
        move, cuts = step.moves[0].move, [_axes(m)[0] for m in step.moves]
        held = [self.values[m.src] for m in step.moves]
        xs = [None if some[0] is None else some for some in zip(*held)]
        assert isinstance(move.before, Partial)
        kind = move.before.kind

        def collective(some: Shards, devices: Sequence[str]) -> Shards:
            how = collectives_for(devices, self.separate)
            if move.kind == "all_reduce":
                return bucketed.all_reduce(how, some, devices, kind)
            return bucketed.reduce_scatter(how, some, devices, kind, cuts)

        made = self._grouped(xs, (move.axis,), collective)
        return [[None if y is None else y[k] for y in made] for k in range(len(cuts))]

    def _gated(self, step: MoveStep) -> Shards:
        """Returns what is moved, once what the move waits for is there.

        Where one op of the move takes all slices of a group, it is enough that one of
        them comes late.
        """
        if step.after is None:
            return self.values[step.src]
        xs, afters = list(self.values[step.src]), self.values[step.after]
        done: dict[Any, Any] = {}
        for group in self.mesh.groups(step.move.axis):
            once = (
                collectives_for([self.devices[p] for p in group], self.separate)
                is shared_memory
            )
            for position in group[:1] if once else group:
                x, after = xs[position], afters[position]
                if x is None or after is None:
                    continue
                if (id(x), id(after)) not in done:
                    done[id(x), id(after)] = identity(x, self.devices[position], after)
                xs[position] = done[id(x), id(after)]
        return xs

    def _permute(self, step: MoveStep) -> Shards:
        """Returns what two axes exchange: position (i, j) gets what (j, i) has."""
        xs, out = self.values[step.src], list(self.values[step.src])
        for source, target in self.mesh.exchanges(step.move.axis, step.move.other):
            if xs[source] is not None:
                out[target] = send(
                    xs[source], self.devices[source], self.devices[target]
                )
        return out

    def _restage(self, step: MoveStep) -> Shards:
        """Returns what is dropped but at one stage, sent from one to another, or from
        one to all.
        """
        xs, before, after = self.values[step.src], step.move.before, step.move.after
        out: Shards = [None] * self.mesh.size
        for group in self.mesh.groups(step.move.axis):
            targets = (
                range(len(group))
                if not isinstance(after, OnStage)
                else [after.coordinate]
            )
            for k in targets:
                source = group[before.coordinate if isinstance(before, OnStage) else k]
                if xs[source] is not None:
                    out[group[k]] = send(
                        xs[source], self.devices[source], self.devices[group[k]]
                    )
        return out

    def _slice(self, step: MoveStep, cut: int) -> Shards:
        """Returns what each position keeps; a device that keeps several pieces cuts
        once.
        """
        i, parts = self.mesh.axis_index[step.move.axis], self.mesh.axes[step.move.axis]
        xs = self.values[step.src]
        kept: dict[Any, set[int]] = {}
        for coord, device, x in zip(self.mesh.coords, self.devices, xs):
            kept.setdefault((id(x), device), set()).add(coord[i])
        done: dict[Any, Any] = {}
        out = []
        for coord, device, x in zip(self.mesh.coords, self.devices, xs):
            key = (id(x), device)
            if x is not None and key not in done:
                done[key] = (
                    split(x, parts, cut, device)
                    if len(kept[key]) > 1
                    else {coord[i]: piece(x, cut, coord[i], parts, device)}
                )
            out.append(None if x is None else done[key][coord[i]])
        return out

    def _grouped(
        self,
        xs: Shards,
        axes: tuple[str, ...],
        collective: Callable[[Shards, Sequence[str]], Shards],
    ) -> Shards:
        """Runs a collective in each group along `axes`, once for groups that hold the
        same.

        In a graph those of one memory share results, whichever their devices are.
        """
        out: Shards = [None] * self.mesh.size
        done: dict[Any, Shards] = {}
        for group in self.mesh.groups(*axes):
            if any(xs[p] is None for p in group):  # it lies at another stage
                continue
            devices = tuple(self.devices[p] for p in group)
            held = [y for p in group for y in tf.nest.flatten(xs[p])]
            aliased = collectives_for(
                devices, self.separate
            ) is shared_memory and not any(map(runs_now, held))
            key = (*map(id, held), *(() if aliased else devices))
            if key not in done:
                done[key] = collective([xs[p] for p in group], devices)
            for position, y in zip(group, done[key]):
                out[position] = y
        return out

    def _gather_statistics(self, step: GatherStatisticsStep) -> Shards:
        def stack(told: Shards, devices: Sequence[str]) -> Shards:
            how = collectives_for(devices, self.separate)
            return list(zip(*(how.stack(ts, devices) for ts in zip(*told))))

        return self._grouped(self.values[step.src], step.axes, stack)

    def _exchange_window(self, step: WindowStep) -> Shards:
        assert step.src.spec is not None
        axis = step.src.spec.shape.index(step.dim)
        rows = step.factor_size // self.mesh.axes[step.axis]
        ends = [
            (step.window.low(j * rows), step.window.high((j + 1) * rows))
            for j in range(self.mesh.axes[step.axis])
        ]
        length = max(
            high - low for low, high in ends
        )  # one trace: equal lengths on all devices

        def exchange(xs: Shards, devices: Sequence[str]) -> Shards:
            return [
                rows_of_slices(xs, devices, j, axis, low, low + length, step)
                for j, (low, _) in enumerate(ends)
            ]

        return self._grouped(self.values[step.src], (step.axis,), exchange)


def _axes(step: MoveStep) -> tuple[int, int]:
    """Returns along which axes of a tensor a move cuts and joins; -1: along none."""
    assert step.src.spec is not None
    names = step.src.spec.shape.names
    after, before = (
        names.index(state.dim) if isinstance(state, Sharded) else -1
        for state in (step.move.after, step.move.before)
    )
    return after, before
