"""Prompts as arrays of ids: checks, padding, and where a completion ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transformer.data import DataError


class PromptError(DataError):
    """A prompt that a model cannot read."""


def check_vocabulary(index: int, ids: Sequence[int], vocab_size: int) -> None:
    """Raises PromptError if an id of the prompt at `index` is not in the vocabulary."""
    for x in ids:
        if not 0 <= x < vocab_size:
            raise PromptError(
                f"prompt {index + 1} has the id {x}; the model's are 0 to "
                f"{vocab_size - 1}.\n  Encode prompts with the vocabulary that the model "
                "was trained with."
            )


def pad(sequences: Sequence[Sequence[int]], length: int) -> np.ndarray:
    """Returns sequences of ids as int32 [batch, length], padded with 0."""
    padded = np.zeros((len(sequences), length), np.int32)
    for i, ids in enumerate(sequences):
        padded[i, : len(ids)] = ids
    return padded


def until_eos(ids: list[int], eos_id: int | Sequence[int] | None) -> list[int]:
    """Returns the ids before the first one that ends a sequence; all if none does."""
    if eos_id is None:
        return ids
    eos_ids = eos_id if isinstance(eos_id, Sequence) else [eos_id]
    indices = (i for i, x in enumerate(ids) if x in eos_ids)
    return ids[: next(indices, len(ids))]
