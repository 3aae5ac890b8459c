"""Batches of bytes: a batch is a function of its step, and windows cover the text."""

from __future__ import annotations

import numpy as np
import pytest

from transformer import data

TEXT = np.random.default_rng(0).integers(0, 256, 5000).astype(np.uint8)


def take(number, **how):
    dataset = data.batches(TEXT, batch_size=3, length=8, **how).take(number)
    return [(inputs.numpy(), targets.numpy()) for inputs, targets in dataset]


def test_batches_are_windows_of_the_text_with_targets_one_byte_later():
    for step, (inputs, targets) in enumerate(take(5, seed=1)):
        assert inputs.dtype == targets.dtype == np.int32
        for row, first in enumerate(
            data.starts(step, 3, TEXT.size - 8, seed=1).numpy()
        ):
            assert inputs[row].tolist() == TEXT[first : first + 8].tolist()
            assert targets[row].tolist() == TEXT[first + 1 : first + 9].tolist()


def test_a_resumed_run_sees_what_it_would_have_seen():
    whole, rest = take(9, seed=5), take(4, seed=5, first_step=5)
    assert np.array_equal(np.array(whole[5:]), np.array(rest))
    assert not np.array_equal(np.array(whole[:4]), np.array(rest))


def test_the_order_is_that_of_last_year():
    expected = [_by_hand(7, 1000 + 2**33, row, 999) for row in range(4)]
    assert data.starts(1000 + 2**33, 4, 999, seed=7).numpy().tolist() == expected


def _by_hand(seed, step, row, places):
    def mix(word):
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        return word ^ word >> 31

    odd = 0x9E3779B97F4A7C15
    return mix(mix((mix((seed + odd) % 2**64) ^ step) + odd & 2**64 - 1) ^ row) % places


@pytest.mark.parametrize("seed", range(3))
def test_starts_are_spread_evenly(seed):
    drawn = np.concatenate(
        [data.starts(step, 200, 100, seed).numpy() for step in range(100)]
    )
    counts = np.bincount(drawn, minlength=100)
    assert counts.size == 100
    assert (
        50 < ((counts - 200.0) ** 2 / 200).sum() < 160
    )  # chi-square, 99 degrees of freedom


def test_windows_score_every_byte_once():
    fixed = data.windows(TEXT, length=8)
    scored = fixed.shape[0] * 8
    assert fixed.shape == (624, 9) and np.array_equal(
        fixed[:, 1:].ravel(), TEXT[1 : scored + 1]
    )
    assert TEXT.size - 1 - scored < 8


@pytest.mark.parametrize("number", [1, 5, 623, 624, 10_000])
def test_fewer_windows_are_spread_evenly(number):
    fixed, few = (
        data.windows(TEXT, length=8),
        data.windows(TEXT, length=8, num_windows=number),
    )
    assert len(few) == min(number, len(fixed))
    at = [int(np.flatnonzero((fixed == row).all(axis=1))[0]) for row in few]
    steps = np.diff([at[-1] - len(fixed), *at])  # all around
    assert steps.min() >= 1 and steps.max() - steps.min() <= 1


def test_evaluation_covers_every_window_and_counts_no_filling():
    fixed = data.windows(TEXT, length=8, num_windows=10)
    seen = [
        tuple(x.numpy() for x in row)
        for row in data.evaluation_batches(fixed, batch_size=4)
    ]
    assert [inputs.shape for inputs, _, _ in seen] == [(4, 8)] * 3
    counts = np.concatenate([count for _, _, count in seen])
    assert counts.dtype == np.float32 and counts.tolist() == [1.0] * 10 + [0.0] * 2
    targets = np.concatenate([target for _, target, _ in seen])
    assert np.array_equal(targets[counts > 0], fixed[:, 1:])


@pytest.mark.parametrize(
    "ask", [lambda text: data.batches(text, 1, 8), lambda text: data.windows(text, 8)]
)
def test_a_text_shorter_than_a_window_is_an_error_at_once(ask):
    with pytest.raises(data.CorpusError, match="8 bytes has no window of 8"):
        ask(TEXT[:8])
