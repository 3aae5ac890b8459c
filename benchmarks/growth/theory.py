"""The growth of costs that theory predicts, fitted to measurements.

>>> curve = fit_curve([(1, 3.0), (2, 5.0), (4, 9.0)], (0, 1))
>>> print(curve, f"{curve.at(8):.1f}")
1 + 2 n 17.0
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.growth.measure import COLUMNS, Row

Points = Sequence[tuple[float, float]]  # (n, value)
Powers = tuple[int, ...]  # the exponents of n in a sum
CONSTANT = (0,)
LINEAR = (0, 1)
SQUARE = (0, 1, 2)

# For each panel, the columns that are fitted and drawn, with the powers of n whose sum each
# column is in theory. Times are processor times, which depend least on other programs of
# the machine; only the time with a goal is wall time.
LAWS: Mapping[str, Mapping[str, Powers]] = {
    "devices": {"first": LINEAR, "step_cpu": LINEAR, "outer": LINEAR},
    "planning": {"explain_cpu": CONSTANT, "steps": CONSTANT},
    "layers": {"first_cpu": LINEAR, "step_cpu": LINEAR, "traced": LINEAR},
    "experts": {"first_cpu": LINEAR, "step_cpu": LINEAR, "traced": CONSTANT},
    "tokens": {"first_cpu": SQUARE, "step_cpu": SQUARE, "memory": SQUARE},
}
# The exceptions, by series and column.
LAWS_OF_SERIES: Mapping[tuple[str, str], Powers] = {
    ("scanned", "traced"): CONSTANT,
    ("blockwise attention", "memory"): LINEAR,
}
# Titles of the columns in charts and in text.
COLUMN_TITLES = {
    "first": "first step, s",
    "first_cpu": "first step, s of processor",
    "step_cpu": "step, ms of processor",
    "outer": "ops outside of segments",
    "explain_cpu": "mtf.explain, ms",
    "steps": "steps of the program",
    "traced": "ops traced",
    "memory": "memory forecast, MB",
}


class Curve(NamedTuple):
    """A sum of powers of n: factors[0] * n**powers[0] + factors[1] * n**powers[1] + ...

    Attributes:
      powers: the exponents of n.
      factors: the factor of each power; 0 if the fit does not need the power.
    """

    powers: Powers
    factors: tuple[float, ...]

    def at(self, n: float) -> float:
        """Returns the value at n."""
        return sum(
            factor * n**power for power, factor in zip(self.powers, self.factors)
        )

    def max_ratio(self, points: Points) -> float:
        """Returns the largest ratio of a point to the curve, or of the curve to a point."""
        return max(max(value / self.at(n), self.at(n) / value) for n, value in points)

    def __str__(self) -> str:
        powers_as_text = ("", " n", " n^2")  # of n**0, n**1 and n**2
        terms = [
            f"{factor:.3g}{powers_as_text[power]}"
            for power, factor in zip(self.powers, self.factors)
            if factor
        ]
        return " + ".join(terms) or "0"


def fit_curve(points: Points, powers: Powers) -> Curve:
    """Returns the curve without negative factors that has the least sum of squared relative
    errors.

    This is nonnegative least squares. For each subset of the powers, ordinary least squares
    gives a curve; the best of those without negative factors is the solution.

    Args:
      points: the points (n, value) to fit; all values are positive.
      powers: the powers of n in the curve.
    """
    n, y = np.asarray(points, float).T
    # Divided by y, so that errors are relative: the target is 1 for each point.
    columns = np.stack([n**power / y for power in powers], 1)
    best_factors = np.zeros(len(powers))
    least_error = np.inf
    for count in range(1, len(powers) + 1):
        for subset in map(list, itertools.combinations(range(len(powers)), count)):
            subset_columns = columns[:, subset]
            factors, *_ = np.linalg.lstsq(subset_columns, np.ones(len(y)), rcond=None)
            error = float(np.sum((subset_columns @ factors - 1) ** 2))
            if min(factors) >= 0 and error < least_error:
                least_error = error
                best_factors = np.zeros(len(powers))
                best_factors[subset] = factors
    return Curve(powers, tuple(map(float, best_factors)))


class Fit(NamedTuple):
    """The measured points of a series, and the curve that is fitted to them."""

    points: Points
    curve: Curve


def fit_series(panel: str, column: str, rows: Sequence[Row]) -> dict[str, Fit]:
    """Returns the fit of each series that has a column, in the column's unit.

    Args:
      panel: the name of the panel.
      column: the key of the column.
      rows: the rows of the panel.
    """
    scale = COLUMNS[column].scale or 1.0
    fits: dict[str, Fit] = {}
    for series in dict.fromkeys(row["series"] for row in rows if column in row):
        points = [
            (row["size"], row[column] * scale)
            for row in rows
            if row["series"] == series and column in row
        ]
        powers = LAWS_OF_SERIES.get((series, column), LAWS[panel][column])
        fits[series] = Fit(points, fit_curve(points, powers))
    return fits


def describe(panel: str, rows: Sequence[Row]) -> str:
    """Returns the fitted curves as text, with the largest deviations from them."""
    lines = []
    for column in LAWS[panel]:
        for series, fit in fit_series(panel, column, rows).items():
            lines.append(
                f"{COLUMN_TITLES[column]:>26}  {series}: {fit.curve}, points off it by "
                f"at most {fit.curve.max_ratio(fit.points) - 1:.0%}"
            )
    return "\n".join(lines)
