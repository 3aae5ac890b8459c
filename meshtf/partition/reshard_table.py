"""The table of reshards: how a tensor gets from one placement to another, by collectives
and local slices. A placement is the state of the tensor along each mesh axis. Each line of
the table is the state along an axis before the reshard, each column the state after it.

    before \\ after  Replicated   Sharded(d)               Partial   OnStage(k)
    Replicated      -            slice (free)             never     drop (free)
    Sharded(e)      all_gather   all_to_all, - if e = d   never     never
    Partial         all_reduce   reduce_scatter           -         never
    OnStage(j)      broadcast    never                    never     send

A slice or drop is free: it sends nothing. If two axes of equal size exchange their states,
and nothing else changes, only the order of the devices changes: one collective_permute.

If several axes shard one dimension, the leading axes that both placements share are not
resharded (which of them is major: see `mesh.axis_order`). If the same axes shard it in another
order, the devices exchange their shards: one collective_permute. Before the major axis alone
is gathered, it becomes the minor one in this way. Where several axes
change in the same way, one collective runs over all of them: an all_reduce over 2 x 4 devices
receives 7/8 of twice the tensor, and one over 2 followed by one over 4 devices 5/4 of it. Slices
of dimensions that no all_gather changes come before all gathers, since they make the gathered
tensors smaller.

>>> from meshtf.mesh import OnStage, Partial, Sharded, Replicated
>>> mesh = {"data": 4, "model": 4}
>>> batch, length = Sharded("batch"), Sharded("length")
>>> [r.kind for r in reshards(mesh, (batch, Partial("sum")), (batch, Replicated))]
['all_reduce']
>>> [r.kind for r in reshards(mesh, (batch, Replicated), (length, Replicated))]
['all_to_all']
>>> [r.kind for r in reshards(mesh, (batch, Replicated), (Replicated, batch))]
['collective_permute']
>>> [(r.kind, r.axes) for r in reshards(mesh, (batch, batch), (length, length))]
[('all_to_all', ('data', 'model'))]
>>> [r.kind for r in reshards(mesh, (batch, batch), (Sharded("batch", order=1), batch))]
['collective_permute']
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from meshtf.mesh import Mesh, OnStage, Partial, Placement, Replicated, Sharded, State
from meshtf.mesh.axis_order import (
    axes_by_dim,
    can_reorder,
    changed_axes,
    new_orders,
    num_kept_shards,
    placement_between,
    sharded_states,
    shards_over_several,
    with_lowest_orders,
    without_order,
)
from meshtf.mesh.state import creates_partial
from meshtf.names import Shape

MAX_CACHED = 20_000  # pairs of placements; then the oldest are dropped


class Reshard(NamedTuple):
    """One entry of the table, along one axis of the mesh, or along several whose states are
    equal before, and equal after.

    Attributes:
      kind: the name in the table, such as "all_reduce"; or "collective_permute".
      axes: the axes of the mesh. Those of a dimension: the major one first.
      before: the state of these axes before the reshard; its `order` is 0.
      after: the state of these axes after the reshard; its `order` is 0.
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


