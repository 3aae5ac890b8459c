"""Pairs for next-sentence prediction: half of them go on, half do not (Devlin et al.
2018).
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
    """Makes rows of two parts each: `tokens`, `token_types`, `next_sentence_labels`.

    A row is [CLS] first [SEP] second [SEP]. Lines are gathered to about `length` tokens
    and parted in two at random. In half of the rows, label 1, the second part is
    exchanged for lines of another document, and the lines that it would have had begin
    the next row. In a tenth of the rows a shorter length is aimed at.

    Args:
      vocabulary: makes the tokens.
      length: the greatest number of tokens in a row.
      field: where a document has its text; its lines are what BERT calls sentences.
      short: the part of rows that are made shorter.
    """

    vocabulary: WordPieceVocabulary
    length: int
    field: str = "text"
    short: float = 0.1

    def __call__(self, documents: Examples, seed: Seed) -> Iterator[Example]:
        if len(documents) < 2:
            raise DataError(
                "next-sentence pairs need two documents at least, to take others from."
            )
        for k in range(len(documents)):
            yield from self._pairs(documents, k, generator((*seed, k)))

    def _pairs(
        self, documents: Examples, k: int, draw: np.random.Generator
    ) -> Iterator[Example]:
        lines, at = self._lines(documents[k]), 0
        while at < len(lines):
            aim = self.length - 3
            if draw.random() < self.short:
                aim = int(draw.integers(2, aim + 1))
            taken = self._enough(lines, at, aim)
            parted = int(draw.integers(1, taken)) if taken > 1 else 1
            first, second = lines[at : at + parted], lines[at + parted : at + taken]
            at += taken
            other = not second or draw.random() < 0.5
            if other:
                at -= len(second)
                second = self._others(
                    documents, k, max(aim - sum(map(len, first)), 1), draw
                )
            if second:
                yield self._row(first, second, other)

    def _lines(self, document: Example) -> list[np.ndarray]:
        found = (
            self.vocabulary.encode(line) for line in document[self.field].splitlines()
        )
        return [tokens for tokens in found if len(tokens)]

    @staticmethod
    def _enough(lines: list[np.ndarray], at: int, aim: int) -> int:
        """Returns how many lines from one on have `aim` tokens, or are all
        there are.
        """
        taken, tokens = 0, 0
        while at + taken < len(lines) and tokens < aim:
            tokens += len(lines[at + taken])
            taken += 1
        return taken

    def _others(
        self, documents: Examples, k: int, aim: int, draw: np.random.Generator
    ) -> list[np.ndarray]:
        """Returns lines of another document; none, if the one that was drawn
        is empty.
        """
        other = int(draw.integers(len(documents) - 1))
        lines = documents[other + (other >= k)][self.field].splitlines()
        first, found = int(draw.integers(max(len(lines), 1))), list[np.ndarray]()
        for line in lines[first:]:
            if sum(map(len, found)) >= aim:
                break
            if len(tokens := self.vocabulary.encode(line)):
                found.append(tokens)
        return found

    def _row(
        self, first: list[np.ndarray], second: list[np.ndarray], other: bool
    ) -> Example:
        texts = [np.concatenate(first), np.concatenate(second)]
        tokens, types = join(
            texts, self.vocabulary.bos_id, self.vocabulary.eos_id, self.length
        )
        return {
            "tokens": tokens,
            "token_types": types,
            "next_sentence_labels": np.int32(other),
        }
