"""Charts with logarithmic axes side by side, as one SVG document.

    panel = Panel("step, ms", {"meshtf": [(1, 2.0), (8, 16.0)]}, {"meshtf": lambda n: 2.0 * n})
    Path("steps.svg").write_text(figure("Steps", "Dots are measured.", "positions", [panel]))

Dots are measurements; lines are functions. A series has the same colour in all charts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from meshtf.forecast.reports.svg import MARGIN, document, text

WIDTH, HEIGHT, TOP = (
    1000,
    250,
    118,
)  # of the picture; of a panel's plot; where plots begin
# Margins of a chart.
LEFT = 50
RIGHT = 18
COLOURS = ("p4", "p0", "p1", "p2", "p3")
LIGHT = """\
    .p4 { fill: #7b8794; stroke: #52606d } .dot { fill-opacity: .8; stroke-width: .8 }
    .line { fill: none; stroke-width: 1.5; stroke-opacity: .85 } .goal { fill: none }
    .line.p0 { stroke: #3d7fc1 } .line.p1 { stroke: #dd8531 } .line.p2 { stroke: #43a06b }
    .line.p3 { stroke: #9a69c7 } .line.p4 { stroke: #7b8794 }
    .goal { stroke: #b3261e; stroke-width: 1.8 }
"""
DARK = """\
      .goal { stroke: #ff8a80 }
"""


class Panel(NamedTuple):
    """One plot."""

    title: str
    points: Mapping[str, Sequence[tuple[float, float]]]
    curves: Mapping[str, Callable[[float], float]]
    goals: Sequence[tuple[float, float]] = ()  # points that others should lie below


class _Plot:
    """A chart in the picture, with the coordinates of its values."""

    def __init__(
        self,
        panel: Panel,
        left: float,
        width: float,
    ) -> None:
        self.panel = panel
        self.left = left + LEFT
        self.width = width - LEFT - RIGHT
        every = [point for points in panel.points.values() for point in points]
        self.ticks = sorted({n for n, _ in every})
        values = [y for _, y in (*every, *panel.goals)]
        values += [
            panel.curves[series](n)
            for series, points in panel.points.items()
            for n, _ in points
        ]
        middle = math.sqrt(min(values) * max(values))
        self.low = min(*values, middle / 2) / 1.2
        self.high = max(*values, middle * 2) * 1.2

    def x(self, n: float) -> float:
        log_range = math.log(self.ticks[-1] / self.ticks[0]) or 1.0
        return round(
            self.left
            + self.width * (0.03 + 0.94 * math.log(n / self.ticks[0]) / log_range),
            1,
        )

    def y(self, value: float) -> float:
        return round(
            TOP + HEIGHT * math.log(self.high / value) / math.log(self.high / self.low),
            1,
        )

    def levels(self) -> list[float]:
        """Returns where lines go across."""
        decades = range(
            math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1
        )
        for steps in ((1, 2, 5), (1,)):
            rounded = (step * 10.0**decade for decade in decades for step in steps)
            levels = [level for level in rounded if self.low < level < self.high]
            if len(levels) < 9:
                break
        return levels

    def drawn(self, label: str, colours: Mapping[str, str]) -> Iterator[str]:
        """Yields axes, curves and points."""
        yield text(self.left, TOP - 14, "name", self.panel.title)
        for level in self.levels():
            yield f'  <path class="rule" d="M{self.left:g} {self.y(level):g}h{self.width:g}"/>'
            yield text(
                self.left - 8, self.y(level) + 4, "code", f"{level:,.10g}", "end"
            )
        for n in self.ticks:
            yield text(self.x(n), TOP + HEIGHT + 20, "code", f"{n:g}", "middle")
        yield text(
            self.left + self.width / 2, TOP + HEIGHT + 42, "note", label, "middle"
        )
        for series, curve in self.panel.curves.items():
            between = _between(self.panel.points[series])
            path = "L".join(f"{self.x(n):g} {self.y(curve(n)):g}" for n in between)
            yield f'  <path class="line {colours[series]}" d="M{path}"/>'
        for series, points in self.panel.points.items():
            for n, value in points:
                yield (
                    f'  <circle class="dot {colours[series]}" cx="{self.x(n):g}" '
                    f'cy="{self.y(value):g}" r="3.6"/>'
                )
        for n, value in self.panel.goals:
            yield f'  <path class="goal" d="M{self.x(n) - 9:g} {self.y(value):g}h18"/>'


def _between(points: Sequence[tuple[float, float]]) -> list[float]:
    """Returns 25 values from the first to the last point, equally spaced in logarithms."""
    start = min(points)[0]
    last = max(points)[0]
    return [start * (last / start) ** (i / 24) for i in range(25)]


def figure(
    title: str,
    note: str,
    label: str,
    panels: Sequence[Panel],
    goal: str = "",
) -> str:
    """Returns panels side by side as an SVG document.

    Args:
      title: of the picture.
      note: a line below it.
      label: of the horizontal axes.
      panels: at least one; they share a legend.
      goal: what the panels' goals are, in words.
    """
    series = list(dict.fromkeys(name for panel in panels for name in panel.points))
    colours = dict(zip(series, COLOURS, strict=False))
    width = (WIDTH - 2 * MARGIN) / len(panels)
    body = [text(MARGIN, 62, "note", note)]
    for i, panel in enumerate(panels):
        body += _Plot(panel, MARGIN + i * width, width).drawn(label, colours)
    x = float(MARGIN + LEFT)
    y = TOP + HEIGHT + 74
    for name in [*series, *([goal] if goal else [])]:
        wide = 24 + 7.4 * len(name)
        if x + wide > WIDTH - MARGIN:
            x = float(MARGIN + LEFT)
            y = y + 22
        mark = (
            f'  <circle class="dot {colours[name]}" cx="{x:g}" cy="{y - 4}" r="4"/>'
            if name in colours
            else f'  <path class="goal" d="M{x - 8:g} {y - 4}h16"/>'
        )
        body += [mark, text(round(x + 14, 1), y, "note", name)]
        x += wide + 14
    return document(title, WIDTH, y + 22, body, LIGHT, DARK)
