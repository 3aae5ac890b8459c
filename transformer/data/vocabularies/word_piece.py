"""BERT's word pieces: read from a vocab.txt, and trained (Devlin et al. 2018).

    vocabulary = WordPieceVocabulary("vocab.txt")
    vocabulary.encode("unaffable").tolist()              # the ids of un ##aff ##able
    ids, offsets = vocabulary.encode_with_offsets(text)  # character offsets of each piece

Text is cleaned, and lower-cased without accents if asked for. Chinese characters and
punctuation are separate words. Each word is split greedily into the longest pieces of the
vocabulary. The package `tokenizers` does the work.
"""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import gin
import numpy as np

from transformer.data.vocabularies.base import (
    PAD,
    Vocabulary,
    VocabularyError,
    import_extra,
)

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LONGEST_WORD = 200  # a longer one is unknown, as in BERT


@gin.configurable
class WordPieceVocabulary(Vocabulary):
    """Word pieces: those that continue a word begin with `##`.

    Args:
      path: a vocab.txt, one piece a line; a piece's id is its line, counted from 0.
      lower_case: whether text is lower-cased, without accents.

    Attributes:
      bos_id, eos_id, mask_id: the ids of [CLS], [SEP] and [MASK].
      ordinary_ids: the ids that are not special, int32.
    """

    def __init__(self, path: str = gin.REQUIRED, lower_case: bool = True) -> None:
        self.path = path
        self.lower_case = lower_case
        self.pieces = _read(path)
        self.size = len(self.pieces)
        ids = {piece: id_ for id_, piece in enumerate(self.pieces)}
        self.unk_id = ids["[UNK]"]
        self.bos_id = ids["[CLS]"]
        self.eos_id = ids["[SEP]"]
        self.mask_id = ids["[MASK]"]
        self._tokenizer = _tokenizer(lower_case, vocab=ids)
        special = [ids[name] for name in SPECIALS]
        self.ordinary_ids = np.setdiff1d(np.arange(self.size, dtype=np.int32), special)
        self._continues_word = np.array(
            [piece.startswith("##") for piece in self.pieces]
        )

    def encode(self, text: str) -> np.ndarray:
        return np.array(self._encoding(text).ids, np.int32)

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns ids, int32 [tokens], and the start and end offsets of their characters in
        `text`: int32 [tokens, 2].
        """
        encoding = self._encoding(text)
        ids = np.array(encoding.ids, np.int32)
        offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
        return ids, offsets

    def decode(self, ids: np.ndarray) -> str:
        words = " ".join(
            self.pieces[i] for i in self._before_eos(ids) if i not in (PAD, self.bos_id)
        )
        return words.replace(" ##", "")

    def starts_word(self, ids: np.ndarray) -> np.ndarray:
        """Returns whether tokens start a word: bool, in the shape of `ids`."""
        return ~self._continues_word[ids]

    def fingerprint(self) -> str:
        text = "\n".join([str(self.lower_case), *self.pieces])
        return f"wordpiece-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def __repr__(self) -> str:
        return f"WordPieceVocabulary({self.path!r}, lower_case={self.lower_case})"

    def _encoding(self, text: str) -> Any:
        return self._tokenizer.encode(text, add_special_tokens=False)


def train_word_pieces(
    texts: Iterable[str], size: int, lower_case: bool = True, letters: int = 1000
) -> list[str]:
    """Returns the pieces of a vocabulary, the same ones for the same texts.

    Args:
      texts: the training texts; iterated over twice, so not an iterator.
      size: the maximum count of pieces.
      lower_case: as for `WordPieceVocabulary`.
      letters: the maximum count of single characters; the most frequent ones are taken.
    """
    library = _library()
    tokenizer = _tokenizer(lower_case)
    alphabet, inner_letters = _letters(texts, tokenizer, letters)
    min_size = len(SPECIALS) + len(alphabet) + len(inner_letters)
    if size < min_size:
        raise VocabularyError(
            f"{size} pieces are too few: {min_size} are needed for the "
            f"{len(alphabet)} single characters of the texts."
        )
    # The trainer would number pieces such as ##a in the order of a hash table, and break
    # ties by that number. As special tokens they get a deterministic order.
    trainer = library.trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=[*SPECIALS, *(f"##{c}" for c in inner_letters)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)


def _letters(
    texts: Iterable[str], tokenizer: Any, limit: int
) -> tuple[list[str], list[str]]:
    """Returns the most frequent characters, sorted, and those of them that occur inside
    words.
    """
    counts: collections.Counter[str] = collections.Counter()
    pairs: set[tuple[str, str]] = set()
    for text in texts:
        clean = tokenizer.normalizer.normalize_str(text)
        counts.update(clean)
        pairs.update(zip(clean, clean[1:]))
    words = tokenizer.pre_tokenizer.pre_tokenize_str
    counts = collections.Counter({c: n for c, n in counts.items() if words(c)})
    frequent = set(sorted(counts, key=lambda c: (-counts[c], c))[:limit])
    inner_letters = {
        b for a, b in pairs if b in frequent and [w for w, _ in words(a + b)] == [a + b]
    }
    return sorted(frequent), sorted(inner_letters)


def _read(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            pieces = list(_lines(file))
    except (OSError, UnicodeDecodeError) as error:
        raise VocabularyError(
            f"a vocabulary cannot be read: {error}.\n  To train one: python -m "
            "transformer.train_vocabulary "
            f"--kind=wordpiece --size=8000 --output={path}"
        ) from error
    seen: dict[str, int] = {}
    for line_number, piece in enumerate(pieces, 1):
        if seen.setdefault(piece, line_number) != line_number:
            raise VocabularyError(
                f"{path}:{line_number}: the piece {piece!r} is on line {seen[piece]}, "
                "too."
            )
    missing = [name for name in SPECIALS if name not in seen]
    if missing or pieces[PAD] != SPECIALS[0]:
        raise VocabularyError(
            f"{path} is no vocabulary of word pieces: it lacks {', '.join(missing)}."
            if missing
            else f"{path}:1: the first piece must be {SPECIALS[0]}."
        )
    return pieces


def _lines(file: Iterable[str]) -> Iterator[str]:
    return (line.rstrip("\r\n") for line in file)


def _tokenizer(lower_case: bool, vocab: dict[str, int] | None = None) -> Any:
    library = _library()
    tokenizer = library.Tokenizer(
        library.models.WordPiece(
            vocab=vocab or {},
            unk_token=SPECIALS[1],
            max_input_chars_per_word=_LONGEST_WORD,
        )
    )
    tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=lower_case)
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _library() -> ModuleType:
    return import_extra("tokenizers")
