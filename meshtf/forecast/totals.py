"""What a forecast adds up to, and where its ops repeat themselves: for the table and
the page.

A deep model is the same layer many times. `fold` finds equal stretches that follow each
other, so that what is shown does not grow with the number of layers:

>>> fold("abcbcbcd")
(0, (3, (1, 2)), 7)
>>> fold("abbbc")
(0, 1, 2, 3, 4)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from meshtf.forecast.report_data import FREE, PHASES, Collective, Computation, Facts

SAVED = 4  # ops; a stretch that saves fewer reads better as it is
# The number of an op, or (times, what is repeated).
Folded: TypeAlias = int | tuple[int, tuple["Folded", ...]]


def totals(forecast: Facts) -> dict[str, Any]:
    """Returns sums for one position and one call, as plain data.

    Sums over ops have "times" and one number for each phase and for "all", the largest
    first:
      flops, repeated_flops: of all ops; the latter is what other positions do as well.
      moves: bytes received by "kind" and "axis".
      lines: bytes received by "file", "line" and "function"; of the results these are
        empty.
      gathers: bytes received to make a dimension whole, by "file", "line", "function",
        "dim", "axis".
      repeated: flops that others do too, by "file", "line", "function", "positions".
    """
    ops, moves = forecast.ops, list(_moves(forecast))
    return {
        "positions": forecast.positions,
        "flops": _sum((), (((), op.phase, op.total, op.times) for op in ops))[0],
        "repeated_flops": _sum((), (((), op.phase, again(op), op.times) for op in ops))[
            0
        ],
        "moves": _sum(
            ("kind", "axis"),
            (((m.kind, m.axis), m.phase, m.total, m.times) for _, m in moves),
        ),
        "lines": _sum(
            ("file", "line", "function"),
            ((place, m.phase, m.total, m.times) for place, m in moves),
        ),
        "gathers": _sum(
            ("file", "line", "function", "dim", "axis"),
            (
                ((*place, dim, m.axis), m.phase, m.total, m.times)
                for place, m in moves
                for dim in gathered(m)
            ),
        ),
        "repeated": _sum(
            ("file", "line", "function", "positions"),
            (
                (
                    (op.file, op.line, op.function, op.repeated),
                    op.phase,
                    again(op),
                    op.times,
                )
                for op in ops
                if again(op)
            ),
        ),
    }


def _sum(
    names: tuple[str, ...], rows: Iterable[tuple[tuple[Hashable, ...], str, float, int]]
) -> list[dict[str, Any]]:
    """Returns rows of one key added up: the key by `names`, how often, by phase and in
    all.
    """
    zero = dict.fromkeys(("times", *PHASES, "all"), 0)
    sums: dict[tuple[Hashable, ...], dict[str, float]] = {} if names else {(): {**zero}}
    for key, phase, number, times in rows:
        entry = sums.setdefault(key, {**zero})
        for name, more in (("times", times), (phase, number), ("all", number)):
            entry[name] += more
    return sorted(
        ({**dict(zip(names, key)), **entry} for key, entry in sums.items()),
        key=lambda row: -row["all"],
    )


def _moves(forecast: Facts) -> Iterator[tuple[tuple[str, int, str], Collective]]:
    """Yields all moves that are not free, each with the user's line and function."""
    for op in forecast.ops:
        yield from (
            ((op.file, op.line, op.function), m) for m in op.moves if m.kind not in FREE
        )
    yield from ((("", 0, ""), m) for m in forecast.results if m.kind not in FREE)


def gathered(move: Collective) -> list[str]:
    """Returns the dimensions that an all_gather makes whole."""
    if move.kind != "all_gather":
        return []
    cut = [name for name, _ in move.tensor.shape if name in move.tensor.states]
    return [name for name in cut if name not in move.after.states]


def kind(op: Computation) -> Computation:
    """Returns an op without its number: equal for ops that do the same on
    equal slices.
    """
    return dataclasses.replace(op, number=0)


def direct(op: Computation) -> bool:
    """Returns whether the user called the op itself, and not a layer that is made of
    ops.
    """
    return op.function.replace("_", "").lower() == op.title.replace("_", "").lower()


def again(op: Computation) -> float:
    """Returns the flops of an op that other positions do as well."""
    return op.total * (1 - 1 / op.repeated)


def fold(keys: Sequence[Hashable]) -> tuple[Folded, ...]:
    """Returns the places 0, 1, ... of keys, with equal stretches that follow each other
    folded.
    """
    later: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        later.setdefault(key, []).append(i)
    return _fold(keys, 0, len(keys), later)


def _fold(
    keys: Sequence[Hashable],
    start: int,
    end: int,
    later: Mapping[Hashable, Sequence[int]],
) -> tuple[Folded, ...]:
    found: list[Folded] = []
    while start < end:
        period, times = _stretch(keys, start, end, later[keys[start]])
        body = (start,) if period == 1 else _fold(keys, start, start + period, later)
        found.append(start if times == 1 else (times, body))
        start += period * times
    return tuple(found)


def _stretch(
    keys: Sequence[Hashable], start: int, end: int, equal: Sequence[int]
) -> tuple[int, int]:
    """Returns (period, times) of what is repeated from `start` on and covers most."""
    best = (1, 1)
    for other in equal:
        period = other - start
        if (
            period <= 0
            or start + 2 * period > end
            or keys[other - 1] != keys[other + period - 1]
        ):
            continue
        times, body = 1, keys[start:other]
        while (
            start + (times + 1) * period <= end
            and keys[start + times * period : start + (times + 1) * period] == body
        ):
            times += 1
        if period * (times - 1) >= SAVED and period * times > best[0] * best[1]:
            best = period, times
        if best[0] * best[1] == end - start:
            break
    return best
