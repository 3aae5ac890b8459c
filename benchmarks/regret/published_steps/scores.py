"""How good predictions of steps are, as a choice among rival layouts.

*Regret* is the measured time of the layout that is chosen over that of the best one of its
group; rules of thumb choose as well. Only groups of `MIN_RIVALS` or more runs count for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.regret.published_steps.published import Run, groups

MIN_RIVALS = 4
SHORTLIST = 5
_DRAWS = 2000  # of random orders
_NEAR_MICROBATCH = 4


class Scores(NamedTuple):
    """The scores of an order of runs, over groups.

    Attributes:
      error: the mean absolute error of the predicted time; None: no time is predicted.
      rank_correlation: Spearman's, the mean over groups.
      regret, max_regret: the mean and the largest regret of the choice that is tried before
        all others.
      shortlist_regret: the mean regret of the best one of a shortlist of 5.
      num_groups: the count of groups that these are means over.
    """

    error: float | None
    rank_correlation: float
    regret: float
    max_regret: float
    shortlist_regret: float
    num_groups: int


def rivals(runs: Sequence[Run]) -> list[np.ndarray]:
    """Returns the indices of the runs of each group that is large enough."""
    return [
        np.array(indices)
        for indices in groups(runs).values()
        if len(indices) >= MIN_RIVALS
    ]


def scores_of_times(runs: Sequence[Run], predicted: np.ndarray) -> Scores:
    """Returns the scores of predicted seconds of runs."""
    measured = np.array([run.seconds for run in runs])
    error = float(np.mean(np.abs(predicted / measured - 1)))
    return _scores(runs, predicted)._replace(error=error)


def scores_of_rule(
    runs: Sequence[Run], rule: Callable[[Run], tuple[float, ...]]
) -> Scores:
    """Returns the scores of a rule of thumb: runs of smaller keys are tried earlier."""
    keys = [rule(run) for run in runs]
    ordered = sorted(set(keys))
    return _scores(runs, np.array([float(ordered.index(key)) for key in keys]))


def _scores(runs: Sequence[Run], order: np.ndarray) -> Scores:
    """Returns the scores of an order: the smallest entries are tried earliest."""
    measured = np.array([run.seconds for run in runs])
    regrets = []
    shortlists = []
    correlations = []
    for indices in rivals(runs):
        ranked = indices[np.argsort(order[indices], kind="stable")]
        best = measured[indices].min()
        # Runs that the order does not tell from each other: their mean.
        chosen = indices[order[indices] == order[indices].min()]
        regrets.append(measured[chosen].mean() / best)
        shortlists.append(measured[ranked[:SHORTLIST]].min() / best)
        correlations.append(rank_correlation(order[indices], measured[indices]))
    return _means(regrets, shortlists, correlations)


def scores_of_chance(runs: Sequence[Run]) -> Scores:
    """Returns the scores of random orders, as means of many; the largest regret is that of
    the worst run.
    """
    random = np.random.default_rng(0)
    measured = np.array([run.seconds for run in runs])
    regrets = []
    shortlists = []
    worst = 1.0
    for indices in rivals(runs):
        times = measured[indices] / measured[indices].min()
        orders = random.permuted(np.tile(times, (_DRAWS, 1)), axis=1)
        regrets.append(times.mean())
        shortlists.append(orders[:, :SHORTLIST].min(axis=1).mean())
        worst = max(worst, times.max())
    return _means(regrets, shortlists, [0.0])._replace(max_regret=worst)


def _means(
    regrets: Sequence[float], shortlists: Sequence[float], correlations: Sequence[float]
) -> Scores:
    """Returns the scores of groups, without an error."""
    if not regrets:
        return Scores(None, np.nan, np.nan, np.nan, np.nan, 0)
    return Scores(
        error=None,
        rank_correlation=float(np.mean(correlations)),
        regret=float(np.mean(regrets)),
        max_regret=float(np.max(regrets)),
        shortlist_regret=float(np.mean(shortlists)),
        num_groups=len(regrets),
    )


def rank_correlation(left: np.ndarray, right: np.ndarray) -> float:
    """Returns Spearman's correlation of the ranks of two lists; equal entries share a rank."""
    ranks = []
    for values in (left, right):
        _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
        last = np.cumsum(counts)
        ranks.append((last - (counts - 1) / 2)[places.reshape(-1)])
    if any(np.ptp(values) == 0 for values in ranks):
        return 0.0
    return float(np.corrcoef(*ranks)[0, 1])


def least_model_parallel(run: Run) -> tuple[float, ...]:
    """Orders by least tensor times pipeline degree, then by the largest microbatch."""
    return run.tensor * run.pipeline, -run.micro_batch


def least_pipeline(run: Run) -> tuple[float, ...]:
    """Orders by least pipeline degree, then least tensor degree, then by the microbatch
    nearest to 4.
    """
    distance = abs(np.log2(run.micro_batch / _NEAR_MICROBATCH))
    return run.pipeline, run.tensor, float(distance)
