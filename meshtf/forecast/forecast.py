"""A forecast: what is known of a program before it runs, to print and to save.

Example:

    forecast = mtf.explain(train_step, tokens, targets, step)
    print(forecast)                         # a table
    forecast.save_html("plan.html")
    forecast.memory.peak, forecast.bytes_moved(kind="all_reduce", axis="data")
"""

from __future__ import annotations

import os
from pathlib import Path

from meshtf.forecast.html_report import page
from meshtf.forecast.report_data import Facts
from meshtf.forecast.text_report import as_json, table
from meshtf.names.arguments import as_path


class Forecast(Facts):
    """What a program will do on a mesh, and what it will cost; see `Facts` for what it
    holds.
    """

    def __str__(self) -> str:
        return table(self)

    def save_json(self, path: str | Path) -> None:
        """Writes all of it, and its totals, as JSON."""
        _write(path, as_json(self))

    def save_html(self, path: str | Path) -> None:
        """Writes it as one HTML page that needs nothing else."""
        _write(path, page(self))


def _write(path: str | Path, text: str) -> None:
    """Writes a file under another name, and then renames it: it is there as a whole or
    not at all.
    """
    path = as_path("path", path)
    unfinished = Path(f"{path}.tmp-{os.getpid()}")
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)
