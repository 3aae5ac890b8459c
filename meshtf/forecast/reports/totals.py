"""Sums over the ops of a forecast, and repeated runs of equal ops.

A deep model repeats the same layer many times. `fold` finds equal runs that follow each
other, so that a report does not grow with the number of layers. It returns indices, and for
a repeated run (times, indices of one period):

>>> fold("abcbcbcd")
(0, (3, (1, 2)), 7)
>>> fold("abbbc")                        # a run this short is not folded
(0, 1, 2, 3, 4)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from meshtf.forecast.report_data import (
    PHASES,
    Collective,
    Computation,
    ForecastData,
    without_indices,
)
from meshtf.partition.cost import FREE_RESHARDS

MIN_SAVED = 4  # a run is folded if that saves at least so many ops
# The index of an op, or (times, the folded ops of one period).
Folded: TypeAlias = int | tuple[int, tuple["Folded", ...]]


class UserLine(NamedTuple):
    """A line of the user's program; empty for the results of the function."""

    file: str
    line: int
    function: str  # the function that the line calls


class _Entry(NamedTuple):
    """An amount to be added to the sum of all entries with an equal key."""

    key: tuple[Hashable, ...]
    phase: str
    amount: float  # FLOPs or bytes
    times: int


def totals(forecast: ForecastData) -> dict[str, Any]:
    """Returns sums for one device and one call, as plain data.

    Each sum is a dict with "times", an amount for each phase, and "all" for the sum over
    the phases. The key of a sum consists of the names in quotes:
      flops, repeated_flops: one sum each, of FLOPs and of redundant FLOPs.
      collectives: bytes received, by "kind" and "axis".
      lines: bytes received, by the user's line: "file", "line" and "function", which are
        empty for the results of the function.
      gathers: bytes received by all_gather, by line, "dim" and "axis".
      repeated: redundant FLOPs, by line and "positions", how many devices compute the same.
    Lists begin with the largest sum.
    """
    collectives = list(_collectives_with_lines(forecast))
    ops = forecast.ops
    flops = (_op_entry((), op, op.total) for op in ops)
    redundant = (_op_entry((), op, redundant_flops(op)) for op in ops)
    by_kind = (
        _collective_entry((collective.kind, collective.axis), collective)
        for _, collective in collectives
    )
    by_line = (_collective_entry(line, collective) for line, collective in collectives)
    line_names = UserLine._fields
    return {
        "positions": forecast.positions,
        "flops": _sum_of_all(flops),
        "repeated_flops": _sum_of_all(redundant),
        "collectives": _sums_by_key(("kind", "axis"), by_kind),
        "lines": _sums_by_key(line_names, by_line),
        "gathers": _sums_by_key((*line_names, "dim", "axis"), _gathers(collectives)),
        "repeated": _sums_by_key((*line_names, "positions"), _redundant_lines(ops)),
    }


def received_by_phase(sums: Mapping[str, Any]) -> dict[str, float]:
    """Returns the bytes that all collectives receive in each phase, and as "all".

    Args:
      sums: the result of `totals`.
    """
    return {
        column: sum(collective[column] for collective in sums["collectives"])
        for column in (*PHASES, "all")
    }


def _collective_entry(key: tuple[Hashable, ...], collective: Collective) -> _Entry:
    """Returns the entry with the bytes that a collective receives."""
    return _Entry(
        key, phase=collective.phase, amount=collective.total, times=collective.times
    )


def _op_entry(key: tuple[Hashable, ...], op: Computation, flops: float) -> _Entry:
    """Returns the entry with FLOPs of an op."""
    return _Entry(key, phase=op.phase, amount=flops, times=op.times)


def _gathers(collectives: Iterable[tuple[UserLine, Collective]]) -> Iterator[_Entry]:
    """Yields the bytes of each gathered dimension, by line, dimension and axis."""
    for line, collective in collectives:
        for dim in gathered_dims(collective):
            yield _collective_entry((*line, dim, collective.axis), collective)


def _redundant_lines(ops: Iterable[Computation]) -> Iterator[_Entry]:
    """Yields redundant FLOPs, by line and number of devices."""
    for op in ops:
        flops = redundant_flops(op)
        if flops:
            key = op.file, op.line, op.function, op.repeated
            yield _op_entry(key, op, flops)


def _sum_of_all(entries: Iterable[_Entry]) -> dict[str, Any]:
    """Returns the sum of all entries, which have the key ()."""
    (total,) = _sums_by_key((), entries)
    return total


def _sums_by_key(
    key_names: Sequence[str], entries: Iterable[_Entry]
) -> list[dict[str, Any]]:
    """Returns the sums of entries with equal keys, the largest first.

    Args:
      key_names: names for the elements of a key; none: there is one sum, of all entries.
      entries: the amounts to add.
    """
    zero = dict.fromkeys(("times", *PHASES, "all"), 0)
    sums: dict[tuple[Hashable, ...], dict[str, float]] = {}
    if not key_names:
        sums[()] = {**zero}  # present even if there are no entries
    for entry in entries:
        if entry.key not in sums:
            sums[entry.key] = {**zero}
        amounts = sums[entry.key]
        amounts["times"] += entry.times
        amounts[entry.phase] += entry.amount
        amounts["all"] += entry.amount
    rows: list[dict[str, Any]] = []
    for key, amounts in sums.items():
        named_key = dict(zip(key_names, key))
        rows.append(named_key | amounts)
    return sorted(rows, key=lambda row: -row["all"])


