"""A forecast as text: tables for a terminal, and JSON with totals.

    print(table(forecast, module_depth=3))
    as_json(forecast)

`contents` has what the tables say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from meshtf.display import section_lines
from meshtf.forecast.report_data import ForecastData, PlacedTensor
from meshtf.forecast.reports.contents import contents, error_title, head
from meshtf.forecast.reports.modules import DEFAULT_DEPTH
from meshtf.forecast.reports.op_table import op_lines
from meshtf.forecast.reports.shapes import shape_text
from meshtf.forecast.reports.totals import totals
from meshtf.forecast.reports.user_lines import short_paths


def table(forecast: ForecastData, module_depth: int = DEFAULT_DEPTH) -> str:
    """Returns a forecast as text for a terminal.

    Args:
      forecast: the forecast.
      module_depth: how many names of a module path make a row of the table of modules;
        0: no such table.
    """
    paths = short_paths(forecast)
    axes = [axis for axis, _ in forecast.axes]

    def show(tensor: PlacedTensor) -> str:
        return shape_text(tensor, axes)

    depths = [module_depth] if module_depth > 0 else []
    sections = contents(forecast, totals(forecast), paths, depths)
    blocks: list[Iterable[str]] = [section_lines(head(forecast), show)]
    blocks += [section_lines(section, show) for section in sections]
    blocks.append(op_lines(forecast, paths, show))
    if forecast.error is not None:
        error = [error_title(forecast, paths), *forecast.error.split("\n")]
        blocks.append(f"!! {line}" for line in error)
    texts = ["\n".join(line.rstrip() for line in lines) for lines in blocks]
    return "\n\n".join(text for text in texts if text)


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
