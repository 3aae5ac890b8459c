"""BERT's word pieces: read from a vocab.txt, and trained (Devlin et al. 2018).

    vocabulary = WordPieceVocabulary("vocab.txt")
    vocabulary.encode("unaffable").tolist()              # the ids of un ##aff ##able
    ids, offsets = vocabulary.encode_with_offsets(text)  # character offsets of each token

A *piece* is a text with an id: a word, or a section of a word. Text is cleaned of control
characters, and with `lower_case` it is lower-cased and accents are removed. Chinese characters
and punctuation are separate words. Each word is split into pieces, from its start on, always
into the longest piece of the vocabulary. The package `tokenizers` does the work.
"""

from __future__ import annotations

import collections
import hashlib
import unicodedata
from collections.abc import Iterable
from typing import Any

import gin
import numpy as np

from transformer.data.vocabularies.base import (
    PAD,
    Vocabulary,
    VocabularyError,
    import_extra,
)

_PAD_PIECE = "[PAD]"
_UNKNOWN_PIECE = "[UNK]"
SPECIALS = (_PAD_PIECE, _UNKNOWN_PIECE, "[CLS]", "[SEP]", "[MASK]")
# Control and format characters but for white space, and the replacement for bytes that were no
# text.
_REMOVED_CHARACTERS = r"[\p{Cc}\p{Cf}\x{FFFD}&&[^\t\n\r]]"
_MAX_WORD_LENGTH = 200  # characters; a longer word is unknown, as in BERT


