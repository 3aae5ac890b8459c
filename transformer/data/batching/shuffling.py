"""Orders that are functions of a number, so that nothing is held and any place can be
gone to.

`permuted` is a keyed permutation: a Feistel network on the next even number of bits,
walked until it falls below the size (Black and Rogaway 2002). `dealt` tells which task
of a mixture gives the n-th example, and which of its own that is.

>>> np.sort(permuted(np.arange(7), 7, key=(0, 1))).tolist()
[0, 1, 2, 3, 4, 5, 6]
>>> [dealt(n, [1, 3]) for n in range(5)]
[(1, 0), (1, 1), (1, 2), (0, 0), (1, 3)]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_ROUNDS = 8
_LEAST_BITS = 3  # of a half: fewer have too few permutations
_ODD = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of splitmix64


def permuted(numbers: np.ndarray, size: int, key: Sequence[int]) -> np.ndarray:
    """Returns where a permutation of 0 .. size - 1 sends some numbers: int64, shaped as
    they.

    Args:
      numbers: each from 0 to size - 1.
      size: how many there are.
      key: any whole numbers; others, another permutation.
    """
    half = np.uint64(max(_LEAST_BITS, ((size - 1).bit_length() + 1) // 2))
    keys = _keys(key)
    found = _feistel(np.asarray(numbers).astype(np.uint64).reshape(-1), half, keys)
    while (outside := np.flatnonzero(found >= size)).size:
        found[outside] = _feistel(found[outside], half, keys)
    return found.astype(np.int64).reshape(np.shape(numbers))


def dealt(number: int, shares: Sequence[int]) -> tuple[int, int]:
    """Returns who gives example `number` of a mixture, and how many it has given
    before.

    Of any first n examples each gives its share, to less than one for each who is asked
    before it: the first takes every (all / share)-th, the second its part of the
    others, and so on.
    """
    left = sum(shares)
    for k, share in enumerate(shares):
        before, after = number * share // left, (number + 1) * share // left
        if after > before:
            return k, before
        number, left = number - before, left - share
    raise AssertionError("the last one takes all that is left")


def _keys(key: Sequence[int]) -> list[np.ndarray]:
    """Returns a key for each round, uint64 [1]."""
    state = np.zeros(1, np.uint64)
    for word in key:
        state = _mix(state + np.uint64(_ODD[0])) ^ np.uint64(word % 2**64)
    return [_mix(state + np.uint64(_ODD[0] * (r + 1) % 2**64)) for r in range(_ROUNDS)]


def _feistel(words: np.ndarray, half: np.uint64, keys: list[np.ndarray]) -> np.ndarray:
    low = (np.uint64(1) << half) - np.uint64(1)
    left, right = words >> half, words & low
    for key in keys:
        left, right = right, left ^ (_mix(right + key) & low)
    return left << half | right


def _mix(words: np.ndarray) -> np.ndarray:
    """Returns 64 bits of which each depends on all of those of a word (the end of
    splitmix64).
    """
    for by, odd in ((30, _ODD[1]), (27, _ODD[2])):
        words = (words ^ words >> np.uint64(by)) * np.uint64(odd)
    return words ^ words >> np.uint64(31)
