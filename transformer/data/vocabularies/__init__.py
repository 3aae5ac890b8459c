"""Text to ids and back: bytes, word pieces, sentence pieces."""

from transformer.data.vocabularies.base import PAD, Vocabulary, VocabularyError

__all__ = ["PAD", "Vocabulary", "VocabularyError"]
