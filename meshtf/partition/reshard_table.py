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

If several axes shard one dimension, the first of them (in the order of the mesh) is the major
one, and the leading axes that both placements share are not resharded. Where several axes
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
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from meshtf.mesh import OnStage, Partial, Placement, Replicated, Sharded, State

MAX_CACHED = 20_000  # pairs of placements; then the oldest are dropped


class Reshard(NamedTuple):
    """One entry of the table, along one axis of the mesh, or along several whose states are
    equal before, and equal after.

    Attributes:
      kind: the name in the table, such as "all_reduce"; or "collective_permute".
      axes: the axes of the mesh, in its order.
      before: the state of these axes before the reshard.
      after: the state of these axes after the reshard.
      other_axis: for a collective_permute, the axis that exchanges its state with the one in
        `axes`.
    """

    kind: str
    axes: tuple[str, ...]
    before: State
    after: State
    other_axis: str = ""

    @property
    def axes_text(self) -> str:
        """The axes as a layout names them: "data+model"."""
        return "+".join(self.axes)


def creates_partial(old: Placement, new: Placement) -> bool:
    """Returns whether `new` is a partial sum along an axis where `old` is not the same
    partial sum: no reshard does that.
    """
    for old_state, new_state in zip(old, new):
        if isinstance(new_state, Partial) and new_state != old_state:
            return True
    return False


def placement_after(
    axes: Iterable[str], placement: Placement, reshard: Reshard
) -> Placement:
    """Returns the placement after a reshard."""
    states = dict(zip(axes, placement))
    for axis in reshard.axes:
        states[axis] = reshard.after
    if reshard.other_axis:
        states[reshard.other_axis] = reshard.before
    return tuple(states.values())


def reshards(axes: Mapping[str, int], old: Placement, new: Placement) -> list[Reshard]:
    """Returns the reshards from placement `old` to `new`, in the order in which they
    run.

    Args:
      axes: names and sizes of the mesh's axes, in order.
      old: the placement of the tensor.
      new: the required placement.

    Raises:
      ValueError: `new` is a partial sum along an axis where `old` is not the same
        partial sum: the table has "never" there.
    """
    if old == new:
        return []
    return list(_reshards(tuple(axes.items()), old, new))


@functools.lru_cache(maxsize=MAX_CACHED)
def _reshards(
    axes_and_sizes: tuple[tuple[str, int], ...], old: Placement, new: Placement
) -> tuple[Reshard, ...]:
    """Returns what `reshards` does, for placements that differ."""
    if creates_partial(old, new):
        raise ValueError(f"nothing becomes a partial sum: {old} -> {new}.")
    axes = dict(axes_and_sizes)
    permute = _permute(axes, old, new)
    if permute is None:
        return tuple(_in_order(tuple(axes), old, new))
    remaining_reshards = reshards(axes, placement_after(axes, old, permute), new)
    # Leading reshards that make the tensor smaller run before the permute, which then sends
    # less.
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


def _permute(axes: Mapping[str, int], old: Placement, new: Placement) -> Reshard | None:
    """Returns the collective_permute that exchanges the states of two axes of equal
    size; None: no two axes exchange their states between `old` and `new`.
    """
    before = dict(zip(axes, old))
    after = dict(zip(axes, new))
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
    before = dict(zip(axes, old))
    after = dict(zip(axes, new))
    old_dims = _changed_dims(axes, before, after)
    new_dims = _changed_dims(axes, after, before)
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
    """Returns axes such that those of one dimension follow each other, in their order.

    Args:
      axes: the axes.
      dims: {axis: its dimension}.
    """
    groups: dict[str, list[str]] = {}
    for axis in axes:
        groups.setdefault(dims[axis], []).append(axis)
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


def _changed_dims(
    axes: tuple[str, ...], before: dict[str, State], after: dict[str, State]
) -> dict[str, str]:
    """Returns {axis: dimension}, for the axes that shard a dimension in `before` and do
    not shard it in the same way in `after`.

    An axis shards a dimension in the same way if the more significant axes of the
    dimension are equal as well; otherwise its shards have different elements.
    """
    old_dims: dict[str, str] = {}
    for state in set(before.values()):
        if not isinstance(state, Sharded):
            continue
        old_axes = [axis for axis in axes if before[axis] == state]
        new_axes = [axis for axis in axes if after[axis] == state]
        num_equal = 0  # leading axes that are equal before and after
        for old_axis, new_axis in zip(old_axes, new_axes):
            if old_axis != new_axis:
                break
            num_equal += 1
        for axis in old_axes[num_equal:]:
            old_dims[axis] = state.dim
    return old_dims


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
        and _axes_of(old, old_dims) == _axes_of(new, new_dims)
    )


def _axes_of(dim: str, dims: dict[str, str]) -> set[str]:
    """Returns the axes whose dimension in `dims` is `dim`."""
    return {axis for axis, dim_of_axis in dims.items() if dim_of_axis == dim}
