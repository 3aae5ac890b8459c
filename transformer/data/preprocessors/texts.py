"""Basic preprocessors: tokenize, split into inputs and targets, truncate, label, pair.

>>> split_prefix({"targets": np.arange(5)}, seed=(1,))
{'targets': array([2, 3, 4]), 'inputs': array([0, 1])}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer.data.batching.seeds import Seed, generator
from transformer.data.errors import DataError
from transformer.data.sources.base import Example
from transformer.data.vocabularies import Vocabulary


def tokenize(
    example: Example,
    seed: Seed,
    *,
    vocabulary: Vocabulary,
    fields: Mapping[str, str],
    append_eos: bool = True,
) -> Example:
    """Returns the example with texts as tokens, int32 [tokens].

    Args:
      example: has the texts.
      seed: not used.
      vocabulary: tokenizes the texts.
      fields: from fields of texts to fields of tokens: {"question": "inputs", "answer":
        "targets"}.
      append_eos: whether to append the end-of-text id to the tokens.
    """
    tokens = {}
    for field, name in fields.items():
        if not isinstance(text := _get(example, field), str):
            raise DataError(
                f"the field {field!r} of an example is no text: {text!r:.60}."
            )
        ids = vocabulary.encode(text)
        if append_eos:
            ids = np.append(ids, np.int32(vocabulary.eos_id))
        tokens[name] = ids
    rest = {k: v for k, v in example.items() if k not in fields}
    return {**rest, **tokens}


def split_prefix(example: Example, seed: Seed, *, field: str = "targets") -> Example:
    """Returns the tokens of a field split into `inputs` and `targets`, at a position drawn
    uniformly between two tokens. Raises DataError: fewer than two tokens.
    """
    tokens = _get(example, field)
    if len(tokens) < 2:
        raise DataError(f"a text of {len(tokens)} tokens cannot be split into two.")
    at = int(generator(seed).integers(1, len(tokens)))
    return {**example, "inputs": tokens[:at], "targets": tokens[at:]}


def trim(example: Example, seed: Seed, *, lengths: Mapping[str, int]) -> Example:
    """Returns the example with fields truncated to at most `lengths[name]` tokens."""
    truncated = {name: _get(example, name)[:size] for name, size in lengths.items()}
    return {**example, **truncated}


def label(
    example: Example, seed: Seed, *, classes: Sequence[str], field: str = "label"
) -> Example:
    """Returns the example with the index of its class, `labels`, instead of its name.

    Raises:
      DataError: the name is none of the classes.
    """
    name = _get(example, field)
    if name not in classes:
        raise DataError(
            f"{name!r} is none of the classes {', '.join(map(repr, classes))}."
        )
    rest = {k: v for k, v in example.items() if k != field}
    return {**rest, "labels": np.int32(list(classes).index(name))}


def pair(
    example: Example,
    seed: Seed,
    *,
    vocabulary: Vocabulary,
    bos_id: int,
    first_field: str,
    second_field: str | None,
    length: int,
) -> Example:
    """Returns `tokens`, [CLS] first [SEP] second [SEP], and `token_types`, 0 up to the
    first [SEP] and 1 after it. The longer text is truncated until both fit.

    Args:
      example: has the texts.
      seed: not used.
      vocabulary: tokenizes the texts; its `eos_id` is [SEP].
      bos_id: the id of [CLS].
      first_field: the field of the first text.
      second_field: the field of the second one, if there is one.
      length: the maximum count of tokens.
    """
    texts = [
        vocabulary.encode(_get(example, field))
        for field in (first_field, second_field)
        if field
    ]
    tokens, types = join(texts, bos_id, vocabulary.eos_id, length)
    rest = {k: v for k, v in example.items() if k not in (first_field, second_field)}
    return {**rest, "tokens": tokens, "token_types": types}


def join(
    texts: Sequence[np.ndarray], bos_id: int, eos_id: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns tokens and token types, int32 [tokens], of one text or two;
    see `pair`.
    """
    sizes = [len(text) for text in texts]
    while sum(sizes) > length - 1 - len(texts):
        sizes[int(np.argmax(sizes))] -= 1
    sections = [np.append(text[:size], eos_id) for text, size in zip(texts, sizes)]
    sections[0] = np.concatenate([[bos_id], sections[0]])
    tokens = np.concatenate(sections)
    types = np.repeat(np.arange(len(sections)), [len(ids) for ids in sections])
    return tokens.astype(np.int32), types.astype(np.int32)


def _get(example: Example, field: str) -> Any:
    if field not in example:
        raise DataError(
            f"an example has no {field!r}, but {', '.join(map(repr, example))}."
        )
    return example[field]
