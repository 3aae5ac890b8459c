"""Sentence pieces, in models that the package `sentencepiece` trains and runs (Kudo et
al. 2018).

    vocabulary = SentencePieceVocabulary("text.model", extra_ids=100)

As T5 has it: padding 0, end 1, unknown 2, then pieces, and sentinels after all of them.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from pathlib import Path

import gin
import numpy as np

from transformer.data.vocabularies.base import (
    PAD,
    Vocabulary,
    VocabularyError,
    import_extra,
)


@gin.configurable
class SentencePieceVocabulary(Vocabulary):
    """The pieces of a SentencePiece model, and sentinels after them.

    Args:
      path: a model that SentencePiece wrote.
      extra_ids: the count of sentinels.
    """

    def __init__(self, path: str = gin.REQUIRED, extra_ids: int = 100) -> None:
        try:
            model = Path(path).read_bytes()
            self._pieces = import_extra("sentencepiece").SentencePieceProcessor(
                model_proto=model
            )
        except (OSError, RuntimeError) as error:
            raise VocabularyError(
                f"{path} cannot be read as a SentencePiece model: {error}.\n  To train "
                "one: python -m "
                "transformer.train_vocabulary --kind=sentencepiece --size=8000 "
                f"--output={path}"
            ) from error
        pad_id = self._pieces.pad_id()
        eos_id = self._pieces.eos_id()
        if pad_id != PAD or eos_id < 0:
            raise VocabularyError(
                f"{path}: padding must be id {PAD} and there must be an end, but their "
                f"ids are {pad_id} and {eos_id} (-1: none).\n  Train it with --pad_id=0 "
                "--eos_id=1 --unk_id=2 --bos_id=-1."
            )
        self.path = path
        self.sentinels = extra_ids
        self.eos_id = eos_id
        self.unk_id = self._pieces.unk_id()
        self.size = self._pieces.get_piece_size() + extra_ids
        self._hash = hashlib.sha256(model).hexdigest()[:16]

    def encode(self, text: str) -> np.ndarray:
        return np.array(self._pieces.encode(text), np.int32)

    def decode(self, ids: np.ndarray) -> str:
        known = self.size - self.sentinels
        return self._pieces.decode(
            [int(i) for i in self._until_end(ids) if PAD < i < known]
        )

    def fingerprint(self) -> str:
        return f"sentencepiece-{self._hash}-{self.sentinels}"

    def __repr__(self) -> str:
        return f"SentencePieceVocabulary({self.path!r}, extra_ids={self.sentinels})"


def train_sentence_pieces(
    texts: Iterable[str], size: int, kind: str = "unigram"
) -> bytes:
    """Returns a model of `size` pieces, sentinels not counted.

    Args:
      texts: the training texts; each line of a text is a sentence.
      size: the count of pieces.
      kind: "unigram" or "bpe".

    Raises:
      VocabularyError: the texts have too few characters or too many for that size.
    """
    model = io.BytesIO()
    try:
        import_extra("sentencepiece").SentencePieceTrainer.train(
            sentence_iterator=(line for text in texts for line in text.splitlines()),
            model_writer=model,
            model_type=kind,
            vocab_size=size,
            pad_id=PAD,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            num_threads=1,
            minloglevel=2,
            input_sentence_size=1_000_000,
            shuffle_input_sentence=False,
        )
    except (RuntimeError, OSError) as error:
        raise VocabularyError(
            f"SentencePiece cannot train {size} pieces on these texts: "
            f"{str(error).strip()}"
        ) from error
    return model.getvalue()
