"""Charts with logarithmic axes side by side, as one SVG document.

    chart = Chart("step, ms", {"meshtf": [(1, 2.0), (8, 16.0)]}, {"meshtf": lambda n: 2.0 * n})
    Path("steps.svg").write_text(figure("Steps", "Dots are measured.", "positions", [chart]))

Dots are measurements; lines are functions. A series has the same colour in all charts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from meshtf.display.svg import MARGIN, document, text

# Lengths in SVG units, which are pixels at the normal size.
WIDTH = 1000  # the width of the picture
HEIGHT = 250  # the height of a plot
TOP = 118  # the y coordinate of the upper border of plots
LEFT = 50  # the left margin of a plot
RIGHT = 18  # the right margin of a plot
COLOURS = ("p4", "p0", "p1", "p2", "p3")  # CSS classes, in the order of the series
# CSS rules: LIGHT for all colour schemes, DARK in addition for dark ones.
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


class Chart(NamedTuple):
    """The data of a plot.

    Attributes:
      title: the title of the plot.
      points: for each series, the measured points (n, value).
      curves: for each series, the curve as a function of n.
      goals: points (n, value) that measured points should lie below.
    """

    title: str
    points: Mapping[str, Sequence[tuple[float, float]]]
    curves: Mapping[str, Callable[[float], float]]
    goals: Sequence[tuple[float, float]] = ()


class _Plot:
    """A plot in the picture: both axes are logarithmic.

    Args:
      chart: the data of the plot.
      left: the x coordinate of the chart, with its margin.
      width: the width of the chart, with both margins.

    Attributes:
      chart: the data of the plot.
      left: the x coordinate of the plot, without the margin.
      width: the width of the plot, without the margins.
      ticks: the values n that are marked on the horizontal axis.
      low: the value at the lower border.
      high: the value at the upper border.
    """

    def __init__(
        self,
        chart: Chart,
        left: float,
        width: float,
    ) -> None:
        self.chart = chart
        self.left = left + LEFT
        self.width = width - LEFT - RIGHT
        values = [value for _, value in chart.goals]
        ticks: set[float] = set()
        for series, points in chart.points.items():
            for n, value in points:
                ticks.add(n)
                values += [value, chart.curves[series](n)]
        self.ticks = sorted(ticks)
        # The vertical axis covers at least a factor of four, and a margin of 20 %.
        middle = math.sqrt(min(values) * max(values))
        self.low = min(*values, middle / 2) / 1.2
        self.high = max(*values, middle * 2) * 1.2

    def x(self, n: float) -> float:
        """Returns the x coordinate of n; ticks lie between 3 % and 97 % of the width."""
        log_range = math.log(self.ticks[-1] / self.ticks[0]) or 1.0
        fraction = math.log(n / self.ticks[0]) / log_range
        return round(self.left + self.width * (0.03 + 0.94 * fraction), 1)

    def y(self, value: float) -> float:
        """Returns the y coordinate of a value."""
        fraction = math.log(self.high / value) / math.log(self.high / self.low)
        return round(TOP + HEIGHT * fraction, 1)

    def levels(self) -> list[float]:
        """Returns the values of horizontal grid lines: 1, 2 and 5 times powers of ten, or
        only powers of ten if these are too many.
        """
        decades = range(
            math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1
        )
        for factors in ((1, 2, 5), (1,)):
            candidates = (
                factor * 10.0**decade for decade in decades for factor in factors
            )
            levels = [level for level in candidates if self.low < level < self.high]
            if len(levels) < 9:
                break
        return levels

    def elements(self, label: str, colours: Mapping[str, str]) -> Iterator[str]:
        """Yields the SVG elements of axes, curves and points.

        Args:
          label: the label of the horizontal axis.
          colours: the CSS class of each series.
        """
        yield text(self.left, TOP - 14, "name", self.chart.title)
        for level in self.levels():
            yield f'  <path class="rule" d="M{self.left:g} {self.y(level):g}h{self.width:g}"/>'
            tick_label = f"{level:,.10g}"
            yield text(
                self.left - 8, self.y(level) + 4, "code", tick_label, anchor="end"
            )
        below = TOP + HEIGHT
        for n in self.ticks:
            yield text(self.x(n), below + 20, "code", f"{n:g}", anchor="middle")
        middle = self.left + self.width / 2
        yield text(middle, below + 42, "note", label, anchor="middle")
        for series, curve in self.chart.curves.items():
            samples = _log_spaced(self.chart.points[series])
            path = "L".join(f"{self.x(n):g} {self.y(curve(n)):g}" for n in samples)
            yield f'  <path class="line {colours[series]}" d="M{path}"/>'
        for series, points in self.chart.points.items():
            for n, value in points:
                yield (
                    f'  <circle class="dot {colours[series]}" cx="{self.x(n):g}" '
                    f'cy="{self.y(value):g}" r="3.6"/>'
                )
        for n, value in self.chart.goals:
            yield f'  <path class="goal" d="M{self.x(n) - 9:g} {self.y(value):g}h18"/>'


def _log_spaced(points: Sequence[tuple[float, float]]) -> list[float]:
    """Returns 25 values of n from the smallest to the largest of points (n, value), equally
    spaced in logarithms.
    """
    smallest, _ = min(points)
    largest, _ = max(points)
    return [smallest * (largest / smallest) ** (i / 24) for i in range(25)]


def figure(
    title: str,
    note: str,
    label: str,
    charts: Sequence[Chart],
    goal: str = "",
) -> str:
    """Returns charts side by side as an SVG document.

    Args:
      title: the title of the picture.
      note: a line of text below the title.
      label: the label of the horizontal axes.
      charts: the charts, at least one; they share a legend.
      goal: the description of the charts' goals in the legend; "": no goals.
    """
    series = list(dict.fromkeys(name for chart in charts for name in chart.points))
    colours = dict(zip(series, COLOURS, strict=False))
    width = (WIDTH - 2 * MARGIN) / len(charts)
    body = [text(MARGIN, 62, "note", note)]
    for i, chart in enumerate(charts):
        body += _Plot(chart, MARGIN + i * width, width).elements(label, colours)
    x = float(MARGIN + LEFT)
    y = TOP + HEIGHT + 74
    legend = [*series, goal] if goal else series
    for name in legend:
        entry_width = 24 + 7.4 * len(name)
        if x + entry_width > WIDTH - MARGIN:  # a new line
            x = float(MARGIN + LEFT)
            y = y + 22
        if name in colours:
            colour = colours[name]
            mark = f'  <circle class="dot {colour}" cx="{x:g}" cy="{y - 4}" r="4"/>'
        else:
            mark = f'  <path class="goal" d="M{x - 8:g} {y - 4}h16"/>'
        body += [mark, text(round(x + 14, 1), y, "note", name)]
        x += entry_width + 14
    return document(title, WIDTH, y + 22, body, light=LIGHT, dark=DARK)
