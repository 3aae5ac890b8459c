"""The op table of the HTML page: a row for each op, in the order in which they run.

    html = op_section(forecast, shapes, paths)

Consecutive equal runs of ops, such as the layers of a deep model, are written once: `fold`
returns the indices of ops, and for a repeated run (times, items of one period).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from meshtf.forecast.report_data import (
    Collective,
    Computation,
    ForecastData,
    without_indices,
)
from meshtf.forecast.reports.op_table import MIN_SECONDS, count_ops
from meshtf.forecast.reports.shape_html import ShapeHtml
from meshtf.forecast.reports.totals import (
    Folded,
    fold,
    is_direct_call,
    op_key,
    redundant_flops,
)
from meshtf.forecast.reports.units import bytes_text, flops_text, seconds_text

_LEAD = (
    "In the order in which they run. [batch:8/data] is sharded along axis data; +model is "
    "a partial sum along model, not yet reduced. Below an op are the reshards of its "
    "inputs. Equal runs are shown once. With a profile of hardware, the last column has the "
    "predicted time of one run on one device."
)


def op_section(
    forecast: ForecastData, shapes: ShapeHtml, paths: Mapping[str, str]
) -> str:
    """Returns the section of the page with all ops.

    Args:
      forecast: the forecast.
      shapes: makes the HTML of shapes.
      paths: the short paths of the user's files.
    """
    rows = _OpRows(forecast, shapes, paths)
    items = fold(list(map(op_key, forecast.ops)))
    lines = list(rows.rows_of(items))
    if forecast.results:
        lines.append('<div class="phase">results</div>')
        lines += [rows.collective(collective) for collective in forecast.results]
    body = "\n".join(lines) or "<p>no ops</p>"
    return (
        f'<section id="ops"><h2>Ops</h2><p class="lead">{_LEAD}</p>'
        f'<div class="card ops">{body}</div></section>'
    )


class _OpRows:
    """Writes rows of ops.

    A row with the phase comes before the first op of each phase, and a row with the user's
    line before the first op of each line, so both are stored from op to op.
    """

    def __init__(
        self, forecast: ForecastData, shapes: ShapeHtml, paths: Mapping[str, str]
    ) -> None:
        self._ops = forecast.ops
        self._shapes = shapes
        self._paths = paths
        self._phase = ""  # the phase of the last op
        self._call = ""  # the line of the last op, as `_call_text` returns it

    def rows_of(self, items: Sequence[Folded]) -> Iterator[str]:
        """Yields the rows of ops, given as indices and repeated runs."""
        for item in items:
            if isinstance(item, int):
                yield from self._op(self._ops[item])
            else:
                times, body = item
                yield from self._folded(times, body)

    def _folded(self, times: int, body: Sequence[Folded]) -> Iterator[str]:
        """Yields the rows of a run that is repeated `times` times, within a frame."""
        count = count_ops(body)
        ops = "this op" if count == 1 else f"these {count} ops"
        yield f'<details class="fold" open><summary>{times} times {ops}</summary>'
        self._call = ""
        yield from self.rows_of(body)
        self._call = ""
        yield "</details>"

    def _op(self, op: Computation) -> Iterator[str]:
        """Yields the row of an op and of its collectives, and the rows before them."""
        if op.phase != self._phase:
            self._phase = op.phase
            self._call = ""
            yield f'<div class="phase">{op.phase}</div>'
        call = self._call_text(op)
        if call != self._call:
            self._call = call
            yield f'<div class="call">{escape(call)}</div>'
        outputs = ", ".join(map(self._shapes, op.outputs))
        remark = _times_text(op.seconds, op.times)
        if redundant_flops(op):
            remark += f" identical on {op.repeated}"
        yield (
            f'<div class="row"><i>{op.index}</i><code>{escape(op.title)}</code>'
            f"<span>{outputs}</span><i>{flops_text(op.flops)}</i><i>{remark}</i></div>"
        )
        yield from map(self.collective, op.collectives)

    def _call_text(self, op: Computation) -> str:
        """Returns the user's line, the function that the line calls, and the module."""
        line = f"{self._paths[op.file]}:{op.line}" if op.file else ""
        function = "" if is_direct_call(op) else op.function
        path = without_indices(op.path)
        return "  ".join(text for text in (line, function, path) if text)

    def collective(self, collective: Collective) -> str:
        """Returns the row of one collective."""
        arrow = f"{self._shapes(collective.tensor)} -> {self._shapes(collective.after)}"
        times = _times_text(collective.seconds, collective.times)
        size = bytes_text(collective.bytes) if collective.bytes else "free"
        label = escape(f"{collective.kind} {collective.axis}")
        return (
            f'<div class="row collective"><i></i><code>&larr; {label}</code>'
            f"<span>{arrow}</span><i>{size}</i><i>{times}</i></div>"
        )


def _times_text(seconds: float, times: int) -> str:
    """Returns how long an op or collective takes, where that is known, and how often it runs."""
    texts = []
    if seconds >= MIN_SECONDS:
        texts.append(seconds_text(seconds))
    if times > 1:
        texts.append(f"x {times}")
    return " ".join(texts)
