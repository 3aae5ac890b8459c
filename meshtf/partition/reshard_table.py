"""The table of reshards: all communication between two placements of one tensor.

    before \\ after  Replicated   Sharded(d)               Partial   OnStage(k)
    Replicated      -            slice (free)             never     drop (free)
    Sharded(e)      all_gather   all_to_all, - if e = d   never     never
    Partial         all_reduce   reduce_scatter           -         never
    OnStage(j)      broadcast    never                    never     send

Where two axes of equal size exchange their states, and nothing else changes, only the
order of the devices changes: that is one collective_permute.

A dimension over several axes is gathered minor axis first and sliced major axis first,
and only the trailing axes that differ are resharded. Slices of dimensions that no
all_gather changes come before all gathers, since they make the gathered tensors
smaller.

>>> from meshtf.mesh import OnStage, Partial, Sharded, Replicated
>>> mesh = {"data": 4, "model": 4}
>>> batch, length = Sharded("batch"), Sharded("length")
>>> [r.kind for r in reshards(mesh, (batch, Partial("sum")), (batch, Replicated))]
['all_reduce']
>>> [r.kind for r in reshards(mesh, (batch, Replicated), (length, Replicated))]
['all_to_all']
>>> [r.kind for r in reshards(mesh, (batch, Replicated), (Replicated, batch))]
['collective_permute']
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from meshtf.mesh import OnStage, Partial, Placement, Replicated, Sharded, State


class Reshard(NamedTuple):
    """One entry of the table, along one axis of the mesh."""

    kind: str  # of the table, such as "all_reduce"
    axis: str
    before: State
    after: State
    other: str = ""  # of a permute: the axis that exchanges its state with `axis`


def placement_after(
    axes: Iterable[str], placement: Placement, reshard: Reshard
) -> Placement:
    """Returns the placement after a reshard."""
    states = dict(zip(axes, placement))
    states[reshard.axis] = reshard.after
    if reshard.other:
        states[reshard.other] = reshard.before
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
    if any(isinstance(n, Partial) and n != o for o, n in zip(old, new)):
        raise ValueError(f"nothing becomes a partial sum: {old} -> {new}.")
    permute = _permute(axes, old, new)
    if permute is None:
        return _in_order(tuple(axes), old, new)
    remaining = reshards(axes, placement_after(axes, old, permute), new)
    # What shrinks the tensor goes before the permute.
    shrinking = itertools.takewhile(
        lambda r: r.kind in ("slice", "reduce_scatter"), remaining
    )
    num_shrinking = len(list(shrinking))
    return [*remaining[:num_shrinking], permute, *remaining[num_shrinking:]]


def _permute(axes: Mapping[str, int], old: Placement, new: Placement) -> Reshard | None:
    """Returns an exchange of the states of two axes; None: no two axes of equal size
    exchange theirs.
    """
    before = dict(zip(axes, old))
    after = dict(zip(axes, new))
    for a, b in itertools.combinations(axes, 2):
        if axes[a] != axes[b] or before[a] == before[b]:
            continue
        if before[a] != after[b] or before[b] != after[a]:
            continue
        exchanged = {before[a], before[b]} - {Replicated}
        other_states = set()
        for axis in axes:
            if axis not in (a, b):
                other_states |= {before[axis], after[axis]}
        has_partial = any(isinstance(state, Partial) for state in exchanged)
        if not has_partial and exchanged.isdisjoint(other_states):
            return Reshard("collective_permute", a, before[a], after[a], b)
    return None


def _in_order(axes: tuple[str, ...], old: Placement, new: Placement) -> list[Reshard]:
    """Returns reshards of one axis each, in this order: drop, early slice or
    reduce_scatter, all_reduce, send or broadcast, all_gather, all_to_all, late slice.
    """
    before = dict(zip(axes, old))
    after = dict(zip(axes, new))
    left = _left_dims(axes, before, after)
    entered = _left_dims(axes, after, before)
    exchanging = [axis for axis in axes if axis in left and axis in entered]
    all_to_all = [axis for axis in exchanging if _is_all_to_all(axis, left, entered)]
    gathered = [axis for axis in reversed(axes) if axis in left]
    early, late = _early_and_late(axes, left, entered)
    ordered = _drops(axes, before, after)
    for axis in early:
        ordered.append(_shard(axis, before[axis], after[axis]))
    ordered += _all_reduces(axes, before, after)
    ordered += _between_stages(axes, before, after)
    for axis in gathered:
        if axis not in all_to_all:
            ordered.append(Reshard("all_gather", axis, before[axis], Replicated))
    for axis in all_to_all:
        ordered.append(Reshard("all_to_all", axis, before[axis], after[axis]))
    for axis in late:
        if axis not in all_to_all:
            state = Replicated if axis in left else before[axis]
            ordered.append(_shard(axis, state, after[axis]))
    return ordered


def _early_and_late(
    axes: tuple[str, ...], left: dict[str, str], entered: dict[str, str]
) -> tuple[list[str], list[str]]:
    """Returns the axes along which a dimension is sharded before, and after, the
    gathers: a dimension that is gathered itself is sharded after that.
    """
    gathered_dims = set(left.values())
    for axis in left:
        if axis in entered:
            gathered_dims.add(entered[axis])
    early = []
    late = []
    for axis in axes:
        if axis not in entered:
            continue
        if entered[axis] in gathered_dims:
            late.append(axis)
        else:
            early.append(axis)
    return early, late


def _drops(
    axes: tuple[str, ...], before: dict[str, State], after: dict[str, State]
) -> list[Reshard]:
    """Returns the drops: tensors that stay on one stage only."""
    return [
        Reshard("drop", a, Replicated, after[a])
        for a in axes
        if isinstance(after[a], OnStage) and before[a] == Replicated
    ]


def _all_reduces(
    axes: tuple[str, ...], before: dict[str, State], after: dict[str, State]
) -> list[Reshard]:
    """Returns the reductions whose result is replicated."""
    return [
        Reshard("all_reduce", a, before[a], Replicated)
        for a in axes
        if isinstance(before[a], Partial) and after[a] == Replicated
    ]


def _between_stages(
    axes: tuple[str, ...], before: dict[str, State], after: dict[str, State]
) -> list[Reshard]:
    """Returns the transfers from one stage to another, or to all."""
    transfers = []
    for axis in axes:
        old = before[axis]
        new = after[axis]
        if isinstance(old, OnStage) and old != new:
            kind = "send" if isinstance(new, OnStage) else "broadcast"
            transfers.append(Reshard(kind, axis, old, new))
    return transfers


def _shard(axis: str, before: State, after: State) -> Reshard:
    """Returns the reshard that shards a replicated tensor or a partial sum."""
    kind = "slice"
    if isinstance(before, Partial):
        kind = "reduce_scatter"
    return Reshard(kind, axis, before, after)


def _left_dims(
    axes: tuple[str, ...], before: dict[str, State], after: dict[str, State]
) -> dict[str, str]:
    """Returns {axis: dimension} of the axes that stop sharding a dimension.

    An axis that shards the same dimension before and after, but below another major
    axis, counts as well: its shards are other ones.
    """
    left: dict[str, str] = {}
    for state in set(before.values()):
        if not isinstance(state, Sharded):
            continue
        old_axes = [axis for axis in axes if before[axis] == state]
        new_axes = [axis for axis in axes if after[axis] == state]
        shared = 0  # length of the prefix of axes that both have
        for old_axis, new_axis in zip(old_axes, new_axes):
            if old_axis != new_axis:
                break
            shared += 1
        for axis in old_axes[shared:]:
            left[axis] = state.dim
    return left


def _is_all_to_all(axis: str, left: dict[str, str], entered: dict[str, str]) -> bool:
    """Whether `axis` goes from one dimension to another, and no other axis enters or
    leaves these two.
    """
    old = left[axis]
    new = entered[axis]
    return (
        old != new
        and old not in entered.values()
        and new not in left.values()
        and list(left.values()).count(old) == 1
        and list(entered.values()).count(new) == 1
    )