@gin.configurable
class WordPieceVocabulary(Vocabulary):
    """Word pieces; a piece that continues a word starts with `##`.

    Args:
      path: a vocab.txt with one piece per line; the id of a piece is the index of its
        line, from 0.
      lower_case: whether text is lower-cased.
      strip_accents: whether accents are removed; None: if `lower_case` is True.
      split_chinese: whether each Chinese character is a separate word.

    Attributes:
      pieces: the piece of each id.
      bos_id: the id of [CLS].
      eos_id: the id of [SEP].
      mask_id: the id of [MASK].
      ordinary_ids: the ids that are not special, int32 [ids].
    """

    def __init__(
        self,
        path: str = gin.REQUIRED,
        lower_case: bool = True,
        strip_accents: bool | None = None,
        split_chinese: bool = True,
    ) -> None:
        self.path = path
        self.lower_case = lower_case
        # The settings that differ from their defaults.
        self._changes: dict[str, bool] = {}
        if strip_accents not in (None, lower_case):
            self._changes["strip_accents"] = bool(strip_accents)
        if not split_chinese:
            self._changes["split_chinese"] = False
        self.pieces = _read_pieces(path)
        self.size = len(self.pieces)
        ids = {piece: index for index, piece in enumerate(self.pieces)}
        self.unk_id = ids[_UNKNOWN_PIECE]
        self.bos_id = ids["[CLS]"]
        self.eos_id = ids["[SEP]"]
        self.mask_id = ids["[MASK]"]
        self._tokenizer = _make_tokenizer(lower_case, vocab=ids, **self._changes)
        special_ids = [ids[piece] for piece in SPECIALS]
        all_ids = np.arange(self.size, dtype=np.int32)
        self.ordinary_ids = np.setdiff1d(all_ids, special_ids)
        self._continues_word = np.array(
            [piece.startswith("##") for piece in self.pieces]
        )

    def encode(self, text: str) -> np.ndarray:
        return np.array(self._encode(text).ids, np.int32)

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of a text, int32 [tokens], and the start and end of each token in
        the text, counted in characters: int32 [tokens, 2]. Accents and other combining marks
        after the last letter of a token belong to it.
        """
        encoding = self._encode(text)
        ids = np.array(encoding.ids, np.int32)
        offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
        next_starts = np.append(offsets[1:, 0], len(text))
        for offset, next_start in zip(offsets, next_starts):
            while offset[1] < next_start and _is_combining(text[offset[1]]):
                offset[1] += 1
        return ids, offsets

    def decode(self, ids: np.ndarray) -> str:
        omitted_ids = (PAD, self.bos_id)
        pieces = [
            self.pieces[token_id]
            for token_id in self._before_eos(ids)
            if token_id not in omitted_ids
        ]
        # "##" marks a piece that continues the word of the piece before.
        return " ".join(pieces).replace(" ##", "")

    def starts_word(self, ids: np.ndarray) -> np.ndarray:
        """Returns whether each token starts a word: bool, shaped as `ids`."""
        return ~self._continues_word[ids]

    def fingerprint(self) -> str:
        settings = [str(self.lower_case), *map(str, self._changes.items())]
        text = "\n".join([*settings, *self.pieces])
        return f"wordpiece-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def __repr__(self) -> str:
        settings = {"lower_case": self.lower_case, **self._changes}
        text = ", ".join(f"{name}={value}" for name, value in settings.items())
        return f"WordPieceVocabulary({self.path!r}, {text})"

    def _encode(self, text: str) -> Any:
        """Returns the encoding of a text, with `ids` and `offsets`, without special ids."""
        return self._tokenizer.encode(text, add_special_tokens=False)


def train_word_pieces(
    texts: Iterable[str], size: int, lower_case: bool = True, letters: int = 1000
) -> list[str]:
    """Returns the pieces of a trained vocabulary, which depend only on the arguments.

    Args:
      texts: the training texts; not an iterator, since they are read twice.
      size: the maximum count of pieces.
      lower_case: whether text is lower-cased, and accents are removed.
      letters: the maximum count of single characters; the most frequent ones are chosen.

    Raises:
      VocabularyError: `size` is less than the count of special pieces and characters.
    """
    library = import_extra("tokenizers")
    tokenizer = _make_tokenizer(lower_case)
    alphabet, inner_letters = _frequent_letters(texts, tokenizer, limit=letters)
    min_size = len(SPECIALS) + len(alphabet) + len(inner_letters)
    if size < min_size:
        raise VocabularyError(
            f"{size} pieces are too few: {min_size} are needed for the "
            f"{len(alphabet)} single characters of the texts."
        )
    # The trainer gives ids to pieces such as ##a in the order of a hash table, which differs
    # between runs, and breaks ties by these ids. Special tokens have ids in the given order.
    trainer = library.trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=[*SPECIALS, *(f"##{letter}" for letter in inner_letters)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    ids = tokenizer.get_vocab()
    return sorted(ids, key=lambda piece: ids[piece])


def _frequent_letters(
    texts: Iterable[str], tokenizer: Any, limit: int
) -> tuple[list[str], list[str]]:
    """Returns the most frequent characters, sorted, and the ones among them that occur inside
    words, not only at the start.

    Args:
      texts: the training texts.
      tokenizer: cleans texts, and splits them into words.
      limit: the maximum count of characters.
    """
    counts: collections.Counter[str] = collections.Counter()
    pairs: set[tuple[str, str]] = set()
    for text in texts:
        clean_text = tokenizer.normalizer.normalize_str(text)
        counts.update(clean_text)
        pairs.update(zip(clean_text, clean_text[1:]))

    def words(text: str) -> list[str]:
        """Returns the words of a clean text."""
        return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]

    # Without spaces: no word has them.
    letters = [letter for letter in counts if words(letter)]
    letters.sort(key=lambda letter: (-counts[letter], letter))
    frequent = set(letters[:limit])
    # Two successive characters that are one word: the second one is inside a word.
    inner_letters = {
        letter
        for previous, letter in pairs
        if letter in frequent and words(previous + letter) == [previous + letter]
    }
    return sorted(frequent), sorted(inner_letters)


def _read_pieces(path: str) -> list[str]:
    """Returns the pieces in a vocab.txt.

    Raises:
      VocabularyError: the file cannot be read, repeats a piece, or lacks a special piece.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            pieces = [line.rstrip("\r\n") for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise VocabularyError(
            f"a vocabulary cannot be read: {error}.\n  To train one: python -m "
            "transformer.train_vocabulary "
            f"--kind=wordpiece --size=8000 --output={path}"
        ) from error
    line_of_piece: dict[str, int] = {}
    for line_number, piece in enumerate(pieces, start=1):
        if piece in line_of_piece:
            raise VocabularyError(
                f"{path}:{line_number}: the piece {piece!r} is on line "
                f"{line_of_piece[piece]}, too."
            )
        line_of_piece[piece] = line_number
    missing = [name for name in SPECIALS if name not in line_of_piece]
    if missing:
        raise VocabularyError(
            f"{path} is no vocabulary of word pieces: it lacks {', '.join(missing)}."
        )
    if pieces[PAD] != _PAD_PIECE:
        raise VocabularyError(f"{path}:1: the first piece must be {_PAD_PIECE}.")
    return pieces


def _is_combining(character: str) -> bool:
    """Returns whether a character belongs to the letter before it, as accents do."""
    return unicodedata.category(character).startswith("M")


def _make_tokenizer(
    lower_case: bool,
    vocab: dict[str, int] | None = None,
    strip_accents: bool | None = None,
    split_chinese: bool = True,
) -> Any:
    """Returns a tokenizer of BERT.

    Args:
      lower_case: whether text is lower-cased.
      vocab: the id of each piece; None: the tokenizer is to be trained.
      strip_accents: whether accents are removed; None: if `lower_case` is True.
      split_chinese: whether each Chinese character is a separate word.
    """
    library = import_extra("tokenizers")
    tokenizer = library.Tokenizer(
        library.models.WordPiece(
            vocab=vocab or {},
            unk_token=_UNKNOWN_PIECE,
            max_input_chars_per_word=_MAX_WORD_LENGTH,
        )
    )
    normalizers = library.normalizers
    # As the original BERT, which keeps characters for private use: they are unknown. The
    # cleaning of `BertNormalizer` removes them.
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(library.Regex(_REMOVED_CHARACTERS), ""),
            normalizers.BertNormalizer(
                clean_text=False,
                handle_chinese_chars=split_chinese,
                strip_accents=strip_accents,
                lowercase=lower_case,
            ),
        ]
    )
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    return tokenizer
