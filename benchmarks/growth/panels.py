"""The charts of each panel of `benchmarks.growth`: a panel ("layers", say) is the cost as one
quantity grows, and has a chart for each measured column, such as the step time.

Example:

    Path("growth_layers.svg").write_text(picture("layers", rows))
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.growth.cases import PLAIN, SIZE_LABELS
from benchmarks.growth.chart import Chart, figure
from benchmarks.growth.measure import Row
from benchmarks.growth.theory import COLUMN_TITLES, LAWS, fit_series

TITLES = {
    "devices": "More positions, and a larger batch: one model on one CPU",
    "planning": "Planning for more positions",
    "layers": "Deeper models, on eight positions of one CPU",
    "experts": "More experts, of which each token goes to two",
    "tokens": "Longer examples, two in a batch",
}
_DOTS = "Dots: measured. Lines: theory with fitted constants"
# Lines of text below the titles: what theory says of the growth, as in `theory.LAWS`.
NOTES = {
    "devices": f"{_DOTS} c and k: c + k n for n positions; one CPU does all of the work.",
    "planning": f"{_DOTS}, the same for any number of positions.",
    "layers": f"{_DOTS} c and k: c + k n for n layers; op count of scanned layers: c.",
    "experts": f"{_DOTS} c and k: c + k n for n experts, since each has parameters to "
    "make and update; op count: c.",
    "tokens": f"{_DOTS} c, k and q: c + k n + q n^2 for n tokens; memory of blockwise "
    "attention: c + k n.",
}
# Goals for the time to the first step, over that of plain TensorFlow, by the number of
# positions.
GOALS = {8: 1.3, 64: 3.0}


def picture(panel_name: str, rows: Sequence[Row]) -> str:
    """Returns the charts of a panel as an SVG document: one for each column of its table
    that theory has a law for.

    Args:
      panel_name: the name of the panel, a key of `TITLES`.
      rows: the rows of its table.
    """
    charts = []
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
        charts.append(
            Chart(
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
        charts=charts,
        goal=goal,
    )
