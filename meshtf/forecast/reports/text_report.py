"""A forecast as text: a table for a terminal, and JSON with totals.

print(table(forecast, module_depth=3))
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshtf.forecast.memory_advice import advice, verdict
from meshtf.forecast.report_data import PHASES, Facts, LiveTensors
from meshtf.forecast.reports.modules import (
    DEFAULT_DEPTH,
    ModuleCosts,
    has_modules,
    module_costs,
)
from meshtf.forecast.reports.op_table import (
    WIDTH,
    op_lines,
    shape_text,
    short_paths,
)
from meshtf.forecast.reports.totals import totals
from meshtf.forecast.reports.units import bytes_text, flops_text

MAX_ROWS = 8  # of a list of the largest
MAX_LIVE = 10  # rows of tensors that are live at the peak
MAX_MODULES = 24
LABEL_WIDTH = 32  # of the rows of costs
PLURALS: dict[str, str] = {
    "parameter": "parameters",
    "optimizer state": "optimizer state",
    "other variable": "other variables",
    "argument": "arguments",
    "gradient": "gradients",
    "activation": "activations",
    "temporary": "temporaries",
}
PATH_WIDTH = 40  # of module paths


def table(forecast: Facts, module_depth: int = DEFAULT_DEPTH) -> str:
    """Returns a forecast as text for a terminal.

    Args:
      forecast: the forecast.
      module_depth: how many names of a module path have a row of their own in the table
        of modules; 0: no such table.
    """
    blocks = [
        _head(forecast),
        _costs(forecast),
        _memory(forecast),
        _live(forecast),
        _stages(forecast),
        _modules(forecast, module_depth),
        _notes(forecast),
        _gathers(forecast),
        _redundant(forecast),
        list(op_lines(forecast)),
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

    def row(label: str, sums: Mapping[str, Any], text: Callable[[float], str]) -> str:
        amounts = [sums[column] for column in columns]
        cells = [text(amount) if amount else "-" for amount in amounts]
        aligned = "".join(f"{cell:>14}" for cell in cells)
        return f"  {label:<{LABEL_WIDTH}}{aligned}"

    collectives = sums["collectives"]
    received = {
        column: sum(collective[column] for collective in collectives)
        for column in columns
    }
    lines = [
        f"  {'':<{LABEL_WIDTH}}" + "".join(f"{column:>14}" for column in columns),
        row("FLOPs", sums["flops"], flops_text),
        row("  redundant FLOPs", sums["repeated_flops"], flops_text),
        row("bytes received per device", received, bytes_text),
    ]
    for collective in collectives:
        label = f"  {collective['times']} x {collective['kind']} {collective['axis']}"
        lines.append(row(label, collective, bytes_text))
    return lines


def _memory(forecast: Facts) -> list[str]:
    lines = ["  memory"]
    for name, size in vars(forecast.memory).items():
        lines.append(f"    {name.replace('_', ' '):<18}{bytes_text(size):>12}")
    if forecast.device_memory is not None:
        lines += ["", f"  {verdict(forecast)}"]
    if forecast.fits is False:
        for line in advice(forecast):
            lines.append(_filled(f"    - {line}.", "      "))
    return lines


def _live(forecast: Facts) -> list[str]:
    """Returns what the peak of memory consists of: sums by kind, and the largest tensors."""
    if not forecast.live:
        return []
    sums: dict[str, float] = {}
    for live in forecast.live:
        sums[live.kind] = sums.get(live.kind, 0.0) + live.total
    kinds = ", ".join(
        f"{PLURALS[kind]} {bytes_text(size)}"
        for kind, size in sorted(sums.items(), key=lambda item: -item[1])
        if size
    )
    paths = short_paths(forecast)
    axes = [axis for axis, _ in forecast.axes]
    peak = bytes_text(forecast.memory.peak)
    lines = [_filled(f"  at the peak of {peak}: {kinds}", "    ")]
    for live in forecast.live[:MAX_LIVE]:
        lines += [f"    {row}" for row in _live_rows(live, axes, paths)]
    if len(forecast.live) > MAX_LIVE:
        lines.append(f"    ... and {len(forecast.live) - MAX_LIVE} more")
    return lines


def _live_rows(
    live: LiveTensors, axes: Sequence[str], paths: Mapping[str, str]
) -> list[str]:
    """Returns two lines: what the tensors are, and where they come from."""
    count = f"{live.count} x " if live.count > 1 else ""
    shape = shape_text(live.tensor, axes) if live.tensor.dtype else ""
    origin = [live.path] if live.path else []
    if live.title not in ("variable", "argument"):
        origin.insert(0, live.title)
    if live.file:
        origin.append(f"{paths.get(live.file, live.file)}:{live.line}")
    label = f"{count}{live.kind}  {shape} {live.tensor.dtype}".rstrip()
    return [f"{bytes_text(live.total):>10}  {label}", f"{'':>12}{', '.join(origin)}"]


def _modules(forecast: Facts, depth: int) -> list[str]:
    """Returns a table of costs by module path."""
    if depth < 1 or not has_modules(forecast):
        return []
    paths = short_paths(forecast)
    rows = [_module_row(row, paths) for row in module_costs(forecast, depth)]
    columns = ("FLOPs", "received", "at the peak")
    title = f"modules, {depth} name{'s' * (depth > 1)} deep"
    head = f"{title:<{PATH_WIDTH + 2}}" + "".join(f"{name:>13}" for name in columns)
    return _list(f"{head}  most FLOPs at", rows, MAX_MODULES)


def _module_row(row: ModuleCosts, paths: Mapping[str, str]) -> str:
    """Returns the row of a module in the table of modules."""
    label = row.path
    if row.count > 1:
        label += f" ({row.count})"
    line = ""
    if row.file:
        path = paths.get(row.file, row.file)
        line = f"{path}:{row.line}"
    columns = [flops_text(row.flops), bytes_text(row.received), bytes_text(row.live)]
    amounts = ["-" if text == "0" else text for text in columns]
    aligned = "".join(f"{text:>13}" for text in amounts)
    return f"{label:<{PATH_WIDTH}}{aligned}  {line}"


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
    notes = [_filled(note, "      ", WIDTH - 4) for note in forecast.notes]
    return _list("notes", notes, None)


def _filled(text: str, indent: str, width: int = WIDTH) -> str:
    """Returns a long line as several ones, those after the first with this indent."""
    return textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False)


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
