"""Fits constants to measured steps: least squares of the error of the logarithm.

    best = fit(residuals, PARAMETERS)

A parameter has an expected value, from a data sheet or an estimate, and a spread: how far from
it, in log space, a value is as far-fetched as an error of `ERROR` is for one run. What the runs
do not tell so stays where it was. Errors far above `ERROR` count by their size and not by its
square: a few runs that nothing explains do not decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

ERROR = 0.03  # of the logarithm: 3 %
_DELTA = 0.02  # of a logarithm, for derivatives
_MAX_CHANGE = 0.5  # of a logarithm, in an iteration
_TRIES = 8  # of a damping, in an iteration
_LEAST_GAIN = 0.05  # of the cost: less ends the fit

# The values of parameters, and whether a run's critical path is to be that of the last call
# -> the log of predicted / measured seconds of each run.
Residuals = Callable[[Mapping[str, float], bool], np.ndarray]
Progress = Callable[[int, float], None]


class Parameter(NamedTuple):
    """A positive constant to be fitted.

    Attributes:
      name: the name.
      expected: the value that it has without measurements.
      spread: the standard deviation of its logarithm.
    """

    name: str
    expected: float
    spread: float


def fit(
    residuals: Residuals,
    parameters: Sequence[Parameter],
    iterations: int = 12,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Returns the fitted values, by damped Gauss-Newton steps.

    Args:
      residuals: the errors of runs.
      parameters: what to fit.
      iterations: the maximum count of steps.
      progress: called with the index of an iteration, and the cost after it.
    """
    expected = np.log([parameter.expected for parameter in parameters])
    spreads = np.array([parameter.spread for parameter in parameters])

    def values_of(x: np.ndarray) -> dict[str, float]:
        """Returns the values of parameters by name."""
        return {p.name: float(np.exp(v)) for p, v in zip(parameters, x)}

    def errors(x: np.ndarray, same_paths: bool = False) -> np.ndarray:
        """Returns the errors of runs, followed by the deviations of parameters."""
        deviations = (x - expected) / spreads
        return np.append(residuals(values_of(x), same_paths) / ERROR, deviations)

    x = expected
    current = errors(x)
    damping = 1e-2
    for i in range(iterations):
        slopes = np.stack(
            [
                (errors(x + _DELTA * unit, same_paths=True) - current) / _DELTA
                for unit in np.eye(len(x))
            ],
            axis=1,
        )
        before = cost(current)
        for _ in range(_TRIES):
            moved = x + _change(slopes, current, damping)
            moved_errors = errors(moved)
            if cost(moved_errors) < before:
                break
            damping = max(5 * damping, 1e-3)
        else:
            return values_of(x)
        x = moved
        current = moved_errors
        damping = max(damping / 4, 1e-6)
        if progress is not None:
            progress(i, cost(current))
        if before - cost(current) < _LEAST_GAIN:
            break
    return values_of(x)


def cost(errors: np.ndarray) -> float:
    """Returns half the sum of squares of small errors; large ones count by their size."""
    return float(np.sum(2 * (np.sqrt(1 + errors**2 / 2) - 1)))


def _change(slopes: np.ndarray, errors: np.ndarray, damping: float) -> np.ndarray:
    """Returns a damped Gauss-Newton step.

    Args:
      slopes: the derivatives of errors, [errors, parameters].
      errors: the errors.
      damping: the fraction by which the diagonal of the squared slopes is raised.
    """
    weights = 1 / np.sqrt(1 + errors**2 / 2)
    squares = slopes.T @ (slopes * weights[:, None])
    squares += damping * np.diag(np.diag(squares))
    step = -np.linalg.solve(squares, slopes.T @ (errors * weights))
    return np.clip(step, -_MAX_CHANGE, _MAX_CHANGE)
