"""What a forecast's HTML page shows without its script: sections, and the op table.

    html = static_page(forecast, tensor_index)

Every string of a user's program is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from html import escape

from meshtf.display import entry_html, section_html
from meshtf.forecast.report_data import ForecastData, PlacedTensor
from meshtf.forecast.reports.contents import (
    contents,
    error_title,
    head,
    page_contents,
)
from meshtf.forecast.reports.op_rows import op_rows
from meshtf.forecast.reports.shapes import ShapeHtml
from meshtf.forecast.reports.totals import totals
from meshtf.forecast.reports.user_lines import short_paths

_OPS_NOTE = (
    "In the order in which they run. [batch:8/data] is sharded along axis data; +model is "
    "a partial sum along model, not yet reduced. Below an op are the reshards of its "
    "inputs. Equal runs are shown once. With a profile of hardware, the last column has the "
    "predicted time of one run on one device."
)
_FOOTER = "Counts are for one device and one call; bytes are those of ring algorithms."
# The HTML of the rows of the op table, by their kind.
_ROWS = {
    "phase": '<div class="phase">{title}</div>',
    "module": '<div class="call soft">{title}</div>',
    "call": '<div class="call">{title}</div>',
    "run": '<details class="fold" open><summary>{title}</summary>',
    "end": "</details>",
    "op": '<div class="row"><i>{index}</i><code>{title}</code><span>{shapes}</span>'
    "<i>{amount}</i><i>{remarks}</i></div>",
    "collective": '<div class="row collective"><i></i><code>&larr; {title}</code>'
    "<span>{shapes}</span><i>{amount}</i><i>{remarks}</i></div>",
}


def static_page(
    forecast: ForecastData, tensor_index: Callable[[PlacedTensor], int]
) -> str:
    """Returns the content of the page.

    Args:
      forecast: the forecast.
      tensor_index: returns the index of a tensor in the page's data.
    """
    show = ShapeHtml([axis for axis, _ in forecast.axes], tensor_index)
    sums = totals(forecast)
    paths = short_paths(forecast)
    lengths = {op.path.count("/") + 1 for op in forecast.ops if op.path}
    depths = range(1, max(lengths, default=0) + 1)
    sections = [
        *contents(forecast, sums, paths, depths),
        *page_contents(forecast, sums, paths),
    ]
    return "\n".join(
        [
            f"<h1>{escape(forecast.name)}</h1>{section_html(head(forecast))}",
            _error(forecast, paths),
            *(section_html(section, show) for section in sections),
            _op_table(forecast, show, paths),
            f"<footer>{_FOOTER}</footer>",
        ]
    )


def _error(forecast: ForecastData, paths: Mapping[str, str]) -> str:
    """Returns the error that ended the recording, and after which op; "" for none."""
    if forecast.error is None:
        return ""
    title = escape(error_title(forecast, paths))
    error = escape(forecast.error)
    return f'<div class="card error"><h3>{title}</h3><pre>{error}</pre></div>'


def _op_table(forecast: ForecastData, show: ShapeHtml, paths: Mapping[str, str]) -> str:
    """Returns the section of the page with all ops."""
    rows = "\n".join(_op_lines(forecast, show, paths)) or "<p>no ops</p>"
    return (
        f'<section id="ops"><h2>Ops</h2><p class="lead">{_OPS_NOTE}</p>'
        f'<div class="card ops">{rows}</div></section>'
    )


def _op_lines(
    forecast: ForecastData, show: ShapeHtml, paths: Mapping[str, str]
) -> Iterator[str]:
    """Yields the HTML of each row of the op table."""
    for row in op_rows(forecast, paths):
        yield _ROWS[row.kind].format(
            title=escape(row.title),
            index=row.op_index,
            shapes=entry_html(row.shapes, show),
            amount=row.amount,
            remarks=" ".join((row.seconds, *row.remarks)).strip(),
        )
