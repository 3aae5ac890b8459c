"""Packings: make training examples of fixed lengths from documents, once before training.

    Chunks(vocabulary, length=568)          all texts concatenated, and split into chunks
    Packed(vocabulary, length=512)          several complete texts in an example, with segments
    PackedPairs(vocabulary, inputs=512, targets=128)
                                            several pairs of texts in an example
    SentencePairs(vocabulary, length=128)   two sections of one text or of two texts (BERT);
                                            in transformer/data/preprocessors/pairs.py

A packing is a pure function of (documents, seed). `transformer.tokenize` writes its
examples to disk; without it, they are made in memory.

>>> texts = [{"targets": np.array([5, 6])}, {"targets": np.array([7, 8, 9])}]
>>> packed, = pack(texts, {"targets": 6})
>>> {name: packed[name].tolist() for name in packed}
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

# A bin has the texts of one packed example; texts are added while it is open.
_MAX_OPEN_BINS = 32


class Packing(Protocol):
    """Makes training examples from documents. The `repr` of a packing has its settings; it
    is written to disk with the examples.
    """

    def __call__(self, documents: Examples, seed: Seed) -> Iterator[Example]:
        """Yields examples, the same ones for the same documents and seed."""


@dataclasses.dataclass(frozen=True)
class Chunks:
    """The tokens of all texts, each text followed by `eos_id`, concatenated and split into
    `targets` of the same length; only the last example may be shorter.

    Args:
      vocabulary: tokenizes the texts.
      length: the count of tokens of an example.
      field: the field of a document that has its text.
      min_length: a last example with fewer tokens is dropped.
    """

    vocabulary: Vocabulary
    length: int
    field: str = "text"
    min_length: int = 2

    def __call__(self, documents: Examples, seed: Seed) -> Iterator[Example]:
        pending = np.zeros(0, np.int32)  # tokens that are in no chunk yet
        for document in documents:
            tokens = _tokens_of(
                document, seed, vocabulary=self.vocabulary, field=self.field
            )
            pending = np.concatenate([pending, tokens])
            num_chunks = len(pending) // self.length
            num_tokens = num_chunks * self.length
            for chunk in pending[:num_tokens].reshape(num_chunks, self.length):
                yield {"targets": chunk}
            pending = pending[num_tokens:]
        if len(pending) >= self.min_length:
            yield {"targets": pending}


@dataclasses.dataclass(frozen=True)
class Packed:
    """Several texts in an example, by `pack`; texts longer than an example are split.

    Args:
      vocabulary: tokenizes the texts.
      length: the count of tokens of an example.
      field: the field of a document that has its text.
    """

    vocabulary: Vocabulary
    length: int
    field: str = "text"

    def __call__(self, documents: Examples, seed: Seed) -> Iterator[Example]:
        return pack(self._texts(documents, seed), {"targets": self.length})

    def _texts(self, documents: Examples, seed: Seed) -> Iterator[Example]:
        """Yields the tokens of each text, as `targets` of at most `length` tokens."""
        for document in documents:
            tokens = _tokens_of(
                document, seed, vocabulary=self.vocabulary, field=self.field
            )
            for start in range(0, len(tokens), self.length):
                yield {"targets": tokens[start : start + self.length]}


@dataclasses.dataclass(frozen=True)
class PackedPairs:
    """Several pairs of texts in an example: `inputs` and `targets`, each with segments and
    positions.

    Args:
      vocabulary: tokenizes the texts.
      inputs: the count of tokens of the inputs of an example; longer texts are truncated.
      targets: the count of tokens of the targets of an example; longer texts are
        truncated.
      fields: the fields of a document that become inputs and targets.
    """

    vocabulary: Vocabulary
    inputs: int
    targets: int
    fields: tuple[str, str] = ("inputs", "targets")

    def __call__(self, documents: Examples, seed: Seed) -> Iterator[Example]:
        lengths = {"inputs": self.inputs, "targets": self.targets}
        pairs = (self._pair(document, seed, lengths) for document in documents)
        return pack(pairs, lengths)

    def _pair(
        self, document: Example, seed: Seed, lengths: Mapping[str, int]
    ) -> Example:
        """Returns the tokens of the inputs and targets of a document, truncated."""
        inputs_field, targets_field = self.fields
        token_fields = {inputs_field: "inputs", targets_field: "targets"}
        tokens = tokenize(
            document, seed, vocabulary=self.vocabulary, fields=token_fields
        )
        return {name: tokens[name][:length] for name, length in lengths.items()}


def _tokens_of(
    document: Example, seed: Seed, vocabulary: Vocabulary, field: str
) -> np.ndarray:
    """Returns the tokens of the text in a field of a document, followed by `eos_id`."""
    tokenized = tokenize(
        document, seed, vocabulary=vocabulary, fields={field: "tokens"}
    )
    tokens: np.ndarray = tokenized["tokens"]
    return tokens


def pack(examples: Iterable[Example], lengths: Mapping[str, int]) -> Iterator[Example]:
    """Yields packed examples: each has the tokens of several examples, concatenated.

    For a field such as "targets", there are also "targets_segments", the index of the
    example that each token comes from, counted from 1, and "targets_positions", the
    position of each token in that example, from 0.

    This is first-fit bin packing: an example goes into the first of up to 32 open bins
    that has room for all of its fields. Bins are yielded in the order in which they were
    opened.

    Args:
      examples: the token ids of each example, by field.
      lengths: the maximum length of each field of a packed example.

    Raises:
      DataError: an example is longer than `lengths`.
    """
    open_bins: list[_Bin] = []  # in the order in which they were opened
    for example in examples:
        sizes = {name: len(example[name]) for name in lengths}
        for name, length in lengths.items():
            if sizes[name] > length:
                raise DataError(
                    f"{name} of {sizes[name]} tokens do not fit into examples of {length}."
                )
        first_fit = _first_fit(open_bins, sizes)
        if first_fit is None:
            first_fit = _Bin(examples=[], free_tokens=dict(lengths))
            open_bins.append(first_fit)
        first_fit.add(example, sizes)
        if len(open_bins) > _MAX_OPEN_BINS:
            yield _concatenate(open_bins.pop(0).examples, lengths)
    for open_bin in open_bins:
        yield _concatenate(open_bin.examples, lengths)


@dataclasses.dataclass
class _Bin:
    """Examples that become one packed example.

    Attributes:
      examples: the examples in the bin.
      free_tokens: the count of tokens that still fit into each field.
    """

    examples: list[Example]
    free_tokens: dict[str, int]

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Returns whether an example with these counts of tokens, by field, fits."""
        return all(size <= self.free_tokens[name] for name, size in sizes.items())

    def add(self, example: Example, sizes: Mapping[str, int]) -> None:
        """Adds an example that has these counts of tokens, by field."""
        self.examples.append(example)
        for name, size in sizes.items():
            self.free_tokens[name] -= size


def _first_fit(open_bins: Iterable[_Bin], sizes: Mapping[str, int]) -> _Bin | None:
    """Returns the first bin into which an example with these counts of tokens, by field, fits;
    None: it fits into none.
    """
    for open_bin in open_bins:
        if open_bin.fits(sizes):
            return open_bin
    return None


def _concatenate(examples: list[Example], lengths: Mapping[str, int]) -> Example:
    """Returns one example, with the tokens of all examples, their segments and positions,
    for each field in `lengths`.
    """
    packed: Example = {}
    for name in lengths:
        arrays = [example[name] for example in examples]
        sizes = [len(array) for array in arrays]
        segments = np.arange(1, len(sizes) + 1, dtype=np.int32)
        positions = [np.arange(size, dtype=np.int32) for size in sizes]
        packed[name] = np.concatenate(arrays).astype(np.int32)
        packed[f"{name}_segments"] = np.repeat(segments, sizes)
        packed[f"{name}_positions"] = np.concatenate(positions)
    return packed
