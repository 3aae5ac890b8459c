"""The growth of costs that theory predicts, fitted to measurements.

>>> curve = fitted([(1, 3.0), (2, 5.0), (4, 9.0)], (0, 1))
>>> print(curve, f"{curve.at(8):.1f}")
1 + 2 n 17.0
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.growth.measure import COLUMNS, Row

Points = Sequence[tuple[float, float]]
Powers = tuple[int, ...]
CONSTANT = (0,)
LINEAR = (0, 1)
SQUARE = (0, 1, 2)

# For each panel the columns that are printed and drawn, with the powers of n of which each
# is a sum. Times are processor times, which depend least on other programs of the machine,
# except those for which there is a goal.
LAWS: Mapping[str, Mapping[str, Powers]] = {
    "devices": {"first": LINEAR, "step_cpu": LINEAR, "outer": LINEAR},
    "planning": {"explain_cpu": CONSTANT, "steps": CONSTANT},
    "layers": {"first_cpu": LINEAR, "step_cpu": LINEAR, "traced": LINEAR},
    "experts": {"first_cpu": LINEAR, "step_cpu": LINEAR, "traced": CONSTANT},
    "tokens": {"first_cpu": SQUARE, "step_cpu": SQUARE, "memory": SQUARE},
}
OTHERS: Mapping[tuple[str, str], Powers] = {  # by series and column
    ("scanned", "traced"): CONSTANT,
    ("blockwise attention", "memory"): LINEAR,
}
NAMES = {
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
    """A sum of powers of n."""

    powers: Powers
    factors: tuple[float, ...]

    def at(self, n: float) -> float:
        """Returns the value at n."""
        return sum(
            factor * n**power for power, factor in zip(self.powers, self.factors)
        )

    def off(self, points: Points) -> float:
        """Returns the largest factor between a point and the curve."""
        return max(max(y / self.at(n), self.at(n) / y) for n, y in points)

    def __str__(self) -> str:
        words = ("", " n", " n^2")
        return (
            " + ".join(
                f"{factor:.3g}{words[power]}"
                for power, factor in zip(self.powers, self.factors)
                if factor
            )
            or "0"
        )


def fitted(points: Points, powers: Powers) -> Curve:
    """Returns the curve without negative factors that has the least sum of squared relative
    errors.
    """
    n, y = np.asarray(points, float).T
    columns = np.stack([n**power / y for power in powers], 1)
    best = np.zeros(len(powers))
    least = np.inf
    for count in range(1, len(powers) + 1):
        for subset in map(list, itertools.combinations(range(len(powers)), count)):
            factors = np.linalg.lstsq(columns[:, subset], np.ones(len(y)), rcond=None)[
                0
            ]
            error = float(np.sum((columns[:, subset] @ factors - 1) ** 2))
            if min(factors) >= 0 and error < least:
                best = np.zeros(len(powers))
                least = error
                best[subset] = factors
    return Curve(powers, tuple(map(float, best)))


def lines(
    panel: str, column: str, rows: Sequence[Row]
) -> dict[str, tuple[Points, Curve]]:
    """Returns the points and the fitted curve of each series that has a column, in the column's
    unit.
    """
    scale = COLUMNS[column][1] or 1.0
    factors = dict[str, tuple[Points, Curve]]()
    for series in dict.fromkeys(row["series"] for row in rows if column in row):
        points = [
            (row["size"], row[column] * scale)
            for row in rows
            if row["series"] == series and column in row
        ]
        powers = OTHERS.get((series, column), LAWS[panel][column])
        factors[series] = points, fitted(points, powers)
    return factors


def describe(panel: str, rows: Sequence[Row]) -> str:
    """Returns the fitted curves as text, with the largest deviations from them."""
    return "\n".join(
        f"{NAMES[column]:>26}  {series}: {curve}, points off it by at most "
        f"{curve.off(points) - 1:.0%}"
        for column in LAWS[panel]
        for series, (points, curve) in lines(panel, column, rows).items()
    )
