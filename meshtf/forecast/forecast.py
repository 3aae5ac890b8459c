"""A forecast: what a program will compute, communicate and store; printed and saved.

Example:

    forecast = mtf.explain(train_step, tokens, targets, step)
    print(forecast)                         # a table
    forecast.save_html("plan.html")
    forecast.memory.peak, forecast.bytes_moved(kind="all_reduce", axis="data")
"""

from __future__ import annotations

import os
from pathlib import Path

from meshtf.display import html_text
from meshtf.forecast.report_data import Facts
from meshtf.forecast.reports.html_report import page
from meshtf.forecast.reports.text_report import as_json, table
from meshtf.names.arguments import as_path

MAX_LINES = 20  # of a repr


class Forecast(Facts):
    """What a program computes, communicates and stores on a mesh; `Facts` has the
    fields.
    """

    def __str__(self) -> str:
        return table(self)

    def __repr__(self) -> str:
        """Returns the head of the table, without ops: `print` shows all of it."""
        lines = str(self).split("\n")
        if len(lines) > MAX_LINES:
            left_out = len(lines) - MAX_LINES + 1
            lines[MAX_LINES - 1 :] = [f"... and {left_out} more lines: print it"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_text(str(self))

    def save_json(self, path: str | Path) -> None:
        """Writes all fields, and totals, as JSON."""
        _write(path, as_json(self))

    def save_html(self, path: str | Path) -> None:
        """Writes a self-contained HTML page."""
        _write(path, page(self))


def _write(path: str | Path, text: str) -> None:
    """Writes a file atomically: under a temporary name, which is then renamed."""
    path = as_path("path", path)
    temporary = Path(f"{path}.tmp-{os.getpid()}")
    temporary.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
