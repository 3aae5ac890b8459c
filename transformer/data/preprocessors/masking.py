"""Masking of tokens for masked language models (Devlin et al. 2018).

Of the selected tokens, 80 % are replaced by [MASK], 10 % by a random token, and 10 % are
unchanged.

    example = {"tokens": ids}
    mask_tokens(example, seed=(1, 0, 5), vocabulary=vocabulary, predictions=20)
    # {"tokens": ..., "masked_positions": [2, 7], "masked_ids": [2088, 2003]}
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
    """Returns the example with masked `tokens`, and with `masked_positions`, in ascending
    order, and `masked_ids`, the original tokens at these positions.

    Args:
      example: an example with `tokens`; [CLS], [SEP] and padding are never selected.
      seed: the seed of the selection and of the replacements.
      vocabulary: the vocabulary of the tokens, which has [MASK].
      predictions: the maximum count of selected tokens.
      rate: the fraction of tokens to select.
      whole_words: whether all tokens of a word are selected, or none.
    """
    tokens = np.asarray(example["tokens"])
    rng = generator(seed)
    special_ids = (PAD, vocabulary.bos_id, vocabulary.eos_id)
    candidates = np.flatnonzero(~np.isin(tokens, special_ids))  # positions
    num_selected = max(round(len(candidates) * rate), 1)
    num_selected = min(num_selected, predictions, len(candidates))
    if whole_words:
        starts_word = vocabulary.starts_word(tokens[candidates])
        positions = _select_words(
            candidates, starts_word, max_count=num_selected, rng=rng
        )
    else:
        positions = np.sort(rng.choice(candidates, num_selected, replace=False))
    original_ids = tokens[positions]
    # A random number per selected token: below 0.8, the token becomes [MASK]; from 0.8 to
    # 0.9, a random token; above, it is unchanged.
    random_numbers = rng.random(len(positions))
    random_ids = rng.choice(vocabulary.ordinary_ids, len(positions))
    random_or_original_ids = np.where(random_numbers < 0.9, random_ids, original_ids)
    masked_tokens = tokens.copy()
    masked_tokens[positions] = np.where(
        random_numbers < 0.8, vocabulary.mask_id, random_or_original_ids
    )
    return {
        **example,
        "tokens": masked_tokens,
        "masked_positions": positions,
        "masked_ids": original_ids,
    }


def _select_words(
    positions: np.ndarray,
    starts_word: np.ndarray,
    max_count: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Returns the positions of the tokens of random words, in ascending order.

    Args:
      positions: the positions to select from, int64 [tokens], in ascending order.
      starts_word: whether the token at each position starts a word, bool [tokens].
      max_count: the maximum count of selected tokens.
      rng: the random number generator.
    """
    if not len(positions):
        return positions
    # A word also starts after a gap in the positions, where there is a special token; -2
    # makes a gap before the first position.
    is_start = starts_word | (np.diff(positions, prepend=-2) > 1)
    # The positions of each word. The first start is no boundary between two words.
    words = np.split(positions, np.flatnonzero(is_start)[1:])
    selected_words: list[np.ndarray] = []
    num_remaining = max_count
    for word_index in rng.permutation(len(words)):
        word = words[word_index]
        if len(word) <= num_remaining:
            selected_words.append(word)
            num_remaining -= len(word)
    if not selected_words:
        return positions[:0]  # every word has more tokens than are to be selected
    return np.sort(np.concatenate(selected_words))
