"""A forecast as text: a table for a terminal, and JSON with totals.

A shape shows which dimensions are sharded: in `[batch:64/data d_ff:2048/model] +pod`,
dimension batch of global size 64 is sharded along mesh axis `data`, and the tensor is a
partial sum along `pod`, not yet reduced. Runs of equal ops, such as the layers of a deep
model, are written once, with their count.

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
from meshtf.forecast.reports.totals import (
    Folded,
    fold,
    is_direct_call,
    redundant_flops,
    totals,
    without_index,
)

WIDTH = 110
MAX_ROWS = 8  # of a list of the largest
LABEL_WIDTH = 32  # of the rows of costs
AMOUNT_WIDTH = 12  # of FLOPs and bytes in the op table
REMARK_WIDTH = 19  # "  identical on 2048"
LEGEND = """\
[batch:8/data] is sharded along axis data; +model: a partial sum along model (also max, min).
<- a reshard of an input, before the op runs; identical on 4: four devices compute the same."""


def table(forecast: Facts) -> str:
    """Returns a forecast as text for a terminal."""
    blocks = [
        _head(forecast),
        _costs(forecast),
        _memory(forecast),
        _stages(forecast),
        _notes(forecast),
        _gathers(forecast),
        _redundant(forecast),
        list(_ops(forecast)),
        _error(forecast),
    ]
    return "\n\n".join(
        "\n".join(line.rstrip() for line in block) for block in blocks if block
    )


def as_json(forecast: Facts) -> str:
    """Returns a forecast as JSON: the fields of `Facts`, and "totals" (see `totals`).

    Each op, result and variable is on a separate line, so that `diff` can compare two
    files.
    """
    fields = forecast.as_dict() | {"totals": totals(forecast)}
    lines = (f"{json.dumps(name)}: {_by_line(x)}" for name, x in fields.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _by_line(value: Any) -> str:
    """Returns JSON with each element of a list on a separate line."""
    if isinstance(value, list | tuple) and value:
        lines = (json.dumps(item, allow_nan=False) for item in value)
        return "[\n" + ",\n".join(lines) + "\n]"
    return json.dumps(value, allow_nan=False)


def bytes_text(amount: float) -> str:
    """Returns bytes with a binary unit."""
    return _with_unit(amount, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def flops_text(amount: float) -> str:
    """Returns floating-point operations with a decimal unit."""
    units = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP")
    return _with_unit(amount, 1000, units)


def _with_unit(amount: float, base: int, units: Sequence[str]) -> str:
    """Returns an amount with three significant digits in the unit that fits."""
    if not amount:
        return "0"
    for unit in units:
        digits = 0 if unit == units[0] else _decimals(amount)
        if round(amount, digits) < base or unit == units[-1]:
            return f"{amount:.{digits}f} {unit}"
        amount /= base
    return ""


def _decimals(amount: float) -> int:
    """Returns how many decimals make three digits."""
    if amount < 9.995:
        return 2
    return 1 if amount < 99.95 else 0


def shape_text(tensor: PlacedTensor, axes: Iterable[str]) -> str:
    """Returns a shape and how it is sharded, such as "[batch:64/data d_ff:8] +model"."""
    dims = dict(tensor.shape)
    axes_of_dims = {name: f"{name}:{size}" for name, size in dims.items()}
    partial = ""
    signs = {"sum": "+", "max": "max ", "min": "min "}
    for axis, state in zip(axes, tensor.states):
        if state in dims:
            axes_of_dims[state] += f"/{axis}"
        elif state in signs:
            partial += f" {signs[state]}{axis}"
    return f"[{' '.join(axes_of_dims.values())}]" + partial


def short_paths(forecast: Facts) -> dict[str, str]:
    """Returns for each of the user's files the shortest end of its path that is unique."""
    files = {op.file for op in forecast.ops if op.file}
    counts: collections.Counter[str] = collections.Counter()
    for file in files:
        counts.update(_path_ends(file))

    def shortest(file: str) -> str:
        *ends, full_path = _path_ends(file)
        return next((end for end in ends if counts[end] == 1), full_path)

    return {file: shortest(file) for file in sorted(files)}


def _path_ends(file: str) -> list[str]:
    """Returns "c.py", "b/c.py", "a/b/c.py" for "a/b/c.py"."""
    names = PurePath(file).parts
    return ["/".join(names[-k:]) for k in range(1, len(names) + 1)]


