"""Results and errors of generation."""

from __future__ import annotations

from typing import NamedTuple

from transformer.data import DataError


class PromptError(DataError):
    """A prompt that is not valid for a model."""


class Written(NamedTuple):
    """The generated continuation of a prompt.

    Attributes:
      ids: up to the end id, which is left out.
      score: the log-probability of the ids and the end id; of beam search, divided by
        the length penalty.
    """

    ids: list[int]
    score: float
