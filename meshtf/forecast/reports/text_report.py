"""A forecast as text: tables for a terminal, and JSON with totals.

    print(table(forecast, module_depth=3))
    as_json(forecast)

Each function `_costs`, `_memory` and so on returns the lines of one table.
"""

from __future__ import annotations

import collections
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshtf.forecast.memory_advice import advice, verdict
from meshtf.forecast.report_data import PHASES, ForecastData, LiveTensors
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
from meshtf.forecast.reports.time_table import (
    slowest_lines,
    time_headline,
    time_rows,
)
from meshtf.forecast.reports.totals import received_by_phase, totals
from meshtf.forecast.reports.units import bytes_text, flops_text

MAX_ROWS = 8  # of a list of lines
MAX_LIVE = 10  # rows of tensors that are live at the peak
MAX_MODULES = 24  # rows of modules
LABEL_WIDTH = 32  # of the first column of costs
PLURALS: dict[str, str] = {
    "parameter": "parameters",
    "optimizer state": "optimizer state",
    "other variable": "other variables",
    "argument": "arguments",
    "gradient": "gradients",
    "activation": "activations",
    "temporary": "temporaries",
}
PATH_WIDTH = 40  # of the column of module paths


def table(forecast: ForecastData, module_depth: int = DEFAULT_DEPTH) -> str:
    """Returns a forecast as text for a terminal.

    Args:
      forecast: the forecast.
      module_depth: how many names of a module path make a row of the table of modules;
        0: no such table.
    """
    sums = totals(forecast)
    blocks = [
        _head(forecast),
        _costs(sums),
        _time(forecast),
        _memory(forecast),
        _live_tensors(forecast),
        _stages(forecast),
        _modules(forecast, module_depth),
        _notes(forecast),
        _gathered_dimensions(forecast, sums),
        _redundant_flops(forecast, sums),
        list(op_lines(forecast)),
        _error(forecast),
    ]
    return "\n\n".join(
        "\n".join(line.rstrip() for line in block) for block in blocks if block
    )


