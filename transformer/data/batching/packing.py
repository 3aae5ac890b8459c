"""Makes rows from documents, once before training; each row is one training example.

    Chunks(vocabulary, length=568)          all texts concatenated, split into one length
    Packed(vocabulary, {"targets": 512})    complete texts, several in a row, with segments
    SentencePairs(vocabulary, length=128)   two sections of one text or of two texts (BERT)

A row maker is a pure function of (documents, seed). Rows are written by
`transformer.tokenize`, or kept in memory.

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

_OPEN_ROWS = 32  # rows that are not full yet


class Rows(Protocol):
    """Makes rows from documents. Its `repr` contains its settings, and is written with
    the rows.
    """

    def __call__(self, documents: Examples, seed: Seed) -> Iterator[Example]:
        """Yields the rows, the same ones for the same documents and seed."""


@dataclasses.dataclass(frozen=True)
class Chunks:
    """The tokens of all texts, each followed by `eos_id`, split into `targets` of one
    length; the last row may be shorter.

    Args:
      vocabulary: tokenizes the texts.
      length: tokens of a row.
      field: the field of a document that has its text.
      least: a last row with fewer tokens is dropped.
    """

    vocabulary: Vocabulary
    length: int
    field: str = "text"
    least: int = 2

    def __call__(self, documents: Examples, seed: Seed) -> Iterator[Example]:
        pending = np.zeros(0, np.int32)
        for document in documents:
            tokens = tokenize(
                document, seed, vocabulary=self.vocabulary, fields={self.field: "t"}
            )["t"]
            pending = np.concatenate([pending, tokens])
            size = len(pending) // self.length * self.length
            for row in pending[:size].reshape(-1, self.length):
                yield {"targets": row}
            pending = pending[size:]
        if len(pending) >= self.least:
            yield {"targets": pending}


@dataclasses.dataclass(frozen=True)
class Packed:
    """Several texts in a row, by `pack`; texts longer than a row are split.

    Args:
      vocabulary: tokenizes the texts.
      length: tokens of a row.
      field: the field of a document that has its text.
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
            for start in range(0, len(tokens), self.length):
                yield {"targets": tokens[start : start + self.length]}


@dataclasses.dataclass(frozen=True)
class PackedPairs:
    """Pairs of texts, several in a row: `inputs` and `targets`, each with segments and
    positions.

    Args:
      vocabulary: tokenizes the texts.
      inputs: tokens of the inputs of a row; longer texts are truncated.
      targets: tokens of the targets of a row; longer texts are truncated.
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
        return {name: tokens[name][:length] for name, length in lengths.items()}


def pack(examples: Iterable[Example], lengths: Mapping[str, int]) -> Iterator[Example]:
    """Yields rows of several examples each: their tokens concatenated, and for each name
    `<name>_segments`, the index of the example within the row from 1, and
    `<name>_positions`, from 0 within the example.

    First fit: an example goes into the first of up to 32 open rows that has room for
    all of its fields. Rows are yielded in the order in which they were opened.

    Raises:
      DataError: an example is longer than a row.
    """
    open_rows: list[_OpenRow] = []
    for example in examples:
        sizes = {name: len(example[name]) for name in lengths}
        for name, length in lengths.items():
            if sizes[name] > length:
                raise DataError(
                    f"{name} of {sizes[name]} tokens do not fit into a row of {length}."
                )
        row = next((row for row in open_rows if row.fits(sizes)), None)
        if row is None:
            row = _OpenRow([], dict(lengths))
            open_rows.append(row)
        row.add(example, sizes)
        if len(open_rows) > _OPEN_ROWS:
            yield _row(open_rows.pop(0).examples, lengths)
    for row in open_rows:
        yield _row(row.examples, lengths)


@dataclasses.dataclass
class _OpenRow:
    """A row to which examples may still be added, and its room by field."""

    examples: list[Example]
    room: dict[str, int]

    def fits(self, sizes: Mapping[str, int]) -> bool:
        return all(size <= self.room[name] for name, size in sizes.items())

    def add(self, example: Example, sizes: Mapping[str, int]) -> None:
        self.examples.append(example)
        for name, size in sizes.items():
            self.room[name] -= size


def _row(examples: list[Example], lengths: Mapping[str, int]) -> Example:
    """Returns a row: tokens, segments and positions of examples, for each field."""
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
