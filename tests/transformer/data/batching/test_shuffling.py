"""Orders: permutations of any size, keyed, near-uniform; mixtures give each task its
share.
"""

from __future__ import annotations

import numpy as np
import pytest

from transformer.data.batching.shuffling import deal, permute


@pytest.mark.parametrize("size", [1, 2, 3, 7, 63, 64, 65, 1000, 4097])
def test_every_number_comes_once(size):
    assert np.array_equal(
        np.sort(permute(np.arange(size), size, (5, 2))), np.arange(size)
    )


def test_any_part_of_an_order_is_that_of_the_whole():
    whole = permute(np.arange(1000), 1000, (1, 2))
    assert np.array_equal(
        permute(np.array([[7, 999], [0, 7]]), 1000, (1, 2)), whole[[[7, 999], [0, 7]]]
    )


def test_a_large_order_needs_no_memory():
    some = permute(np.arange(100), 10**15, (0,))
    assert some.max() > 10**14 and len(set(some.tolist())) == 100


def test_other_keys_make_other_orders():
    orders = {
        tuple(permute(np.arange(50), 50, key))
        for key in [(0, 0), (0, 1), (1, 0), (1, 1), (0,), (2**64 - 1, 0)]
    }
    assert len(orders) == 6


@pytest.mark.parametrize("size", [5, 100])
def test_each_place_gets_each_number_about_as_often(size):
    epochs = 400 * size // 100 + 400
    orders = np.array(
        [permute(np.arange(size), size, (9, epoch)) for epoch in range(epochs)]
    )
    expected = epochs / size
    for place in (0, size // 2, size - 1):
        counts = np.bincount(orders[:, place], minlength=size)
        chi = ((counts - expected) ** 2 / expected).sum()
        assert chi < size + 5 * np.sqrt(2 * size), (place, chi)  # 5 standard deviations
    follows = np.mean(
        orders[:, 1:] == orders[:, :-1] + 1
    )  # neighbours stay so by chance
    assert abs(follows - 1 / size) < 5 * np.sqrt(1 / size / orders.size)


@pytest.mark.parametrize("shares", [[1], [7, 3], [3, 7], [1, 1, 1], [5, 1, 2, 92]])
def test_each_gives_its_share_of_any_beginning_and_counts_its_own(shares):
    given = [0] * len(shares)
    for number in range(500):
        who, before = deal(number, shares)
        assert before == given[who]
        given[who] += 1
        for share, count in zip(shares, given):
            assert abs(count - (number + 1) * share / sum(shares)) < len(shares)


def test_a_far_place_of_a_mixture_is_gone_to_at_once():
    who, before = deal(10**18, [2**31, 2**31])
    assert before == 5 * 10**17 and who == 1