def as_json(forecast: ForecastData) -> str:
    """Returns a forecast as JSON: the fields of `ForecastData`, and "totals" (see `totals`).

    Each op, result and variable is on a separate line, so that `diff` can compare two
    files.
    """
    fields = forecast.as_dict() | {"totals": totals(forecast)}
    lines = []
    for name, value in fields.items():
        lines.append(f"{json.dumps(name)}: {_json_by_line(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _json_by_line(value: Any) -> str:
    """Returns JSON with each element of a list on a separate line."""
    if isinstance(value, list | tuple) and value:
        lines = (json.dumps(item, allow_nan=False) for item in value)
        return "[\n" + ",\n".join(lines) + "\n]"
    return json.dumps(value, allow_nan=False)


def _head(forecast: ForecastData) -> list[str]:
    """Returns the name of the function, the mesh and the layouts."""
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


def _costs(sums: Mapping[str, Any]) -> list[str]:
    """Returns FLOPs and bytes received, with a column for each phase.

    Args:
      sums: the result of `totals`, as in `_gathered_dimensions` and `_redundant_flops`.
    """
    columns = (*PHASES, "all")

    def row(
        label: str, amounts: Mapping[str, Any], to_text: Callable[[float], str]
    ) -> str:
        texts = []
        for column in columns:
            amount = amounts[column]
            texts.append(to_text(amount) if amount else "-")
        aligned = "".join(f"{amount_text:>14}" for amount_text in texts)
        return f"  {label:<{LABEL_WIDTH}}{aligned}"

    lines = [
        f"  {'':<{LABEL_WIDTH}}" + "".join(f"{column:>14}" for column in columns),
        row("FLOPs", sums["flops"], flops_text),
        row("  redundant FLOPs", sums["repeated_flops"], flops_text),
        row("bytes received per device", received_by_phase(sums), bytes_text),
    ]
    for collective in sums["collectives"]:
        label = f"  {collective['times']} x {collective['kind']} {collective['axis']}"
        lines.append(row(label, collective, bytes_text))
    return lines


def _time(forecast: ForecastData) -> list[str]:
    """Returns the predicted time of a step: by kind of work, and the slowest lines."""
    time = forecast.time
    if time is None:
        return []
    title = f"time on {time.hardware}"
    lines = [f"  {title:<{LABEL_WIDTH}}{time_headline(time)}"]
    for label, seconds in time_rows(time):
        lines.append(f"    {label:<{LABEL_WIDTH - 2}}{seconds:>10}")
    if time.source:
        lines.append(_wrapped(f"    rates of matmuls: {time.source}", indent="      "))
    lines.append("    the slowest lines")
    for seconds, line in slowest_lines(forecast, short_paths(forecast)):
        lines.append(f"      {seconds:>10}  {line}")
    return lines


def _memory(forecast: ForecastData) -> list[str]:
    """Returns the bytes of each kind, and advice if they do not fit on a device."""
    lines = ["  memory"]
    for name, size in vars(forecast.memory).items():
        lines.append(f"    {name.replace('_', ' '):<18}{bytes_text(size):>12}")
    if forecast.device_memory is not None:
        lines += ["", f"  {verdict(forecast)}"]
    if forecast.fits is False:
        for line in advice(forecast):
            lines.append(_wrapped(f"    - {line}.", indent="      "))
    return lines


def _live_tensors(forecast: ForecastData) -> list[str]:
    """Returns what is live at the peak of memory: bytes by kind, and the largest tensors."""
    if not forecast.live:
        return []
    paths = short_paths(forecast)
    axes = [axis for axis, _ in forecast.axes]
    peak = bytes_text(forecast.memory.peak)
    runtime = f"under the {forecast.runtime} runtime"
    summary = f"  at the peak of {peak}, {runtime}: {_sums_by_kind(forecast)}"
    lines = [_wrapped(summary, indent="    ")]
    for live in forecast.live[:MAX_LIVE]:
        lines += [f"    {row}" for row in _live_rows(live, axes, paths)]
    if len(forecast.live) > MAX_LIVE:
        lines.append(f"    ... and {len(forecast.live) - MAX_LIVE} more")
    return lines


def _sums_by_kind(forecast: ForecastData) -> str:
    """Returns the bytes of each kind of live tensors: "activations 3 GiB, parameters ..."."""
    sums: dict[str, float] = collections.defaultdict(float)
    for live in forecast.live:
        sums[live.kind] += live.total
    largest_first = sorted(sums, key=sums.__getitem__, reverse=True)
    return ", ".join(
        f"{PLURALS[kind]} {bytes_text(sums[kind])}"
        for kind in largest_first
        if sums[kind]
    )


def _live_rows(
    live: LiveTensors, axes: Sequence[str], paths: Mapping[str, str]
) -> list[str]:
    """Returns two lines: the bytes and shape of equal tensors, and the op and the line that
    compute them.
    """
    count = f"{live.count} x " if live.count > 1 else ""
    shape = shape_text(live.tensor, axes) if live.tensor.dtype else ""
    origin = [live.path] if live.path else []
    if live.title not in ("variable", "argument"):
        origin.insert(0, live.title)
    if live.file:
        origin.append(f"{paths.get(live.file, live.file)}:{live.line}")
    label = f"{count}{live.kind}  {shape} {live.tensor.dtype}".rstrip()
    margin = " " * 12
    return [f"{bytes_text(live.total):>10}  {label}", margin + ", ".join(origin)]


def _modules(forecast: ForecastData, depth: int) -> list[str]:
    """Returns a table of costs by module path.

    Args:
      forecast: the forecast.
      depth: how many names of a module path make a row; 0: no table.
    """
    if depth < 1 or not has_modules(forecast):
        return []
    paths = short_paths(forecast)
    rows = [_module_row(row, paths) for row in module_costs(forecast, depth)]
    columns = ("FLOPs", "received", "at the peak")
    plural = "s" if depth > 1 else ""
    title = f"modules, {depth} name{plural} deep"
    column_titles = "".join(f"{name:>13}" for name in columns)
    # Rows of the list are indented by two more than its title.
    title_width = PATH_WIDTH + 2
    head = f"{title:<{title_width}}{column_titles}  most FLOPs at"
    return _titled_rows(head, rows, max_rows=MAX_MODULES)


def _module_row(costs: ModuleCosts, paths: Mapping[str, str]) -> str:
    """Returns the row of a module in the table of modules."""
    label = costs.path
    if costs.count > 1:
        label += f" ({costs.count})"
    line = ""
    if costs.file:
        path = paths.get(costs.file, costs.file)
        line = f"{path}:{costs.line}"
    amounts = (
        flops_text(costs.flops),
        bytes_text(costs.received),
        bytes_text(costs.live),
    )
    texts = ["-" if amount == "0" else amount for amount in amounts]
    aligned = "".join(f"{text:>13}" for text in texts)
    return f"{label:<{PATH_WIDTH}}{aligned}  {line}"


def _stages(forecast: ForecastData) -> list[str]:
    """Returns FLOPs and memory of each pipeline stage."""

    def row(label: str, *columns: str) -> str:
        aligned = "".join(f"{column:>14}" for column in columns)
        return f"  {label:<18}{aligned}"

    if not forecast.stages:
        return []
    lines = [row("stages", "FLOPs", "parameters", "activations", "peak")]
    for i, stage in enumerate(forecast.stages):
        sizes = stage.parameters, stage.activations, stage.peak
        lines.append(row(f"  {i}", flops_text(stage.flops), *map(bytes_text, sizes)))
    return lines


def _notes(forecast: ForecastData) -> list[str]:
    """Returns the notes about the layout and the program."""
    # `_titled_rows` indents by four.
    notes = [
        _wrapped(note, indent="      ", width=WIDTH - 4) for note in forecast.notes
    ]
    return _titled_rows("notes", notes, max_rows=None)


def _wrapped(text: str, indent: str, width: int = WIDTH) -> str:
    """Returns a long line as several lines, with an indent from the second line on."""
    return textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False)


