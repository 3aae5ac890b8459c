"""Generated clicks with a planted signal, in the form of Criteo's click logs: 13 counts, 26 ids,
and whether a click followed.

    log = ClickLog(sizes=(1000, 10, ...), seed=0)
    counts, ids, clicks = log.batch(index=0, size=256)    # the same for the same index

The log-odds of a click are a sum of an effect of each count, one of each id, and the inner
product of hidden vectors of the first two ids. So a model must learn ids, and one pair of them.
As in real logs, few ids are frequent and most are rare.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NUM_COUNTS = 13
# As in Criteo's logs, some columns have a few different ids, and some very many; here fewer.
TABLE_SIZES = (20000, 10000, 5000, 2000, 1000) + 6 * (500,) + 7 * (100,) + 8 * (10,)
_HIDDEN = 4  # the size of the hidden vectors
_MEAN_LOG_ODDS = -1.2


class Clicks(NamedTuple):
    """A batch.

    Attributes:
      counts: the logarithm of 1 + each count, float32 [batch, 13].
      ids: the ids of each column, by its name: int32 [batch].
      clicks: 1 where a click followed, else 0: int32 [batch].
      log_odds: the planted log-odds of a click, [batch]: no model can know better.
    """

    counts: np.ndarray
    ids: dict[str, np.ndarray]
    clicks: np.ndarray
    log_odds: np.ndarray


def column(i: int) -> str:
    """Returns the name of a column of ids."""
    return f"c{i}"


class ClickLog:
    """Generates batches.

    Args:
      sizes: the number of different ids of each column.
      seed: the seed of the planted effects and of all batches.
    """

    def __init__(self, sizes: tuple[int, ...] = TABLE_SIZES, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.sizes = sizes
        self.seed = seed
        self.count_effects = rng.normal(0.0, 0.15, NUM_COUNTS)
        # So that the variance of their sum is 2, whatever the number of columns.
        stddev = np.sqrt(2 / len(sizes))
        self.id_effects = [rng.normal(0.0, stddev, size) for size in sizes]
        self.hidden = [rng.normal(0.0, 0.7, (size, _HIDDEN)) for size in sizes[:2]]

    def batch(self, index: int, size: int) -> Clicks:
        """Returns a batch; those of different indices are different."""
        rng = np.random.default_rng((self.seed, 1, index))
        counts = rng.normal(0.0, 1.0, (size, NUM_COUNTS))
        ids = [
            # The share of the ids below n is the cube root of n / all.
            (num_ids * rng.random(size) ** 3).astype("int32")
            for num_ids in self.sizes
        ]
        log_odds = _MEAN_LOG_ODDS + counts @ self.count_effects
        for column_ids, effects in zip(ids, self.id_effects, strict=True):
            log_odds += effects[column_ids]
        first, second = (x[y] for x, y in zip(self.hidden, ids, strict=False))
        log_odds += np.sum(first * second, axis=1)
        clicks = rng.random(size) < 1 / (1 + np.exp(-log_odds))
        return Clicks(
            counts=np.log1p(np.floor(np.exp(counts + 1.0))).astype("float32"),
            ids={column(i): x for i, x in enumerate(ids)},
            clicks=clicks.astype("int32"),
            log_odds=log_odds,
        )
