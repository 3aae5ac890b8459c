"""Rows: what is made of documents once, before training, so that each row is an
example.

    Chunks(vocabulary, length=568)          the texts, one after another, cut to one length
    Packed(vocabulary, {"targets": 512})    whole texts, several in a row, with segments
    SentencePairs(vocabulary, length=128)   two parts of a text, or of two texts (BERT)

A maker of rows is a pure function of (documents, seed). Rows are written by
`transformer.tokenize`, or held in memory.

>>> texts = [{"targets": np.array([5, 6])}, {"targets": np.array([7, 8, 9])}]
>>> row, = pack(texts, {"targets": 6})
>>> {name: row[name].tolist() for name in row}
{'targets': [5, 6, 7, 8, 9], 'targets_segments': [1, 1, 2, 2, 2],
 'targets_positions': [0, 1, 0, 1, 2]}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import numpy as np

from transformer.data.batching.seeds import Seed
from transformer.data.errors import DataError
from transformer.data.preprocessors.texts import tokenize
from transformer.data.sources.base import Example, Examples
from transformer.data.vocabularies import Vocabulary

_OPEN_ROWS = 32  # rows that wait for a text that fits


class Rows(Protocol):
    """Makes rows of documents. Its `repr` tells its settings, and is written beside the
    rows.
    """

    def __call__(self, documents: Examples, seed: Seed) -> Iterator[Example]:
        """Yields the rows, the same ones for the same documents and seed."""


@dataclasses.dataclass(frozen=True)
class Chunks:
    """The tokens of all texts, an end after each, cut into `targets` of one length; the
    last row is what is left.

    Args:
      vocabulary: makes the tokens.
      length: the tokens of a row.
      field: where a document has its text.
      least: a last row with fewer tokens is left out.
    """

    vocabulary: Vocabulary
    length: int
    field: str = "text"
    least: int = 2

    def __call__(self, documents: Examples, seed: Seed) -> Iterator[Example]:
        kept = np.zeros(0, np.int32)
        for document in documents:
            tokens = tokenize(
                document, seed, vocabulary=self.vocabulary, fields={self.field: "t"}
            )["t"]
            kept = np.concatenate([kept, tokens])
            whole = len(kept) // self.length * self.length
            yield from (
                {"targets": row} for row in kept[:whole].reshape(-1, self.length)
            )
            kept = kept[whole:]
        if len(kept) >= self.least:
            yield {"targets": kept}


@dataclasses.dataclass(frozen=True)
class Packed:
    """Texts, several in a row, as `pack` has it; a longer one is cut into several.

    Args:
      vocabulary: makes the tokens.
      length: the tokens of a row.
      field: where a document has its text.
    """

    vocabulary: Vocabulary
    length: int
    field: str = "text"

    def __call__(self, documents: Examples, seed: Seed) -> Iterator[Example]:
        return pack(self._texts(documents, seed), {"targets": self.length})

    def _texts(self, documents: Examples, seed: Seed) -> Iterator[Example]:
        for document in documents:
            tokens = tokenize(
                document, seed, vocabulary=self.vocabulary, fields={self.field: "t"}
            )["t"]
            for begin in range(0, len(tokens), self.length):
                yield {"targets": tokens[begin : begin + self.length]}


@dataclasses.dataclass(frozen=True)
class PackedPairs:
    """Pairs of texts, several in a row: `inputs` and `targets`, each with segments and
    positions.

    Args:
      vocabulary: makes the tokens.
      inputs: the inputs of a row; a longer text loses its end.
      targets: the targets of a row.
      fields: the fields of a document that become inputs and targets.
    """

    vocabulary: Vocabulary
    inputs: int
    targets: int
    fields: tuple[str, str] = ("inputs", "targets")

    def __call__(self, documents: Examples, seed: Seed) -> Iterator[Example]:
        lengths = {"inputs": self.inputs, "targets": self.targets}
        return pack(
            (self._pair(document, seed, lengths) for document in documents), lengths
        )

    def _pair(
        self, document: Example, seed: Seed, lengths: Mapping[str, int]
    ) -> Example:
        names = dict(zip(self.fields, lengths))
        tokens = tokenize(document, seed, vocabulary=self.vocabulary, fields=names)
        return {name: tokens[name][:most] for name, most in lengths.items()}


def pack(examples: Iterable[Example], lengths: Mapping[str, int]) -> Iterator[Example]:
    """Yields rows of several examples each: tokens one after another, and for each name
    `<name>_segments`, the number of the example within the row from 1, and
    `<name>_positions`, from 0 within the example.

    An example goes into the first of a few open rows that has room for all of its
    fields; rows leave in the order in which they were opened. Nothing is random.

    Raises:
      DataError: an example is longer than a row.
    """
    rows: list[
        tuple[list[Example], dict[str, int]]
    ] = []  # with the room that each has left
    for example in examples:
        sizes = {name: len(example[name]) for name in lengths}
        for name, most in lengths.items():
            if sizes[name] > most:
                raise DataError(
                    f"{name} of {sizes[name]} tokens do not fit into a row of {most}."
                )
        fitting = (
            row
            for row in rows
            if all(size <= row[1][name] for name, size in sizes.items())
        )
        found = next(fitting, None)
        if found is None:
            rows.append(found := ([], dict(lengths)))
        found[0].append(example)
        for name, size in sizes.items():
            found[1][name] -= size
        if len(rows) > _OPEN_ROWS:
            yield _row(rows.pop(0)[0], lengths)
    yield from (_row(row, lengths) for row, _ in rows)


def _row(examples: list[Example], lengths: Mapping[str, int]) -> Example:
    row: Example = {}
    for name in lengths:
        sizes = [len(example[name]) for example in examples]
        row[name] = np.concatenate([example[name] for example in examples]).astype(
            np.int32
        )
        row[f"{name}_segments"] = np.repeat(
            np.arange(1, len(sizes) + 1, dtype=np.int32), sizes
        )
        row[f"{name}_positions"] = np.concatenate(
            [np.arange(size, dtype=np.int32) for size in sizes]
        )
    return row