def placement_after(
    axes: Iterable[str], placement: Placement, reshard: Reshard
) -> Placement:
    """Returns the placement after a reshard."""
    axes = tuple(axes)
    states = dict(zip(axes, placement))
    dim_axes = axes_by_dim(axes, placement)
    if reshard.other_axis:
        a, b = (*reshard.axes, reshard.other_axis)
        exchanged = {a: b, b: a}
        for dim, axes_of_dim in dim_axes.items():
            dim_axes[dim] = tuple(exchanged.get(axis, axis) for axis in axes_of_dim)
        states[reshard.other_axis] = reshard.before
    elif isinstance(reshard.before, Sharded):
        dim = reshard.before.dim
        dim_axes[dim] = tuple(a for a in dim_axes[dim] if a not in reshard.axes)
    for axis in reshard.axes:
        states[axis] = reshard.after
    if isinstance(reshard.after, Sharded) and not reshard.other_axis:
        dim = reshard.after.dim
        new_axes = reshard.new_axes or reshard.axes
        dim_axes[dim] = (*dim_axes.get(dim, ()), *new_axes)
    states.update(sharded_states(axes, dim_axes))
    return tuple(states.values())


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
      ValueError: `new` is a partial sum along an axis where `old` is not the same
        partial sum: the table has "never" there.
    """
    old, new = with_lowest_orders(old), with_lowest_orders(new)
    if old == new:
        return []
    if not (shards_over_several(old) or shards_over_several(new)):
        shape = None  # no order could change, whatever the sizes
    return list(_reshards(tuple(axes.items()), old, new, shape))


@functools.lru_cache(maxsize=MAX_CACHED)
def _reshards(
    axes_and_sizes: tuple[tuple[str, int], ...],
    old: Placement,
    new: Placement,
    shape: Shape | None,
) -> tuple[Reshard, ...]:
    """Returns what `reshards` does, for placements that differ."""
    if creates_partial(old, new):
        raise ValueError(f"nothing becomes a partial sum: {old} -> {new}.")
    axes = dict(axes_and_sizes)
    between = placement_between(axes, old, new, shape)
    if between is not None:
        to_between = reshards(axes, old, between, shape)
        return (*to_between, *reshards(axes, between, new, shape))
    permute = _reorder(axes, old, new, shape) or _permute(axes, old, new)
    if permute is None:
        result = _in_order(tuple(axes), old, new)
        # An all_to_all gives a dimension the axes of another one, in their order.
        after_each = functools.partial(placement_after, tuple(axes))
        after_all = functools.reduce(after_each, result, old)
        return (*result, *reshards(axes, after_all, new, shape))
    remaining_reshards = reshards(axes, placement_after(axes, old, permute), new, shape)
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
    for dim, old_axes, new_axes in new_orders(axes, old, new):
        all_axes = axes_by_dim(axes, old)[dim], axes_by_dim(axes, new)[dim]
        if can_reorder(axes, dim, *all_axes, shape):
            state = Sharded(dim)
            return Reshard("collective_permute", old_axes, state, state, "", new_axes)
    return None


def _permute(axes: Mapping[str, int], old: Placement, new: Placement) -> Reshard | None:
    """Returns the collective_permute that exchanges the states of two axes of equal
    size; None: no two axes exchange their states between `old` and `new`.
    """
    before = {axis: without_order(state) for axis, state in zip(axes, old)}
    after = {axis: without_order(state) for axis, state in zip(axes, new)}
    for a, b in itertools.combinations(axes, 2):
        if axes[a] != axes[b] or before[a] == before[b]:
            continue
        if before[a] != after[b] or before[b] != after[a]:
            continue
        # A permute only changes which device has a shard, so no third axis may shard one of
        # these dimensions, before or after.
        exchanged = {before[a], before[b]} - {Replicated}
        other_states = set()
        for axis in axes:
            if axis not in (a, b):
                other_states |= {before[axis], after[axis]}
        has_partial = any(isinstance(state, Partial) for state in exchanged)
        if not has_partial and exchanged.isdisjoint(other_states):
            return Reshard(
                kind="collective_permute",
                axes=(a,),
                before=before[a],
                after=after[a],
                other_axis=b,
            )
    return None


def _in_order(axes: tuple[str, ...], old: Placement, new: Placement) -> list[Reshard]:
    """Returns reshards in this order: drop, early slice or reduce_scatter, all_reduce, send
    or broadcast, all_gather, all_to_all, late slice.
    """
    before = {axis: without_order(state) for axis, state in zip(axes, old)}
    after = {axis: without_order(state) for axis, state in zip(axes, new)}
    old_dims = changed_axes(axes, old, new)
    new_dims = changed_axes(axes, new, old)
    all_to_all = [
        axis
        for axis in axes
        if _is_all_to_all(axis, old_dims=old_dims, new_dims=new_dims)
    ]
    gathered = [axis for axis in axes if axis in old_dims and axis not in all_to_all]
    early_axes, late_axes = _early_and_late(axes, old_dims, new_dims)
    result = _drops(axes, before, after)
    result += _merged(
        _shard(axis, before[axis], after[axis])
        for axis in _grouped(early_axes, new_dims)
    )
    result += _all_reduces(axes, before, after)
    result += _between_stages(axes, before, after)
    result += _merged(
        Reshard("all_gather", (axis,), before=before[axis], after=Replicated)
        for axis in _grouped(gathered, old_dims)
    )
    result += _merged(
        Reshard("all_to_all", (axis,), before=before[axis], after=after[axis])
        for axis in _grouped(all_to_all, old_dims)
    )
    result += _merged(
        # An axis in `old_dims` was gathered above.
        _shard(axis, Replicated if axis in old_dims else before[axis], after[axis])
        for axis in _grouped(late_axes, new_dims)
        if axis not in all_to_all
    )
    return result


def _grouped(axes: Iterable[str], dims: Mapping[str, str]) -> list[str]:
    """Returns axes such that those of one dimension follow each other, in their order in
    `dims`.

    Args:
      axes: the axes.
      dims: {axis: its dimension}.
    """
    axes = tuple(axes)
    groups: dict[str, list[str]] = {dims[axis]: [] for axis in axes}
    for axis, dim in dims.items():
        if axis in axes:
            groups[dim].append(axis)
    return [axis for group in groups.values() for axis in group]


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


def _early_and_late(
    axes: tuple[str, ...], old_dims: dict[str, str], new_dims: dict[str, str]
) -> tuple[list[str], list[str]]:
    """Returns (early axes, late axes): the axes whose slice or reduce_scatter runs before
    the all_gathers, and those where it runs after the all_gathers.

    A dimension is sharded late, along all its axes, if it is itself gathered along an
    axis, or if one of its axes must first gather another dimension.

    Args:
      axes: the axes of the mesh.
      old_dims: {axis: the dimension that the axis stops sharding}.
      new_dims: {axis: the dimension that the axis starts sharding}.
    """
    gathered_dims = set(old_dims.values())
    for axis in old_dims:
        if axis in new_dims:
            gathered_dims.add(new_dims[axis])
    early_axes = []
    late_axes = []
    for axis in axes:
        if axis not in new_dims:
            continue
        if new_dims[axis] in gathered_dims:
            late_axes.append(axis)
        else:
            early_axes.append(axis)
    return early_axes, late_axes


def _drops(
    axes: tuple[str, ...], before: dict[str, State], after: dict[str, State]
) -> list[Reshard]:
    """Returns the drops: all stages but one free their copy of a tensor."""
    return [
        Reshard("drop", (axis,), before=Replicated, after=after[axis])
        for axis in axes
        if isinstance(after[axis], OnStage) and before[axis] == Replicated
    ]


def _all_reduces(
    axes: tuple[str, ...], before: dict[str, State], after: dict[str, State]
) -> list[Reshard]:
    """Returns the reductions whose result is replicated."""
    return _merged(
        Reshard("all_reduce", (axis,), before=before[axis], after=Replicated)
        for axis in axes
        if isinstance(before[axis], Partial) and after[axis] == Replicated
    )


def _between_stages(
    axes: tuple[str, ...], before: dict[str, State], after: dict[str, State]
) -> list[Reshard]:
    """Returns the transfers from one stage to another (send) or to all (broadcast)."""
    transfers = []
    for axis in axes:
        old = before[axis]
        new = after[axis]
        if isinstance(old, OnStage) and old != new:
            kind = "send" if isinstance(new, OnStage) else "broadcast"
            transfers.append(Reshard(kind, (axis,), before=old, after=new))
    return transfers


def _shard(axis: str, before: State, after: State) -> Reshard:
    """Returns the reshard that shards a replicated tensor or a partial sum."""
    kind = "slice"
    if isinstance(before, Partial):
        kind = "reduce_scatter"
    return Reshard(kind, (axis,), before=before, after=after)


def _is_all_to_all(
    axis: str, old_dims: dict[str, str], new_dims: dict[str, str]
) -> bool:
    """Returns whether `axis` changes from one dimension to another, and the same axes stop to
    shard the one that start to shard the other.
    """
    if axis not in old_dims or axis not in new_dims:
        return False
    old = old_dims[axis]
    new = new_dims[axis]
    return (
        old != new
        and old not in new_dims.values()
        and new not in old_dims.values()
        and {a for a, dim in old_dims.items() if dim == old}
        == {a for a, dim in new_dims.items() if dim == new}
    )
