"""Shuffled orders as functions of an index: with random access, and without a buffer.

`permute` is a pseudorandom permutation with a key: a Feistel network on the next even count
of bits, repeated until the result is below the size (cycle walking, Black and Rogaway
2002). `deal` returns the task of the n-th example of a mixture, and the index of this
example among the examples of the task.

>>> np.sort(permute(np.arange(7), 7, key=(0, 1))).tolist()
[0, 1, 2, 3, 4, 5, 6]
>>> [deal(n, [1, 3]) for n in range(5)]
[(1, 0), (1, 1), (1, 2), (0, 0), (1, 3)]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_ROUNDS = 8  # of the Feistel network
_MIN_HALF_BITS = 3  # fewer bits have too few permutations
# The constants of splitmix64 (Steele et al. 2014): an increment, factors and shifts.
_INCREMENT = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27)
_LAST_SHIFT = 31


def permute(indices: np.ndarray, size: int, key: Sequence[int]) -> np.ndarray:
    """Returns the elements of a permutation of 0 .. size - 1 at indices: int64, shaped as
    `indices`.

    Args:
      indices: integers from 0 to size - 1.
      size: the size of the permutation.
      key: the integers that choose the permutation, such as (seed, epoch).
    """
    # A word is an index as an unsigned integer, of 2 * half_bits bits: enough for size - 1.
    min_half_bits = ((size - 1).bit_length() + 1) // 2
    half_bits = np.uint64(max(_MIN_HALF_BITS, min_half_bits))
    round_keys = _round_keys(key)
    words = np.asarray(indices).astype(np.uint64).reshape(-1)
    permuted_words = _feistel(words, half_bits, round_keys)
    # The network permutes 2 ** (2 * half_bits) words: results that are too large are
    # permuted again, until all are below the size.
    too_large = np.flatnonzero(permuted_words >= size)
    while too_large.size:
        permuted_words[too_large] = _feistel(
            permuted_words[too_large], half_bits, round_keys
        )
        too_large = np.flatnonzero(permuted_words >= size)
    return permuted_words.astype(np.int64).reshape(np.shape(indices))


def deal(index: int, shares: Sequence[int]) -> tuple[int, int]:
    """Returns the task of an example of a mixture, and the index of the example among the
    examples of this task.

    The first task takes every (sum / share)-th example, the second task its share of the
    remaining examples, and so on. So among the first n examples, the count of task k
    differs from its share by less than k + 1.

    Args:
      index: the index of the example in the mixture.
      shares: the share of each task, as integers.
    """
    remaining_shares = sum(shares)
    for task_index, share in enumerate(shares):
        # How many of the first `index` examples are of this task, and how many of the first
        # `index + 1`: if they differ, this example is.
        count_before = index * share // remaining_shares
        count_after = (index + 1) * share // remaining_shares
        if count_after > count_before:
            return task_index, count_before
        # From here on, `index` counts the examples of the remaining tasks only.
        index -= count_before
        remaining_shares -= share
    raise AssertionError("the last task takes all remaining examples")


def _round_keys(key: Sequence[int]) -> list[np.ndarray]:
    """Returns a key for each round of the Feistel network, uint64 [1]."""
    state = np.zeros(1, np.uint64)
    for word in key:
        state = _mix(state + np.uint64(_INCREMENT)) ^ np.uint64(word % 2**64)
    round_keys = []
    for round_index in range(_ROUNDS):
        offset = _INCREMENT * (round_index + 1) % 2**64
        round_keys.append(_mix(state + np.uint64(offset)))
    return round_keys


def _feistel(
    words: np.ndarray, half_bits: np.uint64, round_keys: list[np.ndarray]
) -> np.ndarray:
    """Returns words of 2 * half_bits bits, permuted by a Feistel network."""
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    left = words >> half_bits
    right = words & mask
    for round_key in round_keys:
        round_hash = _mix(right + round_key) & mask
        left, right = right, left ^ round_hash
    return (left << half_bits) | right


def _mix(words: np.ndarray) -> np.ndarray:
    """Returns a 64-bit hash of each word, uint64 (the finalizer of splitmix64)."""
    for shift, factor in zip(_SHIFTS, _FACTORS):
        shifted = words >> np.uint64(shift)
        words = (words ^ shifted) * np.uint64(factor)
    return words ^ (words >> np.uint64(_LAST_SHIFT))
