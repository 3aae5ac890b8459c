"""Shuffled orders as functions of an index, with random access and without a buffer.

`permute` is a keyed permutation: a Feistel network on the next even number of bits,
repeated until its result is below the size (cycle walking, Black and Rogaway 2002).
`deal` returns the task of a mixture that gives the n-th example, and the index of that
example within the task.

>>> np.sort(permute(np.arange(7), 7, key=(0, 1))).tolist()
[0, 1, 2, 3, 4, 5, 6]
>>> [deal(n, [1, 3]) for n in range(5)]
[(1, 0), (1, 1), (1, 2), (0, 0), (1, 3)]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_ROUNDS = 8
_MIN_HALF_BITS = 3  # fewer bits have too few permutations
_ODD = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of splitmix64


def permute(indices: np.ndarray, size: int, key: Sequence[int]) -> np.ndarray:
    """Returns a permutation of 0 .. size - 1 at indices: int64, in their shape.

    Args:
      indices: each from 0 to size - 1.
      size: the number of indices.
      key: integers that choose the permutation.
    """
    half_bits = np.uint64(max(_MIN_HALF_BITS, ((size - 1).bit_length() + 1) // 2))
    keys = _keys(key)
    words = np.asarray(indices).astype(np.uint64).reshape(-1)
    permuted_words = _feistel(words, half_bits, keys)
    while (too_large := np.flatnonzero(permuted_words >= size)).size:
        permuted_words[too_large] = _feistel(permuted_words[too_large], half_bits, keys)
    return permuted_words.astype(np.int64).reshape(np.shape(indices))


def deal(index: int, shares: Sequence[int]) -> tuple[int, int]:
    """Returns the task of example `index` of a mixture, and its index within the task.

    Among the first n examples the count of task k differs from its share by less than
    k + 1: the first task takes every (sum / share)-th example, the second task its share
    of the remaining ones, and so on.
    """
    remaining = sum(shares)
    for k, share in enumerate(shares):
        before = index * share // remaining
        after = (index + 1) * share // remaining
        if after > before:
            return k, before
        index -= before
        remaining -= share
    raise AssertionError("the last task takes all remaining examples")


def _keys(key: Sequence[int]) -> list[np.ndarray]:
    """Returns a key for each round, uint64 [1]."""
    increment = _ODD[0]
    state = np.zeros(1, np.uint64)
    for word in key:
        state = _mix(state + np.uint64(increment)) ^ np.uint64(word % 2**64)
    round_keys = []
    for round_index in range(_ROUNDS):
        offset = increment * (round_index + 1) % 2**64
        round_keys.append(_mix(state + np.uint64(offset)))
    return round_keys


def _feistel(
    words: np.ndarray, half_bits: np.uint64, keys: list[np.ndarray]
) -> np.ndarray:
    """Returns a keyed permutation of words of 2 * half_bits bits."""
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    left = words >> half_bits
    right = words & mask
    for key in keys:
        left, right = right, left ^ (_mix(right + key) & mask)
    return left << half_bits | right


def _mix(words: np.ndarray) -> np.ndarray:
    """Returns a 64-bit hash of each word (the finalizer of splitmix64)."""
    _increment, *factors = _ODD
    for shift, factor in zip((30, 27), factors):
        shifted = words >> np.uint64(shift)
        words = (words ^ shifted) * np.uint64(factor)
    return words ^ words >> np.uint64(31)
