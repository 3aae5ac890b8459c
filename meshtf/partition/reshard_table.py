"""The table of reshards: how a tensor gets from one placement to another, by collectives
and local slices. Each line of the table is the state along a mesh axis before the reshard, each
column the state after it.

    before \\ after  Replicated   Sharded(d)               Partial   OnStage(k)    Varying
    Replicated      -            slice (free)             never     drop (free)   keep (free)
    Sharded(e)      all_gather   all_to_all, - if e = d   never     never         gather, keep
    Partial         all_reduce   reduce_scatter           -         never         reduce, keep
    OnStage(j)      broadcast    never                    never     send          never
    Varying         never        never                    never     never         -

A slice, drop or keep is free: it sends nothing. If two axes of equal size exchange their states,
and nothing else changes, only the order of the devices changes: one collective_permute.

If several axes shard one dimension, the leading axes that both placements share are not
resharded. If the same axes shard it in another order, the devices exchange their shards: one
collective_permute. Before only the major axis is gathered, a collective_permute makes it the
minor one: d:data+model, d:model+data, d:model. Where several axes change in the same way, one
collective runs over all of them: an all_reduce over 2 x 4 devices receives 7/8 of twice the
tensor, and one over 2 followed by one over 4 devices 5/4 of it. Slices of dimensions that no
all_gather changes come before all gathers, since they make the gathered tensors smaller.

>>> from meshtf.mesh import Partial, Placement
>>> mesh = {"data": 4, "model": 4}
>>> def kinds(old, new):
...     return [(reshard.kind, reshard.axes_text) for reshard in reshards(mesh, old, new)]
>>> kinds(Placement("batch:data", model=Partial("sum")), Placement("batch:data"))
[('all_reduce', 'model')]
>>> kinds(Placement("batch:data"), Placement("length:data"))
[('all_to_all', 'data')]
>>> kinds(Placement("batch:data"), Placement("batch:model"))
[('collective_permute', 'data')]
>>> kinds(Placement("batch:data+model"), Placement("length:data+model"))
[('all_to_all', 'data+model')]
>>> kinds(Placement("batch:data+model"), Placement("batch:model+data"))
[('collective_permute', 'data+model')]
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from meshtf.mesh import (
    Mesh,
    OnStage,
    Partial,
    Placement,
    Replicated,
    Sharded,
    State,
    Varying,
)
from meshtf.mesh.placement import (
    OtherState,
    can_become,
    keeps_shards,
    lost_axes,
    num_kept_shards,
    placement_between,
)
from meshtf.names import Shape

MAX_CACHED = 20_000  # pairs of placements; then the oldest are dropped


class Reshard(NamedTuple):
    """One entry of the table, along one axis of the mesh, or along several whose states are
    equal before, and equal after.

    Attributes:
      kind: the name in the table, such as "all_reduce"; or "collective_permute".
      axes: the axes of the mesh. Those of a dimension: the major one first.
      before: the state of these axes before the reshard.
      after: the state of these axes after the reshard.
      other_axis: for a collective_permute, the axis that exchanges its state with the one in
        `axes`.
      new_axes: for a collective_permute that changes the order of `axes`, the new order.
    """

    kind: str
    axes: tuple[str, ...]
    before: State
    after: State
    other_axis: str = ""
    new_axes: tuple[str, ...] = ()

    def num_exchanging(self, axes: Mapping[str, int]) -> float:
        """Returns the number p of devices in the formulas of `cost.bytes_received`: those
        that differ along the axes of the reshard. A new order of axes leaves one device in
        p with its shard. `axes` are the names and sizes of the mesh's axes.
        """
        num_devices = math.prod(axes[axis] for axis in self.axes)
        if not self.new_axes:
            return num_devices
        return num_devices / num_kept_shards(axes, self.axes, self.new_axes)

    def permuted_positions(self, mesh: Mesh) -> list[tuple[int, int]]:
        """Returns pairs (source position, target position) of a collective_permute."""
        axes, new_axes = self.axes, self.new_axes
        if self.other_axis:
            axes = (*axes, self.other_axis)
            new_axes = axes[::-1]
        # Position k of a group in the new order gets shard k.
        groups = zip(mesh.groups(*axes), mesh.groups(*new_axes))
        return [pair for old, new in groups for pair in zip(old, new)]

    @property
    def axes_text(self) -> str:
        """The axes as a layout names them: "data+model"."""
        return "+".join(self.axes)


def placement_after(placement: Placement, reshard: Reshard) -> Placement:
    """Returns the placement after a reshard."""
    shards = dict(placement.shards)
    other_states = dict(placement.other_states)
    if reshard.other_axis:
        a, b = (*reshard.axes, reshard.other_axis)
        exchanged = {a: b, b: a}
        return Placement.of(
            {d: [exchanged.get(x, x) for x in shards[d]] for d in shards},
            {exchanged.get(x, x): state for x, state in other_states.items()},
        )
    if isinstance(reshard.before, Sharded):
        dim = reshard.before.dim
        shards[dim] = tuple(axis for axis in shards[dim] if axis not in reshard.axes)
    for axis in reshard.axes:
        other_states.pop(axis, None)
        if isinstance(reshard.after, OtherState):
            other_states[axis] = reshard.after
    if isinstance(reshard.after, Sharded):
        dim = reshard.after.dim
        shards[dim] = (*shards.get(dim, ()), *(reshard.new_axes or reshard.axes))
    return Placement.of(shards, other_states)


def reshards(
    axes: Mapping[str, int], old: Placement, new: Placement, shape: Shape | None = None
) -> list[Reshard]:
    """Returns the reshards from placement `old` to `new`, in the order in which they
    run.

    Args:
      axes: names and sizes of the mesh's axes, in order.
      old: the placement of the tensor.
      new: the required placement.
      shape: the global shape of the tensor; None: the axes divide its sizes.

    Raises:
      ValueError: the table has "never" along an axis: `new` has a partial result that `old` has
        not, or `old` varies where `new` does not, or a stage has a shard.
    """
    if old == new:
        return []
    all_axes = (*old.shards.values(), *new.shards.values())
    if all(len(dim_axes) == 1 for dim_axes in all_axes):
        # No order could change, whatever the sizes: all shapes share one entry of the cache.
        shape = None
    return list(_reshards(tuple(axes.items()), old, new, shape))


@functools.lru_cache(maxsize=MAX_CACHED)
def _reshards(
    axes_and_sizes: tuple[tuple[str, int], ...],
    old: Placement,
    new: Placement,
    shape: Shape | None,
) -> tuple[Reshard, ...]:
    """Returns what `reshards` does, for placements that differ."""
    if not can_become(old, new):
        raise ValueError(
            "nothing becomes a partial sum, what varies stays so, and a stage has no shards: "
            f"{old} -> {new}."
        )
    axes = dict(axes_and_sizes)
    between = placement_between(axes, old, new, shape)
    if between is not None:
        to_between = reshards(axes, old, between, shape)
        return (*to_between, *reshards(axes, between, new, shape))
    permute = _reorder(axes, old, new, shape) or _exchange(axes, old, new)
    if permute is None:
        result = _in_order(tuple(axes), old, new)
        # An all_to_all keeps the order of the lost axes; a permute to that of `new` may remain.
        after_all = functools.reduce(placement_after, result, old)
        return (*result, *reshards(axes, after_all, new, shape))
    remaining_reshards = reshards(axes, placement_after(old, permute), new, shape)
    # The permute sends less after leading reshards that make the tensor smaller.
    num_shrinking = 0
    for reshard in remaining_reshards:
        if reshard.kind not in ("slice", "reduce_scatter"):
            break
        num_shrinking += 1
    return (
        *remaining_reshards[:num_shrinking],
        permute,
        *remaining_reshards[num_shrinking:],
    )


def _reorder(
    axes: Mapping[str, int], old: Placement, new: Placement, shape: Shape | None
) -> Reshard | None:
    """Returns the collective_permute after which a dimension has its axes in the order of
    `new`; None: no order changes, or only by a gather. The arguments are those of `reshards`.
    """
    gained = lost_axes(new, old)
    for dim, old_axes in lost_axes(old, new).items():
        new_axes = gained.get(dim, ())
        all_axes = old.axes_of(dim), new.axes_of(dim)
        if set(old_axes) == set(new_axes) and keeps_shards(axes, dim, *all_axes, shape):
            state = Sharded(dim)
            return Reshard("collective_permute", old_axes, state, state, "", new_axes)
    return None


def _exchange(
    axes: Mapping[str, int], old: Placement, new: Placement
) -> Reshard | None:
    """Returns the collective_permute that exchanges the states of two axes of equal
    size; None: no two axes exchange their states between `old` and `new`.
    """
    changed_axes = [axis for axis in axes if old[axis] != new[axis]]
    for a, b in itertools.combinations(changed_axes, 2):
        if axes[a] != axes[b] or old[a] != new[b] or old[b] != new[a]:
            continue
        # A permute only changes which device has a shard, so no third axis may shard one of
        # these dimensions, before or after.
        exchanged = {old[a], old[b]} - {Replicated}
        states_elsewhere = set()
        for axis in axes:
            if axis not in (a, b):
                states_elsewhere |= {old[axis], new[axis]}
        has_partial = any(isinstance(state, Partial) for state in exchanged)
        if not has_partial and exchanged.isdisjoint(states_elsewhere):
            return Reshard("collective_permute", (a,), old[a], new[a], other_axis=b)
    return None


def _in_order(axes: tuple[str, ...], old: Placement, new: Placement) -> list[Reshard]:
    """Returns reshards in this order: drop, early slice or reduce_scatter, all_reduce, send
    or broadcast, all_gather, all_to_all, late slice or reduce_scatter, keep.
    """
    lost = _in_mesh_order(axes, lost_axes(old, new))
    gained = _in_mesh_order(axes, lost_axes(new, old))
    exchanged = dict(_exchanged_dims(lost, gained))
    gathered = [
        Reshard("all_gather", lost[dim], Sharded(dim), Replicated)
        for dim in lost
        if dim not in exchanged
    ]
    all_to_all = [
        Reshard("all_to_all", lost[dim], Sharded(dim), Sharded(other))
        for dim, other in exchanged.items()
    ]
    lost_by_any = {axis for dim_axes in lost.values() for axis in dim_axes}
    early: list[Reshard] = []
    late: list[Reshard] = []
    for dim, dim_axes in gained.items():
        if dim in exchanged.values():
            continue
        # A dimension is sharded late, along all its axes, if it is itself gathered along an
        # axis, or if one of its axes must first gather another dimension.
        is_late = dim in lost or not lost_by_any.isdisjoint(dim_axes)
        (late if is_late else early).extend(
            _merged(
                _shard(axis, Replicated if axis in lost_by_any else old[axis], dim)
                for axis in dim_axes
            )
        )
    return [
        *_drops(old, new),
        *early,
        *_all_reduces(axes, old, new),
        *_between_stages(old, new),
        *gathered,
        *all_to_all,
        *late,
        *_keeps(axes, old, new),
    ]


def _in_mesh_order(
    axes: tuple[str, ...], dims: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Returns {dimension: axes} in the order of each dimension's first axis in the mesh."""
    return dict(sorted(dims.items(), key=lambda item: min(map(axes.index, item[1]))))


