"""Baselines: the same bytes as the model's windows, and values that can be computed by
hand.
"""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from transformer import data
from transformer.training.reporting.baselines import bigram_bits, compare, gzip_bits


def text(*values):
    return np.array(values, np.uint8)


def test_a_bigram_by_hand():
    # After 1: 2 twice, 3 once. With 1 added to each of 256 counts: 3/259 and 2/259.
    train = text(1, 2, 1, 2, 1, 3)
    bits = bigram_bits(train, text(1, 2), smoothing=1.0)
    assert bits == pytest.approx(-np.log2(3 / 259))
    both = bigram_bits(train, text(1, 3), smoothing=1.0)
    assert both == pytest.approx(-np.log2(2 / 259))


def test_what_was_never_seen_costs_eight_bits():
    assert bigram_bits(text(1, 2), text(9, 8, 7)) == pytest.approx(8.0)


def test_a_text_that_says_the_same_again_costs_next_to_nothing():
    same = np.tile(text(1, 2, 3), 10_000)
    assert bigram_bits(same, same) < 0.01


def test_random_bytes_cost_eight_bits():
    noise = np.random.default_rng(0).integers(0, 256, 2_000_000).astype(np.uint8)
    assert bigram_bits(noise, noise[:1000]) == pytest.approx(8.0, abs=0.1)
    assert gzip_bits(noise[:10_000]) == pytest.approx(8.0, abs=0.02)


def test_gzip_is_zlib_at_level_9():
    words = np.frombuffer(
        b"the cat sat on the mat, the rat sat on the cat. " * 9, np.uint8
    )
    assert gzip_bits(words) == 8 * len(zlib.compress(words.tobytes(), 9)) / words.size


def test_baselines_score_the_bytes_of_the_models_windows():
    drawn = np.random.default_rng(1).integers(0, 4, 1003).astype(np.uint8)
    targets = data.windows(drawn, length=16)[:, 1:]
    results = compare(drawn, drawn, length=16)
    assert results.scored == targets.size
    assert results.gzip == gzip_bits(targets)
    assert results.bigram == bigram_bits(drawn, drawn[: targets.size + 1])
    assert results.bigram < 2.1 < results.gzip  # two bits of chance
