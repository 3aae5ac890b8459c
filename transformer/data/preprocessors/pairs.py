"""Text pairs for next-sentence prediction: in half of them the second text follows the
first (Devlin et al. 2018).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from transformer.data.batching.seeds import Seed, generator
from transformer.data.errors import DataError
from transformer.data.preprocessors.texts import join
from transformer.data.sources.base import Example, Examples
from transformer.data.vocabularies import WordPieceVocabulary


@dataclasses.dataclass(frozen=True)
class SentencePairs:
    """Makes examples of two texts: `tokens`, `token_types`, `next_sentence_labels`.

    An example is [CLS] first [SEP] second [SEP]. Consecutive lines of about `length` tokens
    are split into two texts at random. In half of the examples, with label 1, the second
    text is replaced by lines of another document, and its lines start the next example. A
    tenth of the examples has a shorter target length.

    Args:
      vocabulary: tokenizes the texts.
      length: the maximum count of tokens in an example.
      field: the field of a document that has its text; its lines are the sentences of
        BERT.
      short: the fraction of examples with a shorter target length.
    """

    vocabulary: WordPieceVocabulary
    length: int
    field: str = "text"
    short: float = 0.1

    def __call__(self, documents: Examples, seed: Seed) -> Iterator[Example]:
        if len(documents) < 2:
            raise DataError(
                "next-sentence pairs need at least two documents, for texts that do not follow."
            )
        for k in range(len(documents)):
            yield from self._pairs(documents, k, generator((*seed, k)))

    def _pairs(
        self, documents: Examples, k: int, rng: np.random.Generator
    ) -> Iterator[Example]:
        """Yields the examples of document k."""
        lines = self._lines(documents[k])
        start = 0
        while start < len(lines):
            target_length = self.length - 3  # without [CLS], [SEP] and [SEP]
            if rng.random() < self.short:
                target_length = int(rng.integers(2, target_length + 1))
            count = self._count_lines(lines, start, target_length)
            split = int(rng.integers(1, count)) if count > 1 else 1
            first_lines = lines[start : start + split]
            second_lines = lines[start + split : start + count]
            start += count
            is_random = not second_lines or rng.random() < 0.5
            if is_random:
                start -= len(second_lines)
                remaining = max(target_length - sum(map(len, first_lines)), 1)
                second_lines = self._random_lines(documents, k, remaining, rng)
            if second_lines:
                yield self._example(first_lines, second_lines, is_random)

    def _lines(self, document: Example) -> list[np.ndarray]:
        """Returns the tokens of each line of a document that has any."""
        lines = document[self.field].splitlines()
        tokens_by_line = [self.vocabulary.encode(line) for line in lines]
        return [tokens for tokens in tokens_by_line if len(tokens)]

    @staticmethod
    def _count_lines(lines: list[np.ndarray], start: int, num_tokens: int) -> int:
        """Returns how many lines from `start` on have at least `num_tokens` tokens, or
        the count of all that follow.
        """
        count = 0
        tokens = 0
        while start + count < len(lines) and tokens < num_tokens:
            tokens += len(lines[start + count])
            count += 1
        return count

    def _random_lines(
        self, documents: Examples, k: int, num_tokens: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Returns lines of a random document that is not k, of at least `num_tokens`
        tokens if it has them; none, if that document is empty.
        """
        random_k = int(rng.integers(len(documents) - 1))
        if random_k >= k:  # document k is skipped
            random_k += 1
        lines = documents[random_k][self.field].splitlines()
        start = int(rng.integers(max(len(lines), 1)))
        selected: list[np.ndarray] = []
        for line in lines[start:]:
            if sum(map(len, selected)) >= num_tokens:
                break
            if len(tokens := self.vocabulary.encode(line)):
                selected.append(tokens)
        return selected

    def _example(
        self,
        first_lines: list[np.ndarray],
        second_lines: list[np.ndarray],
        is_random: bool,
    ) -> Example:
        """Returns the example of two texts, given as the tokens of their lines."""
        texts = [np.concatenate(first_lines), np.concatenate(second_lines)]
        tokens, types = join(
            texts, self.vocabulary.bos_id, self.vocabulary.eos_id, self.length
        )
        return {
            "tokens": tokens,
            "token_types": types,
            "next_sentence_labels": np.int32(is_random),
        }
