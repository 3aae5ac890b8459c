"""The tables of a forecast's HTML page. They can be read without the page's script.

    html = static_page(forecast, tensor_index)

Every string of a user's program is escaped. The HTML of a shape carries the index of its
tensor (`data-tensor`), by which the page's script shows which device has which shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from meshtf.forecast.memory_advice import advice, verdict
from meshtf.forecast.report_data import (
    PHASES,
    ForecastData,
    LiveTensors,
    PlacedTensor,
)
from meshtf.forecast.reports.modules import (
    DEFAULT_DEPTH,
    ModuleCosts,
    has_modules,
    module_costs,
)
from meshtf.forecast.reports.op_rows import op_section
from meshtf.forecast.reports.op_table import short_paths
from meshtf.forecast.reports.shape_html import ShapeHtml
from meshtf.forecast.reports.time_table import (
    slowest_lines,
    time_headline,
    time_rows,
)
from meshtf.forecast.reports.totals import received_by_phase, totals
from meshtf.forecast.reports.units import bytes_text, devices_text, flops_text

MAX_ROWS = 24  # of a table in the section "Lines"
MAX_LIVE = 40  # rows of tensors that are live at the peak
HtmlRows = Iterable[Sequence[str]]  # one HTML string for each column


def static_page(
    forecast: ForecastData, tensor_index: Callable[[PlacedTensor], int]
) -> str:
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
        _time(forecast, paths),
        _memory(forecast),
        _live_tensors(forecast, shapes, paths),
        _modules(forecast, paths),
        _user_lines(forecast, paths),
        _notes(forecast),
        _variables(forecast, shapes),
        op_section(forecast, shapes, paths),
        "<footer>Counts are for one device and one call; bytes are those of ring "
        "algorithms.</footer>",
    ]
    return "\n".join(section for section in sections if section)


def _html_table(titles: Sequence[str], rows: HtmlRows) -> str:
    """Returns a table as HTML.

    Args:
      titles: the titles of the columns, as text.
      rows: the rows, as HTML.
    """
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    lines = [f"<tr>{head}</tr>"]
    for row in rows:
        columns = "".join(f"<td>{content}</td>" for content in row)
        lines.append(f"<tr>{columns}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _section(title: str, lead: str, *content: str) -> str:
    """Returns a section with a title, an introduction (both text) and HTML content."""
    heading = f'<h2>{escape(title)}</h2><p class="lead">{escape(lead)}</p>'
    return f"<section>{heading}{''.join(content)}</section>"


def _head(forecast: ForecastData) -> str:
    """Returns the name of the function, the mesh and the layouts."""
    mesh = "; ".join(f"{axis}:{size}" for axis, size in forecast.axes)
    facts = {
        "mesh": f"{mesh or '(one device)'}  ({devices_text(forecast.positions)})",
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


def _error(forecast: ForecastData) -> str:
    """Returns the error that ended the recording, and after which op."""
    if forecast.error is None:
        return ""
    last_op_text = "before the first op"
    if forecast.ops:
        last_op_text = f"after op {forecast.ops[-1].index}"
    return (
        f'<div class="card error"><h3>The plan ends here, {last_op_text}</h3>'
        f"<pre>{escape(forecast.error)}</pre></div>"
    )


def _costs(forecast: ForecastData) -> str:
    """Returns FLOPs and bytes received by phase."""
    sums = totals(forecast)
    columns = (*PHASES, "all")

    def row(
        label: str, amounts: Mapping[str, Any], to_text: Callable[[float], str]
    ) -> list[str]:
        return [escape(label), *(to_text(amounts[column]) for column in columns)]

    rows = [
        row("FLOPs", sums["flops"], flops_text),
        row("redundant FLOPs", sums["repeated_flops"], flops_text),
        row("bytes received", received_by_phase(sums), bytes_text),
    ]
    for collective in sums["collectives"]:
        # `totals` puts its bytes by phase beside "times", "kind" and "axis".
        label = f"{collective['times']} x {collective['kind']} {collective['axis']}"
        rows.append(row(label, collective, bytes_text))
    lead = (
        "For one device and one call. Redundant FLOPs are computed identically by "
        "several devices."
    )
    return _section("Costs", lead, _html_table(("", *columns), rows))


def _time(forecast: ForecastData, paths: Mapping[str, str]) -> str:
    """Returns the predicted time of a step: by kind of work, and the slowest lines."""
    if forecast.time is None:
        return ""
    rows = [(escape(label), text) for label, text in time_rows(forecast.time)]
    slowest = [(text, escape(line)) for text, line in slowest_lines(forecast, paths)]
    return _section(
        f"Time of a step on {forecast.time.hardware}",
        f"Predicted: {time_headline(forecast.time)}.",
        _html_table(("", "one device"), rows),
        _html_table(("of one device", "the slowest lines"), slowest),
    )


def _memory(forecast: ForecastData) -> str:
    """Returns the bytes of each kind with a bar, and advice if they do not fit."""
    rows = []
    sizes = vars(forecast.memory)
    largest = max(sizes.values()) or 1  # not 0: sizes are divided by it
    for name, size in sizes.items():
        width = 100 * size / largest
        bar = f'<div class="bar"><i style="width:{width:.1f}%"></i></div>'
        rows.append((escape(name.replace("_", " ")), bytes_text(size), bar))
    content = [_html_table(("", "bytes", ""), rows)]
    if forecast.device_memory is not None:
        content.append(f"<p><b>{escape(verdict(forecast))}</b></p>")
    if forecast.fits is False:
        content.append(_html_list(f"{line}." for line in advice(forecast)))
    lead = (
        "On one device. Each row is the peak of its kind; they are not reached at the "
        "same time. The last row is the peak of all live bytes."
    )
    return _section("Memory", lead, *content)


def _live_tensors(
    forecast: ForecastData, shapes: ShapeHtml, paths: Mapping[str, str]
) -> str:
    """Returns the largest tensors at the peak of memory."""
    if not forecast.live:
        return ""
    rows = []
    for live in forecast.live[:MAX_LIVE]:
        # Tuples of small tensors, such as statistics, have no type of their own.
        shape = shapes(live.tensor) if live.tensor.dtype else ""
        count = f"{live.count} x " if live.count > 1 else ""
        rows.append(
            (
                bytes_text(live.total),
                count + shape,
                escape(live.kind),
                escape(live.title),
                escape(live.path),
                escape(_line_text(live, paths)),
            )
        )
    titles = ("bytes", "tensor", "kind", "computed by", "module", "line")
    lead = (
        "What is live at the peak, equal tensors in one row. Activations are kept for the "
        "backward pass; temporaries are all other computed tensors."
    )
    return _section(
        "Largest tensors at the peak of memory", lead, _html_table(titles, rows)
    )


def _modules(forecast: ForecastData, paths: Mapping[str, str]) -> str:
    """Returns a table of costs by module for each depth of module paths, one of them
    unfolded; `paths` are the short paths of the user's files.
    """
    if not has_modules(forecast):
        return ""
    paths_of_ops = {op.path for op in forecast.ops if op.path}
    max_depth = max(path.count("/") + 1 for path in paths_of_ops)
    content = []
    for depth in range(1, max_depth + 1):
        titles = ("module", "FLOPs", "received", "at the peak", "most FLOPs at")
        rows = [_module_row(costs, paths) for costs in module_costs(forecast, depth)]
        open_attribute = " open" if depth == min(DEFAULT_DEPTH, max_depth) else ""
        plural = "s" if depth > 1 else ""
        content.append(
            f"<details{open_attribute}><summary>{depth} name{plural} deep</summary>"
            f"{_html_table(titles, rows)}</details>"
        )
    lead = 'Sums by module path; "_*" stands for the indices of equal modules.'
    return _section("Modules", lead, *content)


def _module_row(costs: ModuleCosts, paths: Mapping[str, str]) -> tuple[str, ...]:
    """Returns a row of the table of modules."""
    count = f" ({costs.count})" if costs.count > 1 else ""
    return (
        escape(costs.path) + count,
        flops_text(costs.flops),
        bytes_text(costs.received),
        bytes_text(costs.live),
        escape(_line_text(costs, paths)),
    )


def _user_lines(forecast: ForecastData, paths: Mapping[str, str]) -> str:
    """Returns the user's lines with the most bytes received, gathered bytes and redundant
    FLOPs.
    """
    sums = totals(forecast)
    rows_by_title = {
        "Bytes received, by line": [
            (bytes_text(row["all"]), _call_text(row, paths)) for row in sums["lines"]
        ],
        "Gathered dimensions": [
            (
                bytes_text(row["all"]),
                f"{row['times']} x {row['dim']} over {row['axis']}, for "
                f"{_call_text(row, paths)}",
            )
            for row in sums["gathers"]
        ],
        "Redundant FLOPs": [
            (
                flops_text(row["all"]),
                f"{_call_text(row, paths)}: identical on {row['positions']} devices",
            )
            for row in sums["repeated"]
        ],
    }
    no_titles = ("", "")
    content = []
    for title, rows in rows_by_title.items():
        if rows:
            html_rows = [(amount, escape(text)) for amount, text in rows[:MAX_ROWS]]
            content.append(f"<h3>{title}</h3>{_html_table(no_titles, html_rows)}")
    if not content:
        return ""
    lead = "By the line of the program that calls the ops; the largest first."
    return _section("Lines", lead, *content)


def _notes(forecast: ForecastData) -> str:
    """Returns the notes about the layout and the program."""
    if not forecast.notes:
        return ""
    lead = "Legal, but probably not intended."
    return _section("Notes", lead, _html_list(forecast.notes))


def _variables(forecast: ForecastData, shapes: ShapeHtml) -> str:
    """Returns the variables of the program, folded."""
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
    table = _html_table(("variable", "shape", "bytes", "role"), rows)
    folded = f"<details><summary>{len(rows):,} variables</summary>{table}</details>"
    return _section("Variables", "With the bytes of one shard.", folded)


def _html_list(items: Iterable[str]) -> str:
    """Returns texts as an HTML list."""
    entries = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f'<ul class="plain">{entries}</ul>'


def _line_text(source: LiveTensors | ModuleCosts, paths: Mapping[str, str]) -> str:
    """Returns the user's line as "file:line"; "" if it is unknown.

    Args:
      source: has the file and the line.
      paths: the short paths of the user's files.
    """
    if not source.file:
        return ""
    path = paths.get(source.file, source.file)
    return f"{path}:{source.line}"


def _call_text(row: Mapping[str, Any], paths: Mapping[str, str]) -> str:
    """Returns the function and the user's line of a sum of `totals`."""
    if not row["file"]:  # a layer; reshards of what the function returns have none
        return str(row["function"] or "the results")
    path = paths.get(row["file"], row["file"])
    return f"{row['function']} at {path}:{row['line']}"
