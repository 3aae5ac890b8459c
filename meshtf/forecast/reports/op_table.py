"""The op table of a forecast as text: every op with its outputs, FLOPs and reshards.

    lines = op_lines(forecast, paths, show)

`op_rows` says what the rows are; equal runs of ops have a "|" in the margin.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping

from meshtf.display import entry_text
from meshtf.forecast.report_data import ForecastData, PlacedTensor
from meshtf.forecast.reports.op_rows import OpRow, op_rows

WIDTH = 110
AMOUNT_WIDTH = 12  # of FLOPs and bytes
SECONDS_WIDTH = 10  # of the column of seconds, if the forecast has times
REMARK_WIDTH = 19  # "  identical on 2048"
SECONDS_LEGEND = "The last column is the predicted time of one run on one device."
LEGEND = """\
[batch:8/data] is sharded along axis data; +model: a partial sum along model (also max, min).
<- a reshard of an input, before the op runs; identical on 4: four devices compute the same."""

# What comes before the titles of these rows; others have columns, or no line.
_MARGINS = {"phase": "", "call": "  ", "run": "  "}
_RUN_MARGIN = "  |"  # of the rows of a repeated run


def op_lines(
    forecast: ForecastData,
    paths: Mapping[str, str],
    show: Callable[[PlacedTensor], str],
) -> Iterator[str]:
    """Yields the lines of the op table; none for a forecast without ops.

    Args:
      forecast: the forecast.
      paths: the short paths of the user's files.
      show: returns the text of a shape.
    """
    if not (forecast.ops or forecast.results):
        return
    yield "  ops"
    yield from textwrap.indent(LEGEND, "    ").split("\n")
    has_times = forecast.time is not None
    if has_times:
        yield f"    {SECONDS_LEGEND}"
    longest_title = max((len(op.title) for op in forecast.ops), default=0)
    title_width = min(24, longest_title) + 2
    indent = "    "
    for row in op_rows(forecast, paths):
        if row.kind in _MARGINS:
            yield f"{indent}{_MARGINS[row.kind]}{row.title}"
        if row.kind == "run":
            indent += _RUN_MARGIN
        elif row.kind == "end":
            indent = indent.removesuffix(_RUN_MARGIN)
        elif row.kind == "op":
            left = f"{indent}    {row.title:<{title_width}}"
            yield from _wrapped(left, entry_text(row.shapes, show), row, has_times)
        elif row.kind == "collective":
            shapes = row.shapes
            # The result of an all_gather or all_reduce is clear from the input.
            if row.title.startswith(("all_gather ", "all_reduce ")):
                shapes = shapes[:1]
            middle = f"{row.title}  {entry_text(shapes, show)}"
            yield from _wrapped(f"{indent}      <- ", middle, row, has_times)


def _wrapped(left: str, middle: str, row: OpRow, has_times: bool) -> Iterator[str]:
    """Yields a line of the op table with columns and remarks.

    Args:
      left: the left column; its "|" signs are repeated on continued lines.
      middle: the middle column; long text continues on the next lines.
      row: has the columns on the right.
      has_times: whether there is a column of seconds.
    """
    amounts = f"{row.amount:>{AMOUNT_WIDTH}}"
    if has_times:
        amounts += f"{row.seconds:>{SECONDS_WIDTH}}"
    remarks = "".join(f"  {remark}" for remark in row.remarks)
    width = max(24, WIDTH - len(left) - len(amounts) - REMARK_WIDTH)
    wrapped = textwrap.wrap(
        middle, width, break_long_words=False, break_on_hyphens=False
    )
    start, *continued = wrapped or [""]
    yield f"{left}{start:<{width}}{amounts}{remarks}"
    margin = "".join("|" if character == "|" else " " for character in left)
    for line in continued:
        yield margin + line
