"""The interface of vocabularies: from text to token ids and back, special ids, sentinels.

    ids = vocabulary.encode("a text")               # int32 [tokens], without `eos_id`
    vocabulary.decode(ids)                          # "a text"

Id 0 is padding in all vocabularies. Sentinels are ids that replace spans removed from a text
(Raffel et al., 2019). They have the last ids, in descending order: sentinel 0 is `size - 1`.
"""

from __future__ import annotations

import abc
import importlib
from types import ModuleType

import numpy as np

from transformer.data.errors import DataError

PAD = 0  # the id of padding


class VocabularyError(DataError):
    """Raised for a vocabulary that cannot be read, or that lacks an id."""


class Vocabulary(abc.ABC):
    """The base class of vocabularies.

    Attributes:
      size: the count of ids, sentinels included.
      eos_id: the id that ends a sequence.
      unk_id: the id of text that has no other id; None: all text has other ids.
      sentinels: the count of sentinels.
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
        """Returns a text that two vocabularies share only if they have the same ids."""

    def sentinel(self, index: int) -> int:
        """Returns the id of a sentinel, given its index from 0.

        Raises:
          VocabularyError: the vocabulary has too few sentinels.
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
        eos_positions = np.flatnonzero(ids == self.eos_id)
        if eos_positions.size:
            return ids[: eos_positions[0]]
        return ids


def import_extra(package: str) -> ModuleType:
    """Returns a package of the extra "text", `pip install -e '.[text]'` in a checkout.

    Raises:
      VocabularyError: the package is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise VocabularyError(
            f"the package {package} is not installed, and this vocabulary needs "
            f"it.\n  pip install {package}"
        ) from error