def _collectives_with_lines(
    forecast: ForecastData,
) -> Iterator[tuple[UserLine, Collective]]:
    """Yields the collectives of a forecast, each with the line that needs it; reshards that
    communicate nothing are left out.
    """
    for op in forecast.ops:
        for collective in op.collectives:
            if collective.kind not in FREE_RESHARDS:
                yield UserLine(op.file, op.line, op.function), collective
    for collective in forecast.results:
        if collective.kind not in FREE_RESHARDS:
            yield UserLine(file="", line=0, function=""), collective


def gathered_dims(collective: Collective) -> list[str]:
    """Returns the dimensions that are sharded before an all_gather and not after it."""
    if collective.kind != "all_gather":
        return []
    return [
        name
        for name, _ in collective.tensor.shape
        if name in collective.tensor.states and name not in collective.after.states
    ]


def op_key(op: Computation) -> Hashable:
    """Returns a key that is equal for two ops if they compute the same on equal shards:
    all fields but the index of the op and the indices in its module path.
    """
    fields = vars(op) | {"index": 0, "path": without_indices(op.path)}
    return tuple(fields.values())


def is_direct_call(op: Computation) -> bool:
    """Returns whether the user called the op itself, not a layer that consists of ops."""

    def normalized(name: str) -> str:
        return name.replace("_", "").lower()

    # The function "reduce_sum" calls the op "ReduceSum".
    return bool(op.file) and normalized(op.function) == normalized(op.title)


def redundant_flops(op: Computation) -> float:
    """Returns the redundant FLOPs of an op: (n - 1) / n of its FLOPs, if n devices compute
    the same.
    """
    return op.total * (1 - 1 / op.repeated)


def fold(keys: Sequence[Hashable]) -> tuple[Folded, ...]:
    """Returns the indices 0, 1, ... of keys, with repeated runs of equal keys folded."""
    # In place of each key the index of the first equal one: integers compare faster.
    first_indices: dict[Hashable, int] = {}
    ids = [first_indices.setdefault(key, i) for i, key in enumerate(keys)]
    indices_by_id: dict[int, list[int]] = {}
    for i, key_id in enumerate(ids):
        indices_by_id.setdefault(key_id, []).append(i)
    return _fold(ids, 0, len(ids), indices_by_id)


def _fold(
    keys: Sequence[int],
    start: int,
    end: int,
    indices_by_key: Mapping[int, Sequence[int]],
) -> tuple[Folded, ...]:
    """Returns the folded indices start, ..., end - 1.

    Args:
      keys: all keys.
      start: the first index.
      end: the index after the last one.
      indices_by_key: the indices of each key.
    """
    items: list[Folded] = []
    while start < end:
        run = _longest_run(keys, start, end, indices_by_key[keys[start]])
        if run.times == 1:
            items.append(start)
        elif run.period == 1:
            items.append((run.times, (start,)))
        else:
            # A period may contain repeated runs itself, such as a layer with equal ops.
            period = _fold(keys, start, start + run.period, indices_by_key)
            items.append((run.times, period))
        start += run.length
    return tuple(items)


class _Run(NamedTuple):
    """A sequence of `period` keys that is repeated `times` times."""

    period: int
    times: int

    @property
    def length(self) -> int:
        """The number of keys of the run."""
        return self.period * self.times


def _longest_run(
    keys: Sequence[int], start: int, end: int, equal_indices: Sequence[int]
) -> _Run:
    """Returns the longest run that starts at `start`; one key, once, if nothing repeats.

    Args:
      keys: all keys.
      start: the index of the first key of the run.
      end: the index that the run may not exceed.
      equal_indices: the indices of all keys that are equal to the one at `start`.
    """
    longest = _Run(period=1, times=1)
    for second in equal_indices:  # where the second period may start
        period = second - start
        if period <= 0 or start + 2 * period > end:
            continue
        # A cheap test before all keys are compared: do the periods end with equal keys?
        if keys[second - 1] != keys[second + period - 1]:
            continue
        run = _Run(period, _count_repeats(keys, start, end, period))
        num_saved = run.length - period
        if num_saved >= MIN_SAVED and run.length > longest.length:
            longest = run
        if longest.length == end - start:
            break
    return longest


def _count_repeats(keys: Sequence[int], start: int, end: int, period: int) -> int:
    """Returns how often keys[start : start + period] is repeated from `start` on."""
    body = keys[start : start + period]
    times = 1
    while True:
        next_start = start + times * period
        next_end = next_start + period
        if next_end > end or keys[next_start:next_end] != body:
            return times
        times += 1
