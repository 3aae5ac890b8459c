"""Vocabularies: from text to token ids and back, by bytes, word pieces or sentence pieces.

    ByteVocabulary(extra_ids=100)              ByT5's: special ids, 256 bytes, sentinels
    RawBytes()                                 256 bytes; 0 ends a text
    WordPieceVocabulary("vocab.txt")           BERT's; needs the package tokenizers
    SentencePieceVocabulary("text.model")      T5's; needs the package sentencepiece

`python -m transformer.train_vocabulary` trains the last two.
"""

from transformer.data.vocabularies.base import PAD, Vocabulary, VocabularyError
from transformer.data.vocabularies.byte import ByteVocabulary, RawBytes
from transformer.data.vocabularies.sentence_piece import (
    SentencePieceVocabulary,
    train_sentence_pieces,
)
from transformer.data.vocabularies.word_piece import (
    WordPieceVocabulary,
    train_word_pieces,
)

__all__ = [
    "ByteVocabulary",
    "PAD",
    "RawBytes",
    "SentencePieceVocabulary",
    "Vocabulary",
    "VocabularyError",
    "WordPieceVocabulary",
    "train_sentence_pieces",
    "train_word_pieces",
]