def _head(forecast: Facts) -> list[str]:
    layouts = {"layout": forecast.layout}
    if forecast.variable_layout != forecast.layout:
        layouts["variable_layout"] = forecast.variable_layout
    if forecast.optimizer_layout != forecast.variable_layout:
        layouts["optimizer_layout"] = forecast.optimizer_layout
    mesh = "; ".join(f"{axis}:{size}" for axis, size in forecast.axes)
    plural = "s" if forecast.positions != 1 else ""
    lines = [
        f"{forecast.name} on {forecast.positions} device{plural}, costs per device and call",
        f"  {'mesh':<18}{mesh or '(one device)'}",
    ]
    for name, rules in layouts.items():
        lines.append(f"  {name:<18}{rules or '(shards nothing)'}")
    return lines


def _costs(forecast: Facts) -> list[str]:
    sums = totals(forecast)
    columns = (*PHASES, "all")

    def row(label: str, of: Mapping[str, Any], text: Callable[[float], str]) -> str:
        amounts = (text(of[column]) if of[column] else "-" for column in columns)
        return f"  {label:<{LABEL_WIDTH}}" + "".join(f"{x:>14}" for x in amounts)

    moves = sums["moves"]
    received = {column: sum(move[column] for move in moves) for column in columns}
    lines = [
        f"  {'':<{LABEL_WIDTH}}" + "".join(f"{column:>14}" for column in columns),
        row("FLOPs", sums["flops"], flops_text),
        row("  redundant FLOPs", sums["repeated_flops"], flops_text),
        row("bytes received per device", received, bytes_text),
    ]
    for move in moves:
        label = f"  {move['times']} x {move['kind']} {move['axis']}"
        lines.append(row(label, move, bytes_text))
    return lines


def _memory(forecast: Facts) -> list[str]:
    lines = ["  memory"]
    for name, size in vars(forecast.memory).items():
        lines.append(f"    {name.replace('_', ' '):<18}{bytes_text(size):>12}")
    return lines


def _stages(forecast: Facts) -> list[str]:
    def row(label: str, *columns: str) -> str:
        return f"  {label:<18}" + "".join(f"{column:>14}" for column in columns)

    if not forecast.stages:
        return []
    lines = [row("stages", "FLOPs", "parameters", "activations", "peak")]
    for k, stage in enumerate(forecast.stages):
        sizes = stage.parameters, stage.activations, stage.peak
        lines.append(row(f"  {k}", flops_text(stage.flops), *map(bytes_text, sizes)))
    return lines


def _notes(forecast: Facts) -> list[str]:
    notes = [
        textwrap.fill(
            note, WIDTH - 4, subsequent_indent="      ", break_on_hyphens=False
        )
        for note in forecast.notes
    ]
    return _list("notes", notes, None)


def _gathers(forecast: Facts) -> list[str]:
    paths = short_paths(forecast)
    rows = [
        f"{bytes_text(gather['all']):>10}  {gather['times']} x {gather['dim']} over "
        f"{gather['axis']}, for {_at(gather, paths)}"
        for gather in totals(forecast)["gathers"]
    ]
    return _list("gathered dimensions", rows)


def _redundant(forecast: Facts) -> list[str]:
    paths = short_paths(forecast)
    rows = [
        f"{flops_text(line['all']):>10}  {_at(line, paths)}: identical on "
        f"{line['positions']} devices"
        for line in totals(forecast)["repeated"]
    ]
    return _list("redundant FLOPs", rows)


def _at(row: Mapping[str, Any], paths: Mapping[str, str]) -> str:
    """Returns the function and line of a row."""
    if not row["file"]:
        return "the results"
    return f"{row['function']} at {paths.get(row['file'], row['file'])}:{row['line']}"


def _list(
    title: str, rows: Sequence[str], max_rows: int | None = MAX_ROWS
) -> list[str]:
    """Returns a titled list, and how many rows were left out."""
    if not rows:
        return []
    shown = rows[:max_rows]
    lines = [f"  {title}", *(f"    {row}" for row in shown)]
    if len(rows) > len(shown):
        lines.append(f"    ... and {len(rows) - len(shown)} more")
    return lines


def _error(forecast: Facts) -> list[str]:
    if forecast.error is None:
        return []
    where = "before the first op"
    if forecast.ops:
        op = forecast.ops[-1]
        where = f"after op {op.index}, {_at(vars(op), short_paths(forecast))}"
    message = forecast.error.split("\n")
    return [f"!! the plan ends here, {where}:", *(f"!! {line}" for line in message)]


