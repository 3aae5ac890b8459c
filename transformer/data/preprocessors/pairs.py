"""Pairs of texts for next-sentence prediction: in half of the pairs, the second text follows
the first in the data (Devlin et al. 2018).

    packing = SentencePairs(vocabulary, length=128)
    for example in packing(documents, seed=(1,)):
      example["tokens"], example["token_types"], example["next_sentence_labels"]
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
    """A packing: makes examples of two texts from documents.

    The `tokens` of an example are [CLS] first [SEP] second [SEP]. Successive lines of a
    document, of about `length` tokens, are split into two texts at random. In half of the
    examples, the second text is replaced by lines of another document
    (`next_sentence_labels` is 1, else 0), and the replaced lines start the next example.

    Args:
      vocabulary: tokenizes the texts.
      length: the maximum count of tokens of an example.
      field: the field of a document that has its text; its lines are the sentences of
        BERT.
      short: the fraction of examples with a random, shorter length.
    """

    vocabulary: WordPieceVocabulary
    length: int
    field: str = "text"
    short: float = 0.1

    def __call__(self, documents: Examples, seed: Seed) -> Iterator[Example]:
        """Yields the examples of all documents, the same ones for the same seed.

        Raises:
          DataError: there are fewer than two documents.
        """
        if len(documents) < 2:
            raise DataError(
                "next-sentence pairs need at least two documents, for texts that do not follow."
            )
        for document_index in range(len(documents)):
            rng = generator((*seed, document_index))
            yield from self._pairs(documents, document_index, rng)

    def _pairs(
        self, documents: Examples, document_index: int, rng: np.random.Generator
    ) -> Iterator[Example]:
        """Yields the examples of one document."""
        lines = self._tokenized_lines(documents[document_index])
        start = 0
        while start < len(lines):
            target_length = self.length - 3  # without [CLS], [SEP] and [SEP]
            if rng.random() < self.short:
                target_length = int(rng.integers(2, target_length + 1))
            num_lines = self._count_lines(lines, start=start, num_tokens=target_length)
            num_first = 1  # the count of lines of the first text
            if num_lines > 1:
                num_first = int(rng.integers(1, num_lines))
            first_lines = lines[start : start + num_first]
            second_lines = lines[start + num_first : start + num_lines]
            start += num_lines
            # Always if there is no second line, and in half of all other examples.
            is_random = not second_lines or rng.random() < 0.5
            if is_random:
                # The lines that are replaced start the next example.
                start -= len(second_lines)
                num_first_tokens = sum(map(len, first_lines))
                second_lines = self._random_lines(
                    documents,
                    excluded_index=document_index,
                    num_tokens=max(target_length - num_first_tokens, 1),
                    rng=rng,
                )
            if second_lines:
                yield self._example(first_lines, second_lines, is_random=is_random)

    def _tokenized_lines(self, document: Example) -> list[np.ndarray]:
        """Returns the tokens of each line of a document, without lines of no tokens."""
        lines = document[self.field].splitlines()
        tokens_by_line = [self.vocabulary.encode(line) for line in lines]
        return [tokens for tokens in tokens_by_line if len(tokens)]

    @staticmethod
    def _count_lines(lines: list[np.ndarray], start: int, num_tokens: int) -> int:
        """Returns how many lines, from line `start` on, are needed for at least `num_tokens`
        tokens; the count of all remaining lines, if they have fewer tokens.
        """
        num_lines = 0
        tokens_so_far = 0
        while start + num_lines < len(lines) and tokens_so_far < num_tokens:
            tokens_so_far += len(lines[start + num_lines])
            num_lines += 1
        return num_lines

    def _random_lines(
        self,
        documents: Examples,
        excluded_index: int,
        num_tokens: int,
        rng: np.random.Generator,
    ) -> list[np.ndarray]:
        """Returns the tokens of successive lines of a random document, from a random line on:
        at least `num_tokens` tokens, or all up to the end of the document.

        Args:
          documents: all documents.
          excluded_index: the index of the document that is not chosen.
          num_tokens: the minimum count of tokens.
          rng: the random number generator.
        """
        # An index among the other documents, whose indices from `excluded_index` on are
        # one larger.
        random_index = int(rng.integers(len(documents) - 1))
        if random_index >= excluded_index:
            random_index += 1
        lines = documents[random_index][self.field].splitlines()
        start = int(rng.integers(max(len(lines), 1)))
        selected: list[np.ndarray] = []
        for line in lines[start:]:
            if sum(map(len, selected)) >= num_tokens:
                break
            tokens = self.vocabulary.encode(line)
            if len(tokens):
                selected.append(tokens)
        return selected

    def _example(
        self,
        first_lines: list[np.ndarray],
        second_lines: list[np.ndarray],
        is_random: bool,
    ) -> Example:
        """Returns the example of two texts.

        Args:
          first_lines: the tokens of each line of the first text.
          second_lines: the tokens of each line of the second text.
          is_random: whether the second text is of another document.
        """
        texts = [np.concatenate(first_lines), np.concatenate(second_lines)]
        tokens, token_types = join(
            texts,
            bos_id=self.vocabulary.bos_id,
            eos_id=self.vocabulary.eos_id,
            length=self.length,
        )
        return {
            "tokens": tokens,
            "token_types": token_types,
            "next_sentence_labels": np.int32(is_random),
        }
