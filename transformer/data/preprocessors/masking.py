"""Masked language models: tokens to tell are chosen, and most of them hidden (Devlin et
al. 2018).

Of the chosen tokens 80 % become [MASK], 10 % some other token, and 10 % stay as they
are.
"""

from __future__ import annotations

import numpy as np

from transformer.data.batching.seeds import Seed, generator
from transformer.data.sources.base import Example
from transformer.data.vocabularies import PAD, WordPieceVocabulary


def mask_tokens(
    example: Example,
    seed: Seed,
    *,
    vocabulary: WordPieceVocabulary,
    predictions: int,
    rate: float = 0.15,
    whole_words: bool = False,
) -> Example:
    """Returns the example with some of its `tokens` hidden, and `masked_positions` and
    `masked_ids`, where they are, in rising order, and what they were.

    Args:
      example: has `tokens`; [CLS], [SEP] and padding are never chosen.
      seed: of what is chosen and what becomes of it.
      vocabulary: has [MASK], and knows which pieces begin words.
      predictions: the greatest number of tokens that are chosen.
      rate: the part of the tokens that is chosen.
      whole_words: choose all pieces of a word or none.
    """
    tokens, draw = np.asarray(example["tokens"]), generator(seed)
    places = np.flatnonzero(
        ~np.isin(tokens, (PAD, vocabulary.bos_id, vocabulary.eos_id))
    )
    number = min(predictions, max(round(len(places) * rate), 1), len(places))
    if whole_words:
        chosen = _words(places, vocabulary.begins_word(tokens[places]), number, draw)
    else:
        chosen = np.sort(draw.choice(places, number, replace=False))
    hidden = tokens.copy()
    fate, others = draw.random(len(chosen)), _ordinary(vocabulary, len(chosen), draw)
    hidden[chosen] = np.where(
        fate < 0.8, vocabulary.mask, np.where(fate < 0.9, others, tokens[chosen])
    )
    return {
        **example,
        "tokens": hidden,
        "masked_positions": chosen,
        "masked_ids": tokens[chosen],
    }


def _words(
    places: np.ndarray, begins: np.ndarray, number: int, draw: np.random.Generator
) -> np.ndarray:
    """Returns the places of whole words, in random order as long as they fit into
    `number`.
    """
    word_starts = np.flatnonzero(begins | (np.diff(places, prepend=-2) > 1))
    words = np.split(places, word_starts[1:]) if len(places) else []
    chosen: list[np.ndarray] = []
    for k in draw.permutation(len(words)):
        if len(words[k]) <= number:
            chosen.append(words[k])
            number -= len(words[k])
    return np.sort(np.concatenate(chosen)) if chosen else places[:0]


def _ordinary(
    vocabulary: WordPieceVocabulary, number: int, draw: np.random.Generator
) -> np.ndarray:
    """Returns random tokens, none of them special."""
    return draw.choice(vocabulary.ordinary, number)
