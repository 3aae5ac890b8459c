"""A forecast: what a program will compute, communicate and store; printed and saved.

Example:

    forecast = mtf.explain(train_step, tokens, targets, step)
    print(forecast)                         # a table
    print(forecast.text(module_depth=5))    # with sums for more submodules
    forecast.save_html("plan.html")
    forecast.memory.peak, forecast.bytes_moved(kind="all_reduce", axis="data")
"""

from __future__ import annotations

import os
from pathlib import Path

from meshtf.display import html_text
from meshtf.forecast.report_data import Facts
from meshtf.forecast.reports.html_report import page
from meshtf.forecast.reports.modules import DEFAULT_DEPTH, ModuleCosts, module_costs
from meshtf.forecast.reports.text_report import as_json, table
from meshtf.names.arguments import as_int, as_path

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

    def text(self, module_depth: int = DEFAULT_DEPTH) -> str:
        """Returns the forecast as a table.

        Args:
          module_depth: how many names of a module path have a row of their own, as
            "lm/stack/block_3" has three; 0: no sums by module.
        """
        return table(self, as_int("module_depth", module_depth, least=0))

    def by_module(self, depth: int = DEFAULT_DEPTH) -> list[ModuleCosts]:
        """Returns FLOPs, bytes received and bytes at the peak of memory by module path,
        for one device and one call; those with the most FLOPs first.

        Args:
          depth: how many names of a module path count.
        """
        return module_costs(self, as_int("depth", depth, least=1))

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
