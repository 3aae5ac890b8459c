"""The interface of vocabularies: text to ids and back, special ids, sentinels.

Id 0 is padding in all vocabularies. Sentinels stand for spans removed from a text (Raffel et
al., 2019) and have the last ids, in descending order: sentinel 0 is `size - 1`.
"""

from __future__ import annotations

import abc
import importlib
from types import ModuleType

import numpy as np

from transformer.data.errors import DataError

PAD = 0


class VocabularyError(DataError):
    """A vocabulary that cannot be read, or that lacks an id."""


class Vocabulary(abc.ABC):
    """Text to ids and back.

    Attributes:
      size: the number of ids, including sentinels.
      eos_id: the id that ends a sequence.
      unk_id: the id of text that no other id stands for, or None.
      sentinels: the number of sentinels.
    """

    size: int
    eos_id: int
    unk_id: int | None
    sentinels: int = 0

    @abc.abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """Returns the ids of a text, int32 [tokens], without `eos_id`."""

    @abc.abstractmethod
    def decode(self, ids: np.ndarray) -> str:
        """Returns the text of ids up to the first `eos_id`, without padding."""

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Returns a text that is equal only for vocabularies with the same ids."""

    def sentinel(self, index: int) -> int:
        """Returns the id of a sentinel, counted from 0. Raises VocabularyError: it has
        too few.
        """
        if not 0 <= index < self.sentinels:
            raise VocabularyError(
                f"{self} has {self.sentinels} sentinels, but sentinel {index}, counted "
                "from 0, is needed.\n  Add sentinels: extra_ids=100."
            )
        return self.size - 1 - index

    def _before_eos(self, ids: np.ndarray) -> np.ndarray:
        """Returns the ids before the first `eos_id`."""
        ids = np.asarray(ids).reshape(-1)
        ends = np.flatnonzero(ids == self.eos_id)
        return ids[: ends[0]] if ends.size else ids


def import_extra(package: str) -> ModuleType:
    """Returns a package of the extra `text`. Raises VocabularyError: it is not
    installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise VocabularyError(
            f"the package {package} is not installed, and this vocabulary needs "
            "it.\n  pip install 'meshtf[text]'"
        ) from error