def _ops(forecast: Facts) -> Iterator[str]:
    """Yields the op table."""
    if forecast.ops or forecast.results:
        yield "  ops"
        yield from textwrap.indent(LEGEND, "    ").split("\n")
    table = _OpTable(forecast)
    yield from table.block(fold([without_index(op) for op in forecast.ops]), "    ")
    if forecast.results:
        yield "    results"
        for move in forecast.results:
            yield from table.move(move, "    ")


class _OpTable:
    """Writes the lines of the op table.

    A line with the phase, or with the user's line and function, comes before the first op
    where it changes: both are stored between ops.
    """

    def __init__(self, forecast: Facts) -> None:
        self._ops = forecast.ops
        self._paths = short_paths(forecast)
        self._axes = [axis for axis, _ in forecast.axes]
        self._phase = ""
        self._call = ("", "")  # the user's line, and the called function
        longest_title = max((len(op.title) for op in self._ops), default=0)
        self._title_width = min(24, longest_title) + 2

    def block(self, items: Sequence[Folded], indent: str) -> Iterator[str]:
        """Yields the lines of ops, some of them folded."""
        for item in items:
            if isinstance(item, int):
                yield from self._op(item, indent)
            else:
                yield from self._folded(*item, indent)

    def _folded(self, times: int, body: Sequence[Folded], indent: str) -> Iterator[str]:
        yield from self._new_phase(self._ops[next(_indices(body))], indent)
        yield f"{indent}  {times} times {self._sums(body)}"
        self._call = ("", "")
        yield from self.block(body, indent + "  |")
        self._call = ("", "")

    def _sums(self, body: Sequence[Folded]) -> str:
        count = 0
        flops = 0.0
        received = 0.0
        for i in _indices(body):
            op = self._ops[i]
            count += 1
            flops += op.total
            received += sum(move.total for move in op.moves)
        ops_text = "this op" if count == 1 else f"these {count} ops"
        costs = f"{flops_text(flops)} and {bytes_text(received)} received"
        return f"{ops_text}, each time {costs}"

    def _op(self, i: int, indent: str) -> Iterator[str]:
        op = self._ops[i]
        yield from self._new_phase(op, indent)
        yield from self._new_call(op, indent)
        shapes = ", ".join(shape_text(out, self._axes) for out in op.outputs)
        title = f"{indent}    {op.title:<{self._title_width}}"
        remark = _times_text(op.times)
        if redundant_flops(op):
            remark += f"  identical on {op.repeated}"
        yield from _wrapped(title, shapes, flops_text(op.flops), remark)
        for move in op.moves:
            yield from self.move(move, indent)

    def _new_phase(self, op: Computation, indent: str) -> Iterator[str]:
        if op.phase != self._phase:
            yield indent + op.phase
            self._phase = op.phase
            self._call = ("", "")

    def _new_call(self, op: Computation, indent: str) -> Iterator[str]:
        """Yields the user's line and the function that it calls, if they change."""
        line = f"{self._paths[op.file]}:{op.line}" if op.file else ""
        direct = is_direct_call(op)
        call = line, "" if direct else op.function
        same_line = direct and line == self._call[0]
        if call != self._call and not same_line:
            yield f"{indent}  {' '.join(call)}"
            self._call = call

    def move(self, move: Collective, indent: str) -> Iterator[str]:
        """Yields the lines of one collective."""
        text = f"{move.kind} {move.axis}  {shape_text(move.tensor, self._axes)}"
        # What these two result in is clear from the input.
        if move.kind not in ("all_gather", "all_reduce"):
            text += f" -> {shape_text(move.after, self._axes)}"
        arrow = f"{indent}      <- "
        yield from _wrapped(
            arrow, text, bytes_text(move.bytes), _times_text(move.times)
        )


def _times_text(times: int) -> str:
    return f"  x {times}" if times > 1 else ""


def _indices(items: Iterable[Folded]) -> Iterator[int]:
    """Yields the indices of ops, those of a folded run as often as it is repeated."""
    for item in items:
        if isinstance(item, int):
            yield item
        else:
            times, body = item
            yield from list(_indices(body)) * times


def _wrapped(left: str, middle: str, amount: str, remark: str = "") -> Iterator[str]:
    """Yields a line of the op table; a long middle column continues on the next lines."""
    width = max(24, WIDTH - len(left) - AMOUNT_WIDTH - REMARK_WIDTH)
    wrapped = textwrap.wrap(
        middle, width, break_long_words=False, break_on_hyphens=False
    )
    start, *continued = wrapped or [""]
    yield f"{left}{start:<{width}}{amount:>{AMOUNT_WIDTH}}{remark}"
    margin = "".join("|" if character == "|" else " " for character in left)
    for line in continued:
        yield margin + line
