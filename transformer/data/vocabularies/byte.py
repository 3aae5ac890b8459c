"""Bytes as tokens: bytes only (RawBytes), or bytes with special ids and sentinels, as in ByT5.

>>> ByteVocabulary().encode("A").tolist(), ByteVocabulary().size       # byte 65, 3 special ids
([68], 359)
>>> RawBytes().encode("A").tolist(), RawBytes().size
([65], 256)
"""

from __future__ import annotations

import gin
import numpy as np

from transformer.data.vocabularies.base import Vocabulary, VocabularyError

_NUM_SPECIAL = 3  # padding, end of sequence, unknown


@gin.configurable
class ByteVocabulary(Vocabulary):
    """Padding 0, end of sequence 1, unknown 2, then the 256 bytes of UTF-8 text, then
    sentinels (ByT5: Xue et al. 2021).

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
        byte_values = self._before_eos(ids) - _NUM_SPECIAL
        is_byte = (byte_values >= 0) & (byte_values < 256)
        return _text(byte_values[is_byte])

    def fingerprint(self) -> str:
        return f"byte-{_NUM_SPECIAL}-{self.sentinels}"

    def __repr__(self) -> str:
        return f"ByteVocabulary(extra_ids={self.sentinels})"


class RawBytes(Vocabulary):
    """The 256 bytes of UTF-8 text; byte 0 ends a text, and is padding."""

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
    """Returns the bytes of a text, int32 [bytes]."""
    encoded = text.encode("utf-8", "surrogateescape")
    return np.frombuffer(encoded, np.uint8).astype(np.int32)


def _text(byte_values: np.ndarray) -> str:
    """Returns the text of bytes."""
    return byte_values.astype(np.uint8).tobytes().decode("utf-8", "replace")
