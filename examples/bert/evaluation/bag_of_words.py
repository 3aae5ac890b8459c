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
      examples: the training examples: `tokens` [length], padded by 0, `token_types`
        [length], 0 or 1 for the text of a token, and `labels`, the index of a class.
      classes: the number of classes.
      vocab: the size of the vocabulary.

    Attributes:
      class_counts: the number of training examples of each class: [classes].
    """

    def __init__(
        self,
        examples: Iterable[Mapping[str, np.ndarray]],
        classes: int,
        vocab: int,
    ) -> None:
        self._vocab = vocab
        # Counts start at 1 (add-one smoothing).
        word_counts = np.ones([classes, 2 * vocab])
        self.class_counts = np.zeros(classes, int)
        for example in examples:
            label = int(example["labels"])
            np.add.at(word_counts[label], self._word_ids(example), 1)
            self.class_counts[label] += 1
        # log p(class) up to a constant, and log p(word | class).
        self._log_prior = np.log(self.class_counts + 1.0)
        self._log_likelihood = np.log(word_counts / word_counts.sum(1, keepdims=True))

    def __call__(self, example: Mapping[str, np.ndarray]) -> int:
        """Returns the index of the likeliest class of an example."""
        log_likelihood = self._log_likelihood[:, self._word_ids(example)].sum(1)
        return int(np.argmax(self._log_prior + log_likelihood))

    def _word_ids(self, example: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the features of an example: the ids of the word pieces of its first
        text, and those of its second text plus the size of the vocabulary.
        """
        tokens = example["tokens"]
        return (tokens + self._vocab * example["token_types"])[tokens != 0]
