"""What a bag of words makes of texts: naive Bayes over word pieces, the baseline of a
classifier.

Example:

    bag = BagOfWords(rows, classes=2, vocab=2048)       # rows: tokens, token_types, labels
    bag(tokens, token_types)                            # a class
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np


class BagOfWords:
    """Counts how often each piece was in texts of each class, first and second texts
    apart.

    Args:
      rows: what is learned from: padded `tokens` and `token_types`, and `labels`.
      classes: how many there are.
      vocab: how many pieces there are.
    """

    def __init__(
        self, rows: Iterable[Mapping[str, np.ndarray]], classes: int, vocab: int
    ) -> None:
        self._vocab = vocab
        counts = np.ones([classes, 2 * vocab])
        self.frequent = np.zeros(classes, int)  # how many rows each class has
        for row in rows:
            np.add.at(counts[int(row["labels"])], self._words(row), 1)
            self.frequent[int(row["labels"])] += 1
        prior = np.log(self.frequent + 1.0)
        self._scores = np.log(counts / counts.sum(1, keepdims=True))
        self._prior = prior

    def __call__(self, row: Mapping[str, np.ndarray]) -> int:
        """Returns the likeliest class of a row."""
        return int(np.argmax(self._prior + self._scores[:, self._words(row)].sum(1)))

    def _words(self, row: Mapping[str, np.ndarray]) -> np.ndarray:
        real = row["tokens"] != 0
        return (row["tokens"] + self._vocab * row["token_types"])[real]
