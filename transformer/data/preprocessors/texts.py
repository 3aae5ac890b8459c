"""Small steps: text to tokens, a text split into what is given and what is told, text
to numbers.

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
      seed: is not used.
      vocabulary: makes the tokens.
      fields: where a text is, and where its tokens go: {"question": "inputs", "answer":
        "targets"}.
      append_eos: whether to append the end-of-text id to the tokens.
    """
    made = {}
    for field, name in fields.items():
        if not isinstance(text := _get(example, field), str):
            raise DataError(
                f"the field {field!r} of an example is no text: {text!r:.60}."
            )
        ids = vocabulary.encode(text)
        if append_eos:
            ids = np.append(ids, np.int32(vocabulary.eos_id))
        made[name] = ids
    return {**{k: v for k, v in example.items() if k not in fields}, **made}


def split_prefix(example: Example, seed: Seed, *, field: str = "targets") -> Example:
    """Returns the tokens of a field as `inputs`, what is given, and `targets`, what is
    to be told; every place between two tokens is as likely to be where they part."""
    tokens = _get(example, field)
    if len(tokens) < 2:
        raise DataError(f"a text of {len(tokens)} tokens cannot be split into two.")
    at = int(generator(seed).integers(1, len(tokens)))
    return {**example, "inputs": tokens[:at], "targets": tokens[at:]}


def trim(example: Example, seed: Seed, *, lengths: Mapping[str, int]) -> Example:
    """Returns the example with no more than so many tokens of each of these fields."""
    return {
        **example,
        **{name: _get(example, name)[:most] for name, most in lengths.items()},
    }


def label(
    example: Example, seed: Seed, *, classes: Sequence[str], field: str = "label"
) -> Example:
    """Returns the example with the number of its class, `labels`, in the place of its
    name.
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
    first: str,
    second: str | None,
    length: int,
) -> Example:
    """Returns `tokens`, [CLS] first [SEP] second [SEP], and `token_types`, 0 up to the
    first [SEP] and 1 behind it; the longer text loses its last tokens until both fit.

    Args:
      example: has the texts.
      seed: is not used.
      vocabulary: tokenizes the texts; its `eos_id` is [SEP].
      bos_id: the id of [CLS].
      first: the field of the first text.
      second: the field of the second one, if there is one.
      length: the greatest number of tokens.
    """
    texts = [
        vocabulary.encode(_get(example, field)) for field in (first, second) if field
    ]
    tokens, types = join(texts, bos_id, vocabulary.eos_id, length)
    rest = {k: v for k, v in example.items() if k not in (first, second)}
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
    parts = [np.append(text[:size], eos_id) for text, size in zip(texts, sizes)]
    parts[0] = np.concatenate([[bos_id], parts[0]])
    types = [np.full(len(part), k) for k, part in enumerate(parts)]
    return np.concatenate(parts).astype(np.int32), np.concatenate(types).astype(
        np.int32
    )


def _get(example: Example, field: str) -> Any:
    if field not in example:
        raise DataError(
            f"an example has no {field!r}, but {', '.join(map(repr, example))}."
        )
    return example[field]
