"""The vocabulary in a folder of Hugging Face transformers.

    vocabulary = read_vocabulary("bert-base-uncased")     # WordPieceVocabulary or None
    write_run(model, "runs/bert", vocabulary)

Its fingerprint is saved with the converted model, so that the model is not used with another
vocabulary of equal size.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformer.data import (
    SentencePieceVocabulary,
    Vocabulary,
    VocabularyError,
    WordPieceVocabulary,
)

_WORD_PIECES = "vocab.txt"
_SENTENCE_PIECES = "spiece.model"
_TOKENIZER_CONFIG = "tokenizer_config.json"


def read_vocabulary(folder: str | Path) -> Vocabulary | None:
    """Returns the vocabulary in a folder; None: it is not known.

    It is the word pieces of vocab.txt, with the settings of tokenizer_config.json, or the
    sentence pieces of spiece.model. It is not known if such files are missing, or cannot be
    read, for example because the package that reads them is not installed.
    """
    word_pieces = Path(folder, _WORD_PIECES)
    sentence_pieces = Path(folder, _SENTENCE_PIECES)
    settings = _settings(folder)
    try:
        if word_pieces.is_file() and settings is not None:
            return WordPieceVocabulary(str(word_pieces), **settings)
        if sentence_pieces.is_file():
            return SentencePieceVocabulary(str(sentence_pieces))
    except VocabularyError:
        return None
    return None


def _settings(folder: str | Path) -> dict[str, Any] | None:
    """Returns the settings of BERT's tokenizer in a folder, as arguments of
    `WordPieceVocabulary`; None: they are not known, since tokenizer_config.json cannot be read
    or describes another tokenizer.
    """
    try:
        text = Path(folder, _TOKENIZER_CONFIG).read_text(encoding="utf-8-sig")
        config = json.loads(text)
    except (OSError, ValueError):
        return None
    if not isinstance(config, dict) or not config.get("do_basic_tokenize", True):
        return None
    # The defaults are those of Hugging Face.
    return {
        "lower_case": bool(config.get("do_lower_case", True)),
        "strip_accents": config.get("strip_accents"),
        "split_chinese": bool(config.get("tokenize_chinese_chars", True)),
    }
