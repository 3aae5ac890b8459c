"""Preprocessors that tokenize texts, truncate and split tokens, and make pairs and labels.

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
    """Returns the example with texts replaced by tokens, int32 [tokens].

    Args:
      example: an example with texts.
      seed: not used; every preprocessor takes a seed.
      vocabulary: tokenizes the texts.
      fields: the field of each text -> the field of its tokens, such as {"question":
        "inputs", "answer": "targets"}.
      append_eos: whether to append `eos_id` to the tokens.
    """
    tokens = {}
    for text_field, token_field in fields.items():
        text = _get(example, text_field)
        if not isinstance(text, str):
            raise DataError(
                f"the field {text_field!r} of an example is no text: {text!r:.60}."
            )
        ids = vocabulary.encode(text)
        if append_eos:
            ids = np.append(ids, np.int32(vocabulary.eos_id))
        tokens[token_field] = ids
    return {**_without(example, *fields), **tokens}


def split_prefix(example: Example, seed: Seed, *, field: str = "targets") -> Example:
    """Returns the example with the tokens of a field split into `inputs` and `targets`, at
    a random position.

    Args:
      example: an example with tokens.
      seed: the seed of the position.
      field: the field that has the tokens.

    Raises:
      DataError: the field has fewer than two tokens.
    """
    tokens = _get(example, field)
    if len(tokens) < 2:
        raise DataError(f"a text of {len(tokens)} tokens cannot be split into two.")
    num_inputs = int(generator(seed).integers(1, len(tokens)))
    return {**example, "inputs": tokens[:num_inputs], "targets": tokens[num_inputs:]}


def trim(example: Example, seed: Seed, *, lengths: Mapping[str, int]) -> Example:
    """Returns the example with fields truncated.

    Args:
      example: an example with tokens.
      seed: not used; every preprocessor takes a seed.
      lengths: the maximum count of tokens of each field, by name.
    """
    truncated_fields = {
        name: _get(example, name)[:length] for name, length in lengths.items()
    }
    return {**example, **truncated_fields}


def label(
    example: Example, seed: Seed, *, classes: Sequence[str], field: str = "label"
) -> Example:
    """Returns the example with the name of its class replaced by `labels`, the index of
    the class.

    Args:
      example: an example with the name of its class.
      seed: not used; every preprocessor takes a seed.
      classes: the names of all classes.
      field: the field that has the name.

    Raises:
      DataError: the name is none of the classes.
    """
    name = _get(example, field)
    if name not in classes:
        raise DataError(
            f"{name!r} is none of the classes {', '.join(map(repr, classes))}."
        )
    class_index = np.int32(list(classes).index(name))
    return {**_without(example, field), "labels": class_index}


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
    """Returns the example with its text, or its two texts, replaced by `tokens` and
    `token_types`.

    `tokens` are [CLS] first [SEP] second [SEP]; `token_types` are 0 up to the first [SEP],
    and 1 after it. The longer text is truncated until both fit.

    Args:
      example: an example with texts.
      seed: not used; every preprocessor takes a seed.
      vocabulary: tokenizes the texts; its `eos_id` is the id of [SEP].
      bos_id: the id of [CLS].
      first_field: the field of the first text.
      second_field: the field of the second text; None: there is one text.
      length: the maximum count of tokens.
    """
    fields = [first_field, second_field] if second_field else [first_field]
    texts = [vocabulary.encode(_get(example, field)) for field in fields]
    tokens, token_types = join(
        texts, bos_id=bos_id, eos_id=vocabulary.eos_id, length=length
    )
    other_fields = _without(example, *fields)
    return {**other_fields, "tokens": tokens, "token_types": token_types}


def join(
    texts: Sequence[np.ndarray], bos_id: int, eos_id: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens and token types of an example of one text or two, as `pair` does:
    int32 [tokens] each.

    Args:
      texts: the tokens of each text.
      bos_id: the id before the first text, [CLS].
      eos_id: the id after each text, [SEP].
      length: the maximum count of tokens.
    """
    sizes = [len(text) for text in texts]  # how many tokens of each text stay
    # One token is [CLS], and each text has its [SEP].
    max_text_tokens = length - 1 - len(texts)
    while sum(sizes) > max_text_tokens:
        longest = int(np.argmax(sizes))
        sizes[longest] -= 1
    # A section is a text with the special tokens that have the same token type.
    sections = [np.append(text[:size], eos_id) for text, size in zip(texts, sizes)]
    sections[0] = np.concatenate([[bos_id], sections[0]])
    tokens = np.concatenate(sections)
    section_sizes = [len(section) for section in sections]
    token_types = np.repeat(np.arange(len(sections)), section_sizes)
    return tokens.astype(np.int32), token_types.astype(np.int32)


def _without(example: Example, *fields: str) -> Example:
    """Returns an example without some fields."""
    return {name: value for name, value in example.items() if name not in fields}


def _get(example: Example, field: str) -> Any:
    """Returns a field of an example.

    Raises:
      DataError: the example lacks the field.
    """
    if field not in example:
        raise DataError(
            f"an example has no {field!r}, but {', '.join(map(repr, example))}."
        )
    return example[field]
