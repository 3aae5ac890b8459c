"""Masking of tokens for masked language models (Devlin et al. 2018).

Of the selected tokens 80 % are replaced by [MASK], 10 % by a random token, and 10 % are
unchanged.
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
    """Returns the example with masked `tokens`, and with `masked_positions`, in rising
    order, and `masked_ids`, the original tokens at these positions.

    Args:
      example: has `tokens`; [CLS], [SEP] and padding are never selected.
      seed: of the selection and of the replacements.
      vocabulary: has [MASK], and knows which tokens start a word.
      predictions: the maximum count of selected tokens.
      rate: the fraction of tokens to select.
      whole_words: select all tokens of a word or none.
    """
    tokens = np.asarray(example["tokens"])
    rng = generator(seed)
    special = (PAD, vocabulary.bos_id, vocabulary.eos_id)
    positions = np.flatnonzero(~np.isin(tokens, special))
    count = max(round(len(positions) * rate), 1)
    count = min(count, predictions, len(positions))
    if whole_words:
        starts_word = vocabulary.starts_word(tokens[positions])
        selected = _select_words(positions, starts_word, count, rng)
    else:
        selected = np.sort(rng.choice(positions, count, replace=False))
    u = rng.random(len(selected))
    random_tokens = rng.choice(vocabulary.ordinary_ids, len(selected))
    replacement = np.where(u < 0.9, random_tokens, tokens[selected])
    masked = tokens.copy()
    masked[selected] = np.where(u < 0.8, vocabulary.mask_id, replacement)
    return {
        **example,
        "tokens": masked,
        "masked_positions": selected,
        "masked_ids": tokens[selected],
    }


def _select_words(
    positions: np.ndarray,
    starts_word: np.ndarray,
    max_count: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Returns the positions of random words, of at most `max_count` tokens in total.

    Args:
      positions: the positions to select from, int64 [tokens], in rising order.
      starts_word: whether the token at each of them starts a word, bool [tokens].
      max_count: the maximum count of selected tokens.
      rng: the random number generator.
    """
    is_start = starts_word | (np.diff(positions, prepend=-2) > 1)
    if not len(positions):
        return positions
    words = np.split(positions, np.flatnonzero(is_start)[1:])
    selected: list[np.ndarray] = []
    remaining = max_count
    for k in rng.permutation(len(words)):
        if len(words[k]) <= remaining:
            selected.append(words[k])
            remaining -= len(words[k])
    return np.sort(np.concatenate(selected)) if selected else positions[:0]
