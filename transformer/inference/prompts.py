"""Prompts as arrays of token ids: checks, padding, and the end of a completion.

Example:

    pad([[7, 4], [9]], length=3)             # [[7, 4, 0], [9, 0, 0]]
    until_eos([5, 8, 1, 3], eos_id=1)        # [5, 8]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transformer.data import DataError


class PromptError(DataError):
    """Raised for a prompt that a model cannot continue."""


def check_vocabulary(index: int, ids: Sequence[int], vocab_size: int) -> None:
    """Raises PromptError if an id of a prompt is not in the vocabulary.

    Args:
      index: the index of the prompt, from 0, for the message.
      ids: the ids of the prompt.
      vocab_size: the count of ids of the vocabulary.
    """
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise PromptError(
                f"prompt {index + 1} has the id {token_id}; the model's are 0 to "
                f"{vocab_size - 1}.\n  Encode prompts with the vocabulary that the model "
                "was trained with."
            )


def check_length(index: int, ids: Sequence[int], max_length: int) -> None:
    """Raises PromptError if a prompt has more than `max_length` ids.

    Args:
      index: the index of the prompt, from 0, for the message.
      ids: the ids of the prompt.
      max_length: the `max_prompt_length` of the decoder.
    """
    if len(ids) > max_length:
        raise PromptError(
            f"prompt {index + 1} has {len(ids)} ids, more than "
            f"max_prompt_length={max_length}.\n  Take "
            f"max_prompt_length={len(ids)}, or truncate=True to truncate prompts."
        )


def pad(sequences: Sequence[Sequence[int]], length: int) -> np.ndarray:
    """Returns sequences of ids as int32 [batch, length], padded with 0."""
    padded = np.zeros((len(sequences), length), np.int32)
    for row, ids in zip(padded, sequences):
        row[: len(ids)] = ids  # a view: the assignment writes into `padded`
    return padded


def until_eos(ids: list[int], eos_id: int | Sequence[int] | None) -> list[int]:
    """Returns the ids before the first id that ends a sequence; all ids if none does.

    Args:
      ids: the ids of a sequence.
      eos_id: the id that ends a sequence, or several such ids; None: there is none.
    """
    if eos_id is None:
        return ids
    eos_ids = eos_id if isinstance(eos_id, Sequence) else [eos_id]
    for index, token_id in enumerate(ids):
        if token_id in eos_ids:
            return ids[:index]
    return ids
