"""The tables of a forecast's HTML page, which need no script.

    html = static_page(forecast, tensor_index)

Every string of a user's program is escaped. A shape has the index of its tensor
(`data-tensor`), so that the page's script can show its shards by device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from meshtf.forecast.memory_advice import advice, verdict
from meshtf.forecast.report_data import PHASES, Facts, PlacedTensor
from meshtf.forecast.reports.modules import has_modules, module_costs
from meshtf.forecast.reports.op_rows import op_section
from meshtf.forecast.reports.op_table import short_paths
from meshtf.forecast.reports.shape_html import ShapeHtml
from meshtf.forecast.reports.totals import totals
from meshtf.forecast.reports.units import bytes_text, flops_text

MAX_ROWS = 24
MAX_LIVE = 40
Rows = Iterable[Sequence[str]]  # cells are HTML


def static_page(forecast: Facts, tensor_index: Callable[[PlacedTensor], int]) -> str:
    """Returns the content of the page.

    Args:
      forecast: the forecast.
      tensor_index: returns the index of a tensor in the page's data.
    """
    axes = [axis for axis, _ in forecast.axes]
    shapes = ShapeHtml(axes, tensor_index)
    paths = short_paths(forecast)
    sections = [
        _head(forecast),
        _error(forecast),
        _costs(forecast),
        _memory(forecast),
        _live(forecast, shapes, paths),
        _modules(forecast, paths),
        _lines(forecast, paths),
        _notes(forecast),
        _variables(forecast, shapes),
        op_section(forecast, shapes, paths),
        "<footer>Counts are for one device and one call; bytes are those of ring "
        "algorithms.</footer>",
    ]
    return "\n".join(section for section in sections if section)


def _table(head: Sequence[str], rows: Rows) -> str:
    """Returns a table with these titles of columns."""
    lines = ["<table><tr>", *(f"<th>{escape(name)}</th>" for name in head), "</tr>"]
    for row in rows:
        cells = "".join(f"<td>{cell}</td>" for cell in row)
        lines.append(f"<tr>{cells}</tr>")
    return "".join([*lines, "</table>"])


def _section(title: str, lead: str, *content: str) -> str:
    heading = f'<h2>{escape(title)}</h2><p class="lead">{escape(lead)}</p>'
    return f"<section>{heading}{''.join(content)}</section>"


def _head(forecast: Facts) -> str:
    mesh = "; ".join(f"{axis}:{size}" for axis, size in forecast.axes)
    plural = "s" if forecast.positions != 1 else ""
    facts = {
        "mesh": f"{mesh or '(one device)'}  ({forecast.positions:,} device{plural})",
        "layout": forecast.layout or "(shards nothing)",
    }
    if forecast.variable_layout != forecast.layout:
        facts["variable_layout"] = forecast.variable_layout or "(shards nothing)"
    if forecast.optimizer_layout != forecast.variable_layout:
        facts["optimizer_layout"] = forecast.optimizer_layout or "(shards nothing)"
    items = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>"
        for name, text in facts.items()
    )
    return (
        f"<header><h1>{escape(forecast.name)}</h1>"
        f'<dl class="facts">{items}</dl></header>'
    )


def _error(forecast: Facts) -> str:
    if forecast.error is None:
        return ""
    where = "before the first op"
    if forecast.ops:
        where = f"after op {forecast.ops[-1].index}"
    return (
        f'<div class="card error"><h3>The plan ends here, {where}</h3>'
        f"<pre>{escape(forecast.error)}</pre></div>"
    )


def _costs(forecast: Facts) -> str:
    """Returns FLOPs and bytes received by phase."""
    sums = totals(forecast)
    columns = (*PHASES, "all")

    def row(
        label: str, amounts: Mapping[str, Any], text: Callable[[float], str]
    ) -> list[str]:
        return [escape(label), *(text(amounts[column]) for column in columns)]

    received = {
        c: sum(collective[c] for collective in sums["collectives"]) for c in columns
    }
    rows = [
        row("FLOPs", sums["flops"], flops_text),
        row("redundant FLOPs", sums["repeated_flops"], flops_text),
        row("bytes received", received, bytes_text),
    ]
    for collective in sums["collectives"]:
        label = f"{collective['times']} x {collective['kind']} {collective['axis']}"
        rows.append(row(label, collective, bytes_text))
    lead = (
        "For one device and one call. Redundant FLOPs are computed identically by "
        "several devices."
    )
    return _section("Costs", lead, _table(("", *columns), rows))


def _memory(forecast: Facts) -> str:
    rows = []
    largest = max(vars(forecast.memory).values(), default=0) or 1
    for name, size in vars(forecast.memory).items():
        width = 100 * size / largest
        bar = f'<div class="bar"><i style="width:{width:.1f}%"></i></div>'
        rows.append((escape(name.replace("_", " ")), bytes_text(size), bar))
    content = [_table(("", "bytes", ""), rows)]
    if forecast.device_memory is not None:
        content.append(f"<p><b>{escape(verdict(forecast))}</b></p>")
    if forecast.fits is False:
        content.append(_list(f"{line}." for line in advice(forecast)))
    lead = (
        "On one device. Each row is the peak of its kind; they are not reached at the "
        "same time. The last row is the peak of all live bytes."
    )
    return _section("Memory", lead, *content)


def _live(forecast: Facts, shapes: ShapeHtml, paths: Mapping[str, str]) -> str:
    """Returns the largest tensors at the peak of memory."""
    if not forecast.live:
        return ""
    rows = []
    for live in forecast.live[:MAX_LIVE]:
        shape = shapes(live.tensor) if live.tensor.dtype else ""
        count = f"{live.count} x " if live.count > 1 else ""
        cells = (live.kind, live.title, live.path, _line(live, paths))
        rows.append(
            (bytes_text(live.total), count + shape, *(escape(cell) for cell in cells))
        )
    head = ("bytes", "tensor", "kind", "computed by", "module", "line")
    lead = (
        "What is live at the peak, equal tensors in one row. Activations are kept for the "
        "backward pass; temporaries are all other computed tensors."
    )
    return _section("Largest tensors at the peak of memory", lead, _table(head, rows))


def _modules(forecast: Facts, paths: Mapping[str, str]) -> str:
    """Returns costs by module: folded, for each depth of paths."""
    if not has_modules(forecast):
        return ""
    deepest = max(op.path.count("/") + 1 for op in forecast.ops if op.path)
    content = []
    for depth in range(1, deepest + 1):
        rows = [
            (
                escape(row.path) + (f" ({row.count})" if row.count > 1 else ""),
                flops_text(row.flops),
                bytes_text(row.received),
                bytes_text(row.live),
                escape(_line(row, paths)),
            )
            for row in module_costs(forecast, depth)
        ]
        head = ("module", "FLOPs", "received", "at the peak", "most FLOPs at")
        opened = " open" if depth == min(3, deepest) else ""
        names = f"{depth} name{'s' if depth > 1 else ''} deep"
        content.append(
            f"<details{opened}><summary>{names}</summary>{_table(head, rows)}</details>"
        )
    lead = 'Sums by module path; "_*" stands for the indices of equal modules.'
    return _section("Modules", lead, *content)


def _lines(forecast: Facts, paths: Mapping[str, str]) -> str:
    """Returns where bytes are received, gathered dimensions and redundant FLOPs."""
    sums = totals(forecast)
    rows_by_title = {
        "Bytes received, by line": [
            (bytes_text(row["all"]), _at(row, paths)) for row in sums["lines"]
        ],
        "Gathered dimensions": [
            (
                bytes_text(row["all"]),
                f"{row['times']} x {row['dim']} over {row['axis']}, for "
                f"{_at(row, paths)}",
            )
            for row in sums["gathers"]
        ],
        "Redundant FLOPs": [
            (
                flops_text(row["all"]),
                f"{_at(row, paths)}: identical on {row['positions']} devices",
            )
            for row in sums["repeated"]
        ],
    }
    content = [
        f"<h3>{title}</h3>"
        + _table(("", ""), [(size, escape(text)) for size, text in rows[:MAX_ROWS]])
        for title, rows in rows_by_title.items()
        if rows
    ]
    if not content:
        return ""
    lead = "By the line of the program that calls the ops; the largest first."
    return _section("Lines", lead, *content)


def _notes(forecast: Facts) -> str:
    if not forecast.notes:
        return ""
    lead = "Legal, but probably not intended."
    return _section("Notes", lead, _list(forecast.notes))


def _variables(forecast: Facts, shapes: ShapeHtml) -> str:
    if not forecast.variables:
        return ""
    rows = [
        (
            escape(variable.name),
            shapes(variable.tensor),
            bytes_text(variable.tensor.bytes),
            variable.role,
        )
        for variable in forecast.variables
    ]
    table = _table(("variable", "shape", "bytes", "role"), rows)
    folded = f"<details><summary>{len(rows):,} variables</summary>{table}</details>"
    return _section("Variables", "With the bytes of one shard.", folded)


def _list(items: Iterable[str]) -> str:
    return f'<ul class="plain">{"".join(f"<li>{escape(x)}</li>" for x in items)}</ul>'


def _line(row: Any, paths: Mapping[str, str]) -> str:
    """Returns the user's line of a row, or ""."""
    if not row.file:
        return ""
    path = paths.get(row.file, row.file)
    return f"{path}:{row.line}"


def _at(row: Mapping[str, Any], paths: Mapping[str, str]) -> str:
    if not row["file"]:
        return "the results"
    return f"{row['function']} at {paths.get(row['file'], row['file'])}:{row['line']}"
