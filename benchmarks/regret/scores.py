"""How well predicted times of layouts agree with measured ones.

>>> scores = score([1.0, 2.0, 3.0], [1.1, 2.0, 2.7])
>>> f"{scores.median_error:.2f} {scores.rank_correlation:.2f} {scores.regret:.2f}"
'0.09 1.00 1.00'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Scores(NamedTuple):
    """How well predictions agree with measurements.

    Attributes:
      median_error: the median of |predicted / measured - 1|.
      worst_error: the largest of these.
      rank_correlation: Spearman's.
      regret: the measured time of the layout that is predicted to be the fastest, divided by
        that of the fastest layout.
      regret_of_five: the same, of the fastest of the five that are predicted to be the
        fastest.
    """

    median_error: float
    worst_error: float
    rank_correlation: float
    regret: float
    regret_of_five: float

    @property
    def text(self) -> str:
        """All scores in one line."""
        return (
            f"median error {self.median_error:.1%}, worst {self.worst_error:.1%}, "
            f"Spearman {self.rank_correlation:.2f}, regret of the first choice "
            f"{self.regret:.3f}, of the best of five {self.regret_of_five:.3f}"
        )


def score(predicted: Sequence[float], measured: Sequence[float]) -> Scores:
    """Returns the scores of predicted times of layouts."""
    forecasts = np.asarray(predicted)
    seconds = np.asarray(measured)
    errors = np.abs(forecasts / seconds - 1)
    order = np.argsort(forecasts)
    best = seconds.min()
    return Scores(
        median_error=float(np.median(errors)),
        worst_error=float(errors.max()),
        rank_correlation=_rank_correlation(forecasts, seconds),
        regret=float(seconds[order[0]] / best),
        regret_of_five=float(seconds[order[:5]].min() / best),
    )


def _rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Returns Spearman's rank correlation; ties have the order in which they come."""
    ranks_of_x = np.argsort(np.argsort(x)).astype(float)
    ranks_of_y = np.argsort(np.argsort(y)).astype(float)
    if len(ranks_of_x) < 2:
        return 1.0
    return float(np.corrcoef(ranks_of_x, ranks_of_y)[0, 1])
