"""A forecast in words: as a table for a terminal, and as JSON with its totals.

A shape is written so that one sees at a glance what is cut:
`[batch:64/data d_ff:2048/model] +pod` has its 64 rows cut along axis `data`, and is a
partial sum, still to be added up along `pod`. Stretches of equal ops, such as the
layers of a deep model, are written once, with their number.

>>> bytes_text(1536), flops_text(2.5e9), bytes_text(0)
('1.50 KiB', '2.50 GFLOP', '0')
"""

from __future__ import annotations

import collections
import json
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from meshtf.forecast.report_data import (
    PHASES,
    Collective,
    Computation,
    Facts,
    PlacedTensor,
)
from meshtf.forecast.totals import Folded, again, direct, fold, kind, totals

WIDTH = 110
MOST = 8  # rows of a list of the largest
LEGEND = """\
[batch:8/data] is cut along axis data; +model: a sum over model is still to be made (also max, min).
<- a move of an input, before the op runs; 4 alike: four positions do the very same work."""


def table(forecast: Facts) -> str:
    """Returns a forecast as text for a terminal."""
    blocks = [
        _head(forecast),
        _costs(forecast),
        _memory(forecast),
        _stages(forecast),
        _notes(forecast),
        _gathers(forecast),
        _repeated(forecast),
        list(_ops(forecast)),
        _error(forecast),
    ]
    return "\n\n".join(
        "\n".join(line.rstrip() for line in block) for block in blocks if block
    )


def as_json(forecast: Facts) -> str:
    """Returns a forecast as JSON: the fields of `Facts`, and "totals" (see `totals`).

    Each op, result and variable has a line of its own, so that two files can be
    compared by lines.
    """
    fields = forecast.as_dict() | {"totals": totals(forecast)}
    return (
        "{\n"
        + ",\n".join(f"{json.dumps(k)}: {_by_line(v)}" for k, v in fields.items())
        + "\n}\n"
    )


def _by_line(value: Any) -> str:
    if isinstance(value, list | tuple) and value:
        return (
            "[\n"
            + ",\n".join(json.dumps(item, allow_nan=False) for item in value)
            + "\n]"
        )
    return json.dumps(value, allow_nan=False)