def _gathered_dimensions(forecast: ForecastData, sums: Mapping[str, Any]) -> list[str]:
    """Returns the bytes of gathered dimensions, by line."""
    paths = short_paths(forecast)
    rows = [
        f"{bytes_text(gather['all']):>10}  {gather['times']} x {gather['dim']} over "
        f"{gather['axis']}, for {_call_text(gather, paths)}"
        for gather in sums["gathers"]
    ]
    return _titled_rows("gathered dimensions", rows)


def _redundant_flops(forecast: ForecastData, sums: Mapping[str, Any]) -> list[str]:
    """Returns redundant FLOPs, by line."""
    paths = short_paths(forecast)
    rows = [
        f"{flops_text(line['all']):>10}  {_call_text(line, paths)}: identical on "
        f"{line['positions']} devices"
        for line in sums["repeated"]
    ]
    return _titled_rows("redundant FLOPs", rows)


def _call_text(row: Mapping[str, Any], paths: Mapping[str, str]) -> str:
    """Returns the function and the user's line of a sum of `totals`, or of an op."""
    if not row["file"]:  # a layer; reshards of what the function returns have none
        return str(row["function"] or "the results")
    path = paths.get(row["file"], row["file"])
    return f"{row['function']} at {path}:{row['line']}"


def _titled_rows(
    title: str, rows: Sequence[str], max_rows: int | None = MAX_ROWS
) -> list[str]:
    """Returns a title and indented rows; the last line says how many were left out."""
    if not rows:
        return []
    shown = rows[:max_rows]
    lines = [f"  {title}"]
    lines.extend(f"    {row}" for row in shown)
    if len(rows) > len(shown):
        lines.append(f"    ... and {len(rows) - len(shown)} more")
    return lines


def _error(forecast: ForecastData) -> list[str]:
    """Returns the error that ended the recording, and after which op."""
    if forecast.error is None:
        return []
    last_op_text = "before the first op"
    if forecast.ops:
        op = forecast.ops[-1]
        last_op_text = (
            f"after op {op.index}, {_call_text(vars(op), short_paths(forecast))}"
        )
    message = forecast.error.split("\n")
    return [
        f"!! the plan ends here, {last_op_text}:",
        *(f"!! {line}" for line in message),
    ]
