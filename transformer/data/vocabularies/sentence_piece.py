"""SentencePiece vocabularies (Kudo and Richardson, 2018, arXiv 1808.06226); the package
`sentencepiece` trains and runs their models.

    vocabulary = SentencePieceVocabulary("text.model", extra_ids=100)

A *piece* is a text with an id: a word, or a section of a word. The ids are in the order of T5:
padding 0, end of sequence 1, unknown 2, then the pieces, then the sentinels: ids that replace
spans removed from a text.
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
    """The pieces of a SentencePiece model, followed by sentinels.

    Args:
      path: the file of the model, such as "text.model".
      extra_ids: the count of sentinels.

    Raises:
      VocabularyError: the file is not a SentencePiece model, or padding is not id 0, or
        there is no id for the end of a sequence.
    """

    def __init__(self, path: str = gin.REQUIRED, extra_ids: int = 100) -> None:
        try:
            model = Path(path).read_bytes()
            sentencepiece = import_extra("sentencepiece")
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except (OSError, RuntimeError) as error:
            raise VocabularyError(
                f"{path} cannot be read as a SentencePiece model: {error}.\n  To train "
                "one: python -m "
                "transformer.train_vocabulary --kind=sentencepiece --size=8000 "
                f"--output={path}"
            ) from error
        pad_id = self._processor.pad_id()
        eos_id = self._processor.eos_id()
        if pad_id != PAD or eos_id < 0:
            raise VocabularyError(
                f"{path}: pad_id must be {PAD} and eos_id must exist, but pad_id is {pad_id} "
                f"and eos_id is {eos_id} (-1: none).\n  Train it with --pad_id=0 "
                "--eos_id=1 --unk_id=2 --bos_id=-1."
            )
        self.path = path
        self.sentinels = extra_ids
        self.eos_id = eos_id
        self.unk_id = self._processor.unk_id()
        self.size = self._processor.get_piece_size() + extra_ids
        self._hash = hashlib.sha256(model).hexdigest()[:16]

    def encode(self, text: str) -> np.ndarray:
        return np.array(self._processor.encode(text), np.int32)

    def decode(self, ids: np.ndarray) -> str:
        num_pieces = self.size - self.sentinels
        # The processor knows no sentinels, and would decode padding as text.
        ids = self._before_eos(ids)
        piece_ids = [int(piece_id) for piece_id in ids if PAD < piece_id < num_pieces]
        return self._processor.decode(piece_ids)

    def fingerprint(self) -> str:
        return f"sentencepiece-{self._hash}-{self.sentinels}"

    def __repr__(self) -> str:
        return f"SentencePieceVocabulary({self.path!r}, extra_ids={self.sentinels})"


def train_sentence_pieces(
    texts: Iterable[str], size: int, kind: str = "unigram"
) -> bytes:
    """Returns the bytes of a trained SentencePiece model.

    Args:
      texts: the training texts; each line of a text is a sentence.
      size: the count of pieces, with special ids and without sentinels.
      kind: the algorithm, "unigram" or "bpe".

    Raises:
      VocabularyError: SentencePiece cannot make `size` pieces of the texts: there is too
        little text, or there are more than `size` different characters.
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
            bos_id=-1,  # none
            num_threads=1,
            minloglevel=2,  # errors only
            input_sentence_size=1_000_000,  # sentences after these are not read
            shuffle_input_sentence=False,
        )
    except (RuntimeError, OSError) as error:
        raise VocabularyError(
            f"SentencePiece cannot train {size} pieces on these texts: "
            f"{str(error).strip()}"
        ) from error
    return model.getvalue()
