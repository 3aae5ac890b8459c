"""Naive Bayes on bags of word pieces, the baseline of the classifier.

Example:

    bag = BagOfWords(examples, classes=2, vocab=2048)   # tokens, token_types, labels
    bag(example)                                        # the index of a class
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np


class BagOfWords:
    """Counts how often each word piece occurs in texts of each class; first and second
    texts of pairs are counted separately.

    Args:
      examples: training examples: padded `tokens` and `token_types`, and `labels`.
      classes: the number of classes.
      vocab: the size of the vocabulary.
    """

    def __init__(
        self,
        examples: Iterable[Mapping[str, np.ndarray]],
        classes: int,
        vocab: int,
    ) -> None:
        self._vocab = vocab
        counts = np.ones([classes, 2 * vocab])
        self.frequent = np.zeros(classes, int)  # examples of each class
        for example in examples:
            np.add.at(counts[int(example["labels"])], self._words(example), 1)
            self.frequent[int(example["labels"])] += 1
        prior = np.log(self.frequent + 1.0)
        self._scores = np.log(counts / counts.sum(1, keepdims=True))
        self._prior = prior

    def __call__(self, example: Mapping[str, np.ndarray]) -> int:
        """Returns the index of the likeliest class of an example."""
        return int(
            np.argmax(self._prior + self._scores[:, self._words(example)].sum(1))
        )

    def _words(self, example: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the ids of the features of an example: word pieces by text."""
        tokens = example["tokens"]
        return (tokens + self._vocab * example["token_types"])[tokens != 0]
