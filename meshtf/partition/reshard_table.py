"""The table of moves: all communication between two placements of one tensor.

    before \\ after  Replicated   Sharded(d)               Partial   OnStage(k)
    Replicated      -            slice (free)             never     drop (free)
    Sharded(e)      all_gather   all_to_all, - if e = d   never     never
    Partial         all_reduce   reduce_scatter           -         never
    OnStage(j)      broadcast    never                    never     send

Where two axes of one size do no more than exchange their states, so that only the order
of devices changes, that is one collective_permute.

A dimension over several axes is joined minor axis first and cut major axis first; cuts
of dimensions that no join touches go before the joins, since they make what is joined
smaller; only the trailing axes that differ are touched.

>>> from meshtf.mesh import OnStage, Partial, Sharded, Replicated
>>> mesh = {"data": 4, "model": 4}
>>> batch, length = Sharded("batch"), Sharded("length")
>>> [m.kind for m in moves(mesh, (batch, Partial("sum")), (batch, Replicated))]
['all_reduce']
>>> [m.kind for m in moves(mesh, (batch, Replicated), (length, Replicated))]
['all_to_all']
>>> [m.kind for m in moves(mesh, (batch, Replicated), (Replicated, batch))]
['collective_permute']
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from meshtf.mesh import OnStage, Partial, Placement, Replicated, Sharded, State


class Reshard(NamedTuple):
    """One collective along one axis of the mesh."""

    kind: str
    axis: str
    before: State
    after: State
    other: str = ""  # of a permute: the axis that exchanges its state with `axis`


def placement_after(
    axes: Iterable[str], placement: Placement, reshard: Reshard
) -> Placement:
    """Returns the placement after a move."""
    states = dict(zip(axes, placement))
    if reshard.other:
        states[reshard.other] = reshard.before
    return tuple((states | {reshard.axis: reshard.after}).values())


def reshards(axes: Mapping[str, int], old: Placement, new: Placement) -> list[Reshard]:
    """Returns the moves that bring a tensor from placement `old` to `new`, in order.

    Args:
      axes: names and sizes of the mesh's axes, in order.
      old: where the tensor is.
      new: where it is wanted.

    Raises:
      ValueError: `new` is a partial sum where `old` is not that one: the table has
        "never" there.
    """
    if old == new:
        return []
    if any(isinstance(n, Partial) and n != o for o, n in zip(old, new)):
        raise ValueError(f"nothing becomes a partial sum: {old} -> {new}.")
    permute = _permute(axes, old, new)
    if permute is None:
        return _steps(tuple(axes), old, new)
    rest = reshards(axes, placement_after(axes, old, permute), new)
    cuts = next(
        (i for i, m in enumerate(rest) if m.kind not in ("slice", "reduce_scatter")),
        len(rest),
    )
    return [*rest[:cuts], permute, *rest[cuts:]]


def _permute(axes: Mapping[str, int], old: Placement, new: Placement) -> Reshard | None:
    """Returns an exchange of the states of two axes, where that is all that they do."""
    before, after = dict(zip(axes, old)), dict(zip(axes, new))
    for a, b in itertools.combinations(axes, 2):
        states = {before[a], before[b]}
        if (
            axes[a] == axes[b]
            and before[a] != before[b]
            and (before[a], before[b]) == (after[b], after[a])
            and not any(isinstance(s, Partial) for s in states)
            and not any(
                s in states and s != Replicated
                for c in axes
                if c not in (a, b)
                for s in (before[c], after[c])
            )
        ):
            return Reshard("collective_permute", a, before[a], after[a], b)
    return None


def _steps(axes: tuple[str, ...], old: Placement, new: Placement) -> list[Reshard]:
    before, after = dict(zip(axes, old)), dict(zip(axes, new))
    leave, enter = _leaving(axes, before, after), _leaving(axes, after, before)
    swap = {a for a in leave if a in enter and _alone(a, leave, enter)}
    waiting = {
        *leave.values(),
        *(enter[a] for a in leave if a in enter),
    }  # for a join to be over
    early = [a for a in axes if a in enter and enter[a] not in waiting]
    late = [a for a in axes if a in enter and a not in swap and a not in early]
    reduced = [
        a for a in axes if isinstance(before[a], Partial) and after[a] == Replicated
    ]
    steps = [
        Reshard("drop", a, Replicated, after[a])
        for a in axes
        if isinstance(after[a], OnStage) and before[a] == Replicated
    ]
    steps += [_cut(a, before[a], after[a]) for a in early]
    steps += [Reshard("all_reduce", a, before[a], Replicated) for a in reduced]
    steps += [
        Reshard(
            "send" if isinstance(after[a], OnStage) else "broadcast",
            a,
            before[a],
            after[a],
        )
        for a in axes
        if isinstance(before[a], OnStage) and before[a] != after[a]
    ]
    steps += [
        Reshard("all_gather", a, before[a], Replicated)
        for a in reversed(axes)
        if a in leave and a not in swap
    ]
    steps += [Reshard("all_to_all", a, before[a], after[a]) for a in axes if a in swap]
    steps += [_cut(a, Replicated if a in leave else before[a], after[a]) for a in late]
    return steps


def _cut(axis: str, before: State, after: State) -> Reshard:
    kind = "reduce_scatter" if isinstance(before, Partial) else "slice"
    return Reshard(kind, axis, before, after)


def _leaving(
    axes: tuple[str, ...], before: dict[str, State], after: dict[str, State]
) -> dict[str, str]:
    """Returns {axis: dim} of cuts that `after` does not have, or has below another
    axis.
    """
    found: dict[str, str] = {}
    for dim in {s.dim for s in before.values() if isinstance(s, Sharded)}:
        old = [a for a in axes if before[a] == Sharded(dim)]
        new = [a for a in axes if after[a] == Sharded(dim)]
        same = 0
        while same < min(len(old), len(new)) and old[same] == new[same]:
            same += 1
        found.update((a, dim) for a in old[same:])
    return found


def _alone(axis: str, leave: dict[str, str], enter: dict[str, str]) -> bool:
    """Whether `axis` is the only one that leaves its old dimension and enters its new
    one.
    """
    old, new = leave[axis], enter[axis]
    return (
        old != new
        and old not in enter.values()
        and new not in leave.values()
        and list(leave.values()).count(old) == 1
        and list(enter.values()).count(new) == 1
    )
