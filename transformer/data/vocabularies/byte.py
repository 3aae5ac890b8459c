"""Bytes as tokens: alone, or with ids for padding, end, unknown and sentinels.

>>> ByteVocabulary().encode("A").tolist(), ByteVocabulary().size       # as ByT5: 3 ids before
([68], 359)
>>> RawBytes().encode("A").tolist(), RawBytes().size
([65], 256)
"""

from __future__ import annotations

import gin
import numpy as np

from transformer.data.vocabularies.base import Vocabulary, VocabularyError

_NUM_SPECIAL = 3  # padding, end, unknown


@gin.configurable
class ByteVocabulary(Vocabulary):
    """Padding 0, end 1, unknown 2, then the bytes of UTF-8, then sentinels (Xue et al.
    2021).

    Args:
      extra_ids: the count of sentinels.
    """

    eos_id = 1
    unk_id = 2

    def __init__(self, extra_ids: int = 100) -> None:
        if extra_ids < 0:
            raise VocabularyError(f"extra_ids must be at least 0, not {extra_ids}.")
        self.size = 256 + _NUM_SPECIAL + extra_ids
        self.sentinels = extra_ids

    def encode(self, text: str) -> np.ndarray:
        return _bytes(text) + np.int32(_NUM_SPECIAL)

    def decode(self, ids: np.ndarray) -> str:
        bytes_ = self._before_eos(ids) - _NUM_SPECIAL
        return _text(bytes_[(bytes_ >= 0) & (bytes_ < 256)])

    def fingerprint(self) -> str:
        return f"byte-{_NUM_SPECIAL}-{self.sentinels}"

    def __repr__(self) -> str:
        return f"ByteVocabulary(extra_ids={self.sentinels})"


class RawBytes(Vocabulary):
    """The 256 bytes only: 0 ends a text, and pads."""

    size = 256
    eos_id = 0
    unk_id = None

    def encode(self, text: str) -> np.ndarray:
        return _bytes(text)

    def decode(self, ids: np.ndarray) -> str:
        return _text(self._before_eos(ids))

    def fingerprint(self) -> str:
        return "raw-bytes"

    def __repr__(self) -> str:
        return "RawBytes()"


def _bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-8", "surrogateescape"), np.uint8).astype(
        np.int32
    )


def _text(ids: np.ndarray) -> str:
    return ids.astype(np.uint8).tobytes().decode("utf-8", "replace")
