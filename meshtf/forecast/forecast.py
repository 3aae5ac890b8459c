"""A forecast: what a program will compute, communicate and store; printed and saved.

Example:

    forecast = mtf.explain(train_step, tokens, targets, step)
    print(forecast)                         # a table
    print(forecast.text(module_depth=5))    # with sums for more submodules
    forecast.save_html("plan.html")
    forecast.save_trace("step.json")        # with times: mtf.explain(..., hardware="h100")
    forecast.memory.peak, forecast.bytes_moved(kind="all_reduce", axis="data")
"""

from __future__ import annotations

import os
from pathlib import Path

from meshtf.display import html_text
from meshtf.forecast.report_data import ForecastData
from meshtf.forecast.reports.html_report import page
from meshtf.forecast.reports.modules import DEFAULT_DEPTH, ModuleCosts, module_costs
from meshtf.forecast.reports.text_report import as_json, table
from meshtf.forecast.time.trace import trace_json
from meshtf.names.arguments import as_int, as_path, refuse

MAX_REPR_LINES = 20


class Forecast(ForecastData):
    """What a program computes, communicates and stores on a mesh.

    The fields are those of `ForecastData`.
    """

    def __str__(self) -> str:
        return table(self)

    def __repr__(self) -> str:
        """Returns the head of the table, without ops: `print` shows all of it."""
        lines = str(self).split("\n")
        if len(lines) > MAX_REPR_LINES:
            head = lines[: MAX_REPR_LINES - 1]
            omitted = len(lines) - len(head)
            lines = [*head, f"... and {omitted} more lines: print it"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_text(str(self))

    def text(self, module_depth: int = DEFAULT_DEPTH) -> str:
        """Returns the forecast as a table.

        Args:
          module_depth: how many names of a module path make a row of the table of
            modules: "lm/stack/block_3" has three; 0: no such table.
        """
        return table(self, as_int("module_depth", module_depth, least=0))

    def by_module(self, depth: int = DEFAULT_DEPTH) -> list[ModuleCosts]:
        """Returns FLOPs, bytes received and bytes at the peak of memory by module path,
        for one device and one call; the module with the most FLOPs first.

        Args:
          depth: how many names of a module path are distinguished: with depth 2,
            "lm/stack/block_3" counts for "lm/stack".
        """
        return module_costs(self, as_int("depth", depth, least=1))

    def save_json(self, path: str | Path) -> None:
        """Writes all fields and their totals as JSON."""
        _write(path, as_json(self))

    def save_html(self, path: str | Path) -> None:
        """Writes a self-contained HTML page."""
        _write(path, page(self))

    def save_trace(self, path: str | Path) -> None:
        """Writes the predicted step as a trace, which Perfetto (ui.perfetto.dev) draws.

        Raises:
          ArgumentError: the forecast has no times: `mtf.explain(..., hardware=...)` has.
        """
        if self.time is None:
            refuse(
                "hardware",
                None,
                'a profile, such as "h100"',
                "Only a forecast with times has a trace: mtf.explain(step, x, "
                'hardware="h100").',
            )
        _write(path, trace_json(self.name, self.timeline))


def _write(path: str | Path, text: str) -> None:
    """Writes a file under a temporary name and then renames it, so that no reader sees
    half of it.
    """
    path = as_path("path", path)
    temporary = Path(f"{path}.tmp-{os.getpid()}")
    temporary.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
