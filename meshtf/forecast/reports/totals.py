"""Sums over the ops of a forecast, and runs of equal ops: for the table and the page.

A deep model is the same layer many times. `fold` finds equal runs that follow each other,
so that a report does not grow with the number of layers:

>>> fold("abcbcbcd")
(0, (3, (1, 2)), 7)
>>> fold("abbbc")
(0, 1, 2, 3, 4)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from meshtf.forecast.report_data import (
    FREE,
    PHASES,
    Collective,
    Computation,
    Facts,
    without_indices,
)

MIN_SAVED = 4  # ops; runs that save fewer are easier to read unfolded
# The index of an op, or (times, the ops that are repeated).
Folded: TypeAlias = int | tuple[int, tuple["Folded", ...]]


class _Entry(NamedTuple):
    """An amount to add to the sum of its key."""

    key: tuple[Hashable, ...]
    phase: str
    amount: float
    times: int


def totals(forecast: Facts) -> dict[str, Any]:
    """Returns sums for one device and one call, as plain data.

    Each sum has "times" and an amount for each phase and for "all"; lists begin with the
    largest:
      flops, repeated_flops: of all ops; the latter are the redundant FLOPs.
      collectives: bytes received by "kind" and "axis".
      lines: bytes received by "file", "line" and "function"; these are empty for the
        results.
      gathers: bytes received by all_gather, by "file", "line", "function", "dim", "axis".
      repeated: redundant FLOPs by "file", "line", "function", "positions".
    """
    collectives = list(_moves_with_lines(forecast))
    ops = forecast.ops
    flops = (_Entry((), op.phase, op.total, op.times) for op in ops)
    redundant = (_Entry((), op.phase, redundant_flops(op), op.times) for op in ops)
    by_kind = (
        _Entry(
            (collective.kind, collective.axis),
            collective.phase,
            collective.total,
            collective.times,
        )
        for _, collective in collectives
    )
    by_line = (
        _Entry(line, collective.phase, collective.total, collective.times)
        for line, collective in collectives
    )
    names = ("file", "line", "function")
    return {
        "positions": forecast.positions,
        "flops": _sum((), flops)[0],
        "repeated_flops": _sum((), redundant)[0],
        "collectives": _sum(("kind", "axis"), by_kind),
        "lines": _sum(names, by_line),
        "gathers": _sum((*names, "dim", "axis"), _gathers(collectives)),
        "repeated": _sum((*names, "positions"), _redundant_lines(ops)),
    }


def _gathers(
    collectives: Iterable[tuple[tuple[str, int, str], Collective]],
) -> Iterator[_Entry]:
    """Yields the bytes of each gathered dimension, by line, dimension and axis."""
    for line, collective in collectives:
        for dim in gathered(collective):
            key = *line, dim, collective.axis
            yield _Entry(key, collective.phase, collective.total, collective.times)


def _redundant_lines(ops: Iterable[Computation]) -> Iterator[_Entry]:
    """Yields redundant FLOPs by line and number of devices."""
    for op in ops:
        flops = redundant_flops(op)
        if flops:
            key = op.file, op.line, op.function, op.repeated
            yield _Entry(key, op.phase, flops, op.times)


def _sum(names: tuple[str, ...], entries: Iterable[_Entry]) -> list[dict[str, Any]]:
    """Returns the sums of entries with equal keys, the largest first.

    Args:
      names: of the elements of a key.
      entries: what is added.
    """
    zero = dict.fromkeys(("times", *PHASES, "all"), 0)
    sums: dict[tuple[Hashable, ...], dict[str, float]] = {}
    if not names:
        sums[()] = {**zero}  # present even if there are no entries
    for entry in entries:
        row = sums.setdefault(entry.key, {**zero})
        row["times"] += entry.times
        row[entry.phase] += entry.amount
        row["all"] += entry.amount
    rows = ({**dict(zip(names, key)), **row} for key, row in sums.items())
    return sorted(rows, key=lambda row: -row["all"])


def _moves_with_lines(
    forecast: Facts,
) -> Iterator[tuple[tuple[str, int, str], Collective]]:
    """Yields the user's (file, line, function) and the collective, for all that are not
    free.
    """
    for op in forecast.ops:
        for collective in op.collectives:
            if collective.kind not in FREE:
                yield (op.file, op.line, op.function), collective
    for collective in forecast.results:
        if collective.kind not in FREE:
            yield ("", 0, ""), collective


def gathered(collective: Collective) -> list[str]:
    """Returns the dimensions that an all_gather gathers completely."""
    if collective.kind != "all_gather":
        return []
    return [
        name
        for name, _ in collective.tensor.shape
        if name in collective.tensor.states and name not in collective.after.states
    ]


def without_index(op: Computation) -> Computation:
    """Returns an op with index 0, and without the indices of its module path: equal for
    ops that compute the same on equal shards.
    """
    return dataclasses.replace(op, index=0, path=without_indices(op.path))


def is_direct_call(op: Computation) -> bool:
    """Returns whether the user called the op itself, not a layer that consists of ops."""
    return op.function.replace("_", "").lower() == op.title.replace("_", "").lower()


def redundant_flops(op: Computation) -> float:
    """Returns the FLOPs of an op that are redundant: (n - 1) / n of those that n devices
    compute identically.
    """
    return op.total * (1 - 1 / op.repeated)


def fold(keys: Sequence[Hashable]) -> tuple[Folded, ...]:
    """Returns the indices 0, 1, ... of keys, with equal runs that follow each other
    folded.
    """
    indices: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        indices.setdefault(key, []).append(i)
    return _fold(keys, 0, len(keys), indices)


def _fold(
    keys: Sequence[Hashable],
    start: int,
    end: int,
    indices: Mapping[Hashable, Sequence[int]],
) -> tuple[Folded, ...]:
    """Returns the folded indices start, ..., end - 1.

    Args:
      keys: all keys.
      start: the first index.
      end: the index after the last one.
      indices: of each key.
    """
    items: list[Folded] = []
    while start < end:
        period, times = _longest_run(keys, start, end, indices[keys[start]])
        body: tuple[Folded, ...] = (start,)
        if period > 1:
            body = _fold(keys, start, start + period, indices)
        items.append(start if times == 1 else (times, body))
        start += period * times
    return tuple(items)


def _longest_run(
    keys: Sequence[Hashable], start: int, end: int, equal_indices: Sequence[int]
) -> tuple[int, int]:
    """Returns (period, times) of the longest run of equal periods from `start` on.

    Args:
      keys: all keys.
      start: where the run starts.
      end: where it must end at the latest.
      equal_indices: the indices of all keys that are equal to the one at `start`.
    """
    best = (1, 1)
    for second in equal_indices:
        period = second - start
        if period <= 0 or start + 2 * period > end:
            continue
        if keys[second - 1] != keys[second + period - 1]:
            continue  # cheap: the last keys of both periods differ
        times = _count_repeats(keys, start, end, period)
        saved = period * (times - 1)
        if saved >= MIN_SAVED and period * times > best[0] * best[1]:
            best = period, times
        if best[0] * best[1] == end - start:
            break
    return best


def _count_repeats(keys: Sequence[Hashable], start: int, end: int, period: int) -> int:
    """Returns how often keys[start : start + period] is repeated from `start` on."""
    body = keys[start : start + period]
    times = 1
    while True:
        next_start = start + times * period
        next_end = next_start + period
        if next_end > end or keys[next_start:next_end] != body:
            return times
        times += 1