def bytes_text(number: float) -> str:
    """Returns bytes as people read them."""
    return _unit(number, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def flops_text(number: float) -> str:
    """Returns floating-point operations as people read them."""
    return _unit(
        number, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP")
    )


def _unit(number: float, step: int, units: Sequence[str]) -> str:
    if not number:
        return "0"
    for unit in units:
        digits = (
            0
            if unit == units[0]
            else 2
            if number < 9.995
            else 1
            if number < 99.95
            else 0
        )
        if round(number, digits) < step or unit == units[-1]:
            return f"{number:.{digits}f} {unit}"
        number /= step
    return ""


def shape_text(tensor: PlacedTensor, axes: Iterable[str]) -> str:
    """Returns a shape with what is cut where, such as "[batch:64/data
    d_ff:8] +model".
    """
    states = dict(zip(axes, tensor.states))
    sizes = (
        f"{name}:{size}" + "".join(f"/{a}" for a, s in states.items() if s == name)
        for name, size in tensor.shape
    )
    signs = {"sum": "+", "max": "max ", "min": "min "}
    partial = (
        f" {signs[s]}{a}"
        for a, s in states.items()
        if s in signs and s not in dict(tensor.shape)
    )
    return f"[{' '.join(sizes)}]" + "".join(partial)


def places(forecast: Facts) -> dict[str, str]:
    """Returns the shortest names of the user's files that still tell them apart."""
    files = {op.file for op in forecast.ops if op.file}
    ends = collections.Counter(
        "/".join(PurePath(file).parts[-k:])
        for file in files
        for k in range(1, len(PurePath(file).parts) + 1)
    )

    def shortest(parts: Sequence[str]) -> str:
        names = ("/".join(parts[-k:]) for k in range(1, len(parts) + 1))
        return next((name for name in names if ends[name] == 1), "/".join(parts))

    return {file: shortest(PurePath(file).parts) for file in sorted(files)}


def _head(forecast: Facts) -> list[str]:
    layouts = {"layout": forecast.layout}
    if forecast.variable_layout != forecast.layout:
        layouts["variable_layout"] = forecast.variable_layout
    if forecast.optimizer_layout != forecast.variable_layout:
        layouts["optimizer_layout"] = forecast.optimizer_layout
    mesh = (
        "; ".join(f"{axis}:{size}" for axis, size in forecast.axes) or "(one position)"
    )
    count = f"{forecast.positions} position{'s' * (forecast.positions != 1)}"
    return [
        f"{forecast.name} on {count}, each in one call",
        f"  {'mesh':<18}{mesh}",
        *(
            f"  {name:<18}{rules or '(cuts nothing)'}"
            for name, rules in layouts.items()
        ),
    ]


def _costs(forecast: Facts) -> list[str]:
    sums = totals(forecast)
    columns = (*PHASES, "all")

    def row(label: str, of: Mapping[str, Any], text: Callable[[float], str]) -> str:
        return f"  {label:<32}" + "".join(
            f"{text(of[c]) if of[c] else '-':>14}" for c in columns
        )

    moves = [
        row(f"  {m['times']} x {m['kind']} {m['axis']}", m, bytes_text)
        for m in sums["moves"]
    ]
    received = {c: sum(m[c] for m in sums["moves"]) for c in columns}
    return [
        f"  {'':<32}" + "".join(f"{c:>14}" for c in columns),
        row("flops", sums["flops"], flops_text),
        row("  that others do as well", sums["repeated_flops"], flops_text),
        row("bytes received", received, bytes_text),
        *moves,
    ]


def _memory(forecast: Facts) -> list[str]:
    parts = vars(forecast.memory).items()
    return [
        "  memory",
        *(
            f"    {name.replace('_', ' '):<18}{bytes_text(size):>12}"
            for name, size in parts
        ),
    ]


def _stages(forecast: Facts) -> list[str]:
    def row(*words: str) -> str:
        return "  " + words[0].ljust(18) + "".join(word.rjust(14) for word in words[1:])

    return (
        [
            row("stages", "flops", "parameters", "activations", "peak"),
            *(
                row(
                    f"  {k}",
                    flops_text(s.flops),
                    bytes_text(s.parameters),
                    bytes_text(s.activations),
                    bytes_text(s.peak),
                )
                for k, s in enumerate(forecast.stages)
            ),
        ]
        if forecast.stages
        else []
    )


def _notes(forecast: Facts) -> list[str]:
    return _list(
        "notes",
        [
            textwrap.fill(
                note, WIDTH - 4, subsequent_indent="      ", break_on_hyphens=False
            )
            for note in forecast.notes
        ],
        None,
    )


def _gathers(forecast: Facts) -> list[str]:
    short = places(forecast)
    return _list(
        "dimensions that are gathered",
        [
            f"{bytes_text(g['all']):>10}  {g['times']} x {g['dim']} over {g['axis']}, "
            f"for {_at(g, short)}"
            for g in totals(forecast)["gathers"]
        ],
    )


def _repeated(forecast: Facts) -> list[str]:
    short = places(forecast)
    return _list(
        "work done more than once",
        [
            f"{flops_text(r['all']):>10}  {_at(r, short)}: alike on {r['positions']} "
            "positions"
            for r in totals(forecast)["repeated"]
        ],
    )


def _at(row: Mapping[str, Any], short: Mapping[str, str]) -> str:
    if not row["file"]:
        return "the results"
    return f"{row['function']} at {short.get(row['file'], row['file'])}:{row['line']}"


def _list(title: str, rows: Sequence[str], most: int | None = MOST) -> list[str]:
    """Returns a titled list, and how much of it was left out."""
    shown = rows[:most]
    rest = (
        [f"    ... and {len(rows) - len(shown)} more"] if len(rows) > len(shown) else []
    )
    return [f"  {title}", *(f"    {row}" for row in shown), *rest] if rows else []


def _error(forecast: Facts) -> list[str]:
    if forecast.error is None:
        return []
    where = "before the first op"
    if forecast.ops:
        last = forecast.ops[-1]
        where = f"after op {last.number}, {_at(vars(last), places(forecast))}"
    return [
        f"!! the plan ends here, {where}:",
        *(f"!! {e}" for e in forecast.error.split("\n")),
    ]


def _ops(forecast: Facts) -> Iterator[str]:
    """Yields the op table."""
    if forecast.ops or forecast.results:
        yield "  ops"
        yield from textwrap.indent(LEGEND, "    ").split("\n")
    rows = _Rows(forecast)
    yield from rows.block(fold([kind(op) for op in forecast.ops]), "    ")
    if forecast.results:
        yield "    results"
        yield from (
            line for move in forecast.results for line in rows.move(move, "    ")
        )


class _Rows:
    """Writes the rows of the op table; remembers phase and call, to say when they
    change.
    """

    def __init__(self, forecast: Facts) -> None:
        self._ops, self._short = forecast.ops, places(forecast)
        self._axes = [axis for axis, _ in forecast.axes]
        self._phase, self._call = "", ("", "")
        self._title = min(24, max((len(op.title) for op in self._ops), default=0)) + 2

    def block(self, items: Sequence[Folded], bar: str) -> Iterator[str]:
        """Yields the rows of ops, some of them folded."""
        for item in items:
            if isinstance(item, int):
                yield from self._op(item, bar)
            else:
                times, body = item
                yield from self._new_phase(self._ops[next(_numbers(body))], bar)
                yield f"{bar}  {times} times {self._sums(body)}"
                self._call = ("", "")
                yield from self.block(body, bar + "  |")
                self._call = ("", "")

    def _sums(self, body: Sequence[Folded]) -> str:
        ops = [self._ops[i] for i in _numbers(body)]
        flops = flops_text(sum(op.total for op in ops))
        received = bytes_text(sum(m.total for op in ops for m in op.moves))
        what = "this op" if len(ops) == 1 else f"these {len(ops)} ops"
        return f"{what}, each time {flops} and {received} received"

    def _op(self, i: int, bar: str) -> Iterator[str]:
        op = self._ops[i]
        yield from (*self._new_phase(op, bar), *self._new_call(op, bar))
        shapes = ", ".join(shape_text(out, self._axes) for out in op.outputs)
        yield from _wrapped(
            f"{bar}    {op.title:<{self._title}}",
            shapes,
            flops_text(op.flops),
            _often(op.times) + (f"  {op.repeated} alike" if again(op) else ""),
        )
        for move in op.moves:
            yield from self.move(move, bar)

    def _new_phase(self, op: Computation, bar: str) -> Iterator[str]:
        if op.phase != self._phase:
            yield bar + op.phase
            self._phase, self._call = op.phase, ("", "")

    def _new_call(self, op: Computation, bar: str) -> Iterator[str]:
        """Yields the user's line, and what is called there, where they change."""
        place = f"{self._short[op.file]}:{op.line}" if op.file else ""
        call = place, "" if direct(op) else op.function
        if call != self._call and not (direct(op) and place == self._call[0]):
            yield f"{bar}  {' '.join(call)}"
            self._call = call

    def move(self, move: Collective, bar: str) -> Iterator[str]:
        """Yields the rows of one move."""
        text = f"{move.kind} {move.axis}  {shape_text(move.tensor, self._axes)}"
        if move.kind not in (
            "all_gather",
            "all_reduce",
        ):  # of these the result is plain
            text += f" -> {shape_text(move.after, self._axes)}"
        yield from _wrapped(
            f"{bar}      <- ", text, bytes_text(move.bytes), _often(move.times)
        )


def _often(times: int) -> str:
    return f"  x {times}" if times > 1 else ""


def _numbers(items: Iterable[Folded]) -> Iterator[int]:
    """Yields the ops of one time of a folded stretch, each as often as it comes."""
    for item in items:
        if isinstance(item, int):
            yield item
        else:
            yield from list(_numbers(item[1])) * item[0]


def _wrapped(left: str, middle: str, number: str, after: str = "") -> Iterator[str]:
    """Yields a row of the op table; its middle goes on below itself where it is too
    long.
    """
    width = max(24, WIDTH - len(left) - 25)
    first, *rest = textwrap.wrap(
        middle, width, break_long_words=False, break_on_hyphens=False
    ) or [""]
    yield f"{left}{first:<{width}}{number:>12}{after}"
    below = "".join(sign if sign == "|" else " " for sign in left)
    yield from (below + line for line in rest)
