"""Shuffled orders: keyed permutations of any size, near-uniform; mixtures give each task
its share.
"""

from __future__ import annotations

import numpy as np
import pytest

from transformer.data.batching.shuffling import deal, permute


@pytest.mark.parametrize("size", [1, 2, 3, 7, 63, 64, 65, 1000, 4097])
def test_permutations_have_each_index_once(size):
    assert np.array_equal(
        np.sort(permute(np.arange(size), size, (5, 2))), np.arange(size)
    )


def test_random_access_equals_the_complete_permutation():
    complete = permute(np.arange(1000), 1000, (1, 2))
    assert np.array_equal(
        permute(np.array([[7, 999], [0, 7]]), 1000, (1, 2)),
        complete[[[7, 999], [0, 7]]],
    )


def test_a_large_permutation_needs_no_memory():
    indices = permute(np.arange(100), 10**15, (0,))
    assert indices.max() > 10**14 and len(set(indices.tolist())) == 100


def test_other_keys_give_other_permutations():
    orders = {
        tuple(permute(np.arange(50), 50, key))
        for key in [(0, 0), (0, 1), (1, 0), (1, 1), (0,), (2**64 - 1, 0)]
    }
    assert len(orders) == 6


@pytest.mark.parametrize("size", [5, 100])
def test_each_index_is_equally_frequent_at_each_position(size):
    epochs = 400 * size // 100 + 400
    orders = np.array(
        [permute(np.arange(size), size, (9, epoch)) for epoch in range(epochs)]
    )
    expected = epochs / size
    for position in (0, size // 2, size - 1):
        counts = np.bincount(orders[:, position], minlength=size)
        chi = ((counts - expected) ** 2 / expected).sum()
        assert chi < size + 5 * np.sqrt(2 * size), (
            position,
            chi,
        )  # 5 standard deviations
    # Indices stay neighbours by chance only.
    follows = np.mean(orders[:, 1:] == orders[:, :-1] + 1)
    assert abs(follows - 1 / size) < 5 * np.sqrt(1 / size / orders.size)


@pytest.mark.parametrize("shares", [[1], [7, 3], [3, 7], [1, 1, 1], [5, 1, 2, 92]])
def test_each_task_has_its_share_of_any_prefix(shares):
    counts = [0] * len(shares)
    for index in range(500):
        task, index_in_task = deal(index, shares)
        assert index_in_task == counts[task]
        counts[task] += 1
        for share, count in zip(shares, counts):
            assert abs(count - (index + 1) * share / sum(shares)) < len(shares)


def test_random_access_to_a_mixture():
    assert deal(10**18, [2**31, 2**31]) == (1, 5 * 10**17)
