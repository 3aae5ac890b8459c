"""The charts of each panel of `benchmarks.growth`.

Example:

    Path("growth_layers.svg").write_text(picture("layers", rows))
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.growth.cases import PLAIN, SIZE_LABELS
from benchmarks.growth.chart import Panel, figure
from benchmarks.growth.measure import Row
from benchmarks.growth.theory import LAWS, NAMES, lines

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
    """Returns the charts of a panel as an SVG document: one for each column."""
    panels = []
    for column in LAWS[panel_name]:
        series_lines = lines(panel_name, column, rows)
        goals = []
        if panel_name == "devices" and column == "first":
            plain_points, _ = series_lines[PLAIN]
            plain = dict(plain_points)
            goals = [
                (n, factor * plain[n]) for n, factor in GOALS.items() if n in plain
            ]
        panels.append(
            Panel(
                title=NAMES[column],
                points={s: points for s, (points, _) in series_lines.items()},
                curves={s: curve.at for s, (_, curve) in series_lines.items()},
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
