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
        exchanged = {before[a], before[b]} - {Replicated}
        other_states = {
            state for c in axes if c not in (a, b) for state in (before[c], after[c])
        }
        if (
            axes[a] == axes[b]
            and before[a] != before[b]
            and (before[a], before[b]) == (after[b], after[a])
            and not any(isinstance(state, Partial) for state in exchanged)
            and exchanged.isdisjoint(other_states)
        ):
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
    exchanging = [a for a in axes if a in left and a in entered]
    all_to_all = [a for a in exchanging if _is_all_to_all(a, left, entered)]
    # Dimensions that are gathered: they are sliced only after that.
    gathered_dims = {*left.values(), *(entered[a] for a in exchanging)}
    early = [a for a in axes if a in entered and entered[a] not in gathered_dims]
    late = [a for a in axes if a in entered and a not in (*all_to_all, *early)]
    gathered = [a for a in reversed(axes) if a in left and a not in all_to_all]
    return [
        *_drops(axes, before, after),
        *(_shard(a, before[a], after[a]) for a in early),
        *_all_reduces(axes, before, after),
        *_between_stages(axes, before, after),
        *(Reshard("all_gather", a, before[a], Replicated) for a in gathered),
        *(Reshard("all_to_all", a, before[a], after[a]) for a in all_to_all),
        *(_shard(a, Replicated if a in left else before[a], after[a]) for a in late),
    ]


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
    return [
        Reshard(
            "send" if isinstance(after[a], OnStage) else "broadcast",
            a,
            before[a],
            after[a],
        )
        for a in axes
        if isinstance(before[a], OnStage) and before[a] != after[a]
    ]


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
    for dim in {s.dim for s in before.values() if isinstance(s, Sharded)}:
        old_axes = [a for a in axes if before[a] == Sharded(dim)]
        new_axes = [a for a in axes if after[a] == Sharded(dim)]
        shared = 0  # length of the prefix of axes that both have
        while (
            shared < min(len(old_axes), len(new_axes))
            and old_axes[shared] == new_axes[shared]
        ):
            shared += 1
        left.update((axis, dim) for axis in old_axes[shared:])
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
