"""The charts of each panel of `benchmarks.growth` (devices, planning, layers, experts or
tokens).

Example:

    Path("growth_layers.svg").write_text(picture("layers", rows))
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.growth.cases import PLAIN, SIZE_LABELS
from benchmarks.growth.chart import Panel, figure
from benchmarks.growth.measure import Row
from benchmarks.growth.theory import COLUMN_TITLES, LAWS, fit_series

TITLES = {
    "devices": "More positions, and a larger batch: one model on one CPU",
    "planning": "Planning for more positions",
    "layers": "Deeper models, on eight positions of one CPU",
    "experts": "More experts, of which each token goes to two",
    "tokens": "Longer examples, two in a batch",
}
_DOTS = "Dots: measured. Lines: what theory says, fitted:"
# Lines of text below the titles.
NOTES = {
    "devices": f"{_DOTS} c + k n; all of the work is done by one CPU.",
    "planning": f"{_DOTS} constants.",
    "layers": f"{_DOTS} c + k n; ops of what is scanned: a constant.",
    "experts": f"{_DOTS} c + k n, since all parameters are made and updated; ops: a "
    "constant.",
    "tokens": f"{_DOTS} c + k n + q n^2; memory of blockwise attention: c + k n.",
}
# Goals for the time to the first step, over that of plain TensorFlow, by the number of
# positions.
GOALS = {8: 1.3, 64: 3.0}


def picture(panel_name: str, rows: Sequence[Row]) -> str:
    """Returns the charts of a panel as an SVG document: one for each column of its table
    that theory has a law for.

    Args:
      panel_name: the name of the panel.
      rows: the rows of its table.
    """
    panels = []
    for column in LAWS[panel_name]:
        fits = fit_series(panel_name, column, rows)
        goals = []
        if panel_name == "devices" and column == "first":
            plain_seconds = dict(fits[PLAIN].points)
            goals = [
                (n, factor * plain_seconds[n])
                for n, factor in GOALS.items()
                if n in plain_seconds
            ]
        panels.append(
            Panel(
                title=COLUMN_TITLES[column],
                points={series: fit.points for series, fit in fits.items()},
                curves={series: fit.curve.at for series, fit in fits.items()},
                goals=goals,
            )
        )
    goal = "goal: 1.3 and 3 times plain TensorFlow" if panel_name == "devices" else ""
    return figure(
        title=TITLES[panel_name],
        note=NOTES[panel_name],
        label=SIZE_LABELS[panel_name],
        panels=panels,
        goal=goal,
    )