def _exchanged_dims(
    lost: Mapping[str, tuple[str, ...]], gained: Mapping[str, tuple[str, ...]]
) -> Iterable[tuple[str, str]]:
    """Yields pairs of dimensions: the same axes stop sharding the first and start sharding the
    second. The arguments are {dimension: axes}.
    """
    for dim, axes in lost.items():
        for other, other_axes in gained.items():
            only_moves = dim not in gained and other not in lost
            if only_moves and set(axes) == set(other_axes):
                yield dim, other


def _merged(single_reshards: Iterable[Reshard]) -> list[Reshard]:
    """Returns reshards in which neighbours of equal kind and states are one reshard over all
    their axes.
    """
    result: list[Reshard] = []
    for reshard in single_reshards:
        if result and result[-1]._replace(axes=reshard.axes) == reshard:
            result[-1] = reshard._replace(axes=result[-1].axes + reshard.axes)
        else:
            result.append(reshard)
    return result


def _drops(old: Placement, new: Placement) -> list[Reshard]:
    """Returns the drops: all stages but one free their copy of a tensor."""
    return [
        Reshard("drop", (axis,), before=Replicated, after=state)
        for axis, state in new.other_states.items()
        if isinstance(state, OnStage) and old[axis] == Replicated
    ]


def _all_reduces(
    axes: tuple[str, ...], old: Placement, new: Placement
) -> list[Reshard]:
    """Returns the reductions whose result is replicated."""
    partial = old.partial
    return _merged(
        Reshard("all_reduce", (axis,), before=partial[axis], after=Replicated)
        for axis in axes
        if axis in partial and new[axis] in (Replicated, Varying)
    )


def _keeps(axes: tuple[str, ...], old: Placement, new: Placement) -> list[Reshard]:
    """Returns the keep after which each device has the tensor as its own."""
    new_axes = tuple(
        axis for axis in axes if new[axis] == Varying and old[axis] != Varying
    )
    if not new_axes:
        return []
    return [Reshard("keep", new_axes, before=Replicated, after=Varying)]


def _between_stages(old: Placement, new: Placement) -> list[Reshard]:
    """Returns the transfers from one stage to another (send) or to all (broadcast)."""
    transfers = []
    for axis, before in old.other_states.items():
        after = new[axis]
        if isinstance(before, OnStage) and before != after:
            kind = "send" if isinstance(after, OnStage) else "broadcast"
            transfers.append(Reshard(kind, (axis,), before=before, after=after))
    return transfers


def _shard(axis: str, before: State, dim: str) -> Reshard:
    """Returns the reshard that shards a dimension of a replicated tensor or a partial sum."""
    kind = "reduce_scatter" if isinstance(before, Partial) else "slice"
    return Reshard(kind, (axis,), before=before, after=Sharded(dim))
