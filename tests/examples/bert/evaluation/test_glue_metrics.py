"""Metrics of GLUE, by their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from examples.bert.evaluation.glue_metrics import (
    accuracy,
    f1,
    matthews,
    pearson,
    spearman,
)

RNG = np.random.default_rng(0)
PREDICTIONS, LABELS = RNG.integers(0, 2, (2, 50))


def test_two_classes():
    counts = np.zeros((2, 2))
    np.add.at(counts, (PREDICTIONS, LABELS), 1)
    (tn, fn), (fp, tp) = counts
    expected = (tp * tn - fp * fn) / np.sqrt(
        (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    )
    assert matthews(PREDICTIONS, LABELS) == pytest.approx(expected)
    precision, recall = tp / (tp + fp), tp / (tp + fn)
    expected = 2 * precision * recall / (precision + recall)
    assert f1(PREDICTIONS, LABELS) == pytest.approx(expected)
    assert f1(1 - PREDICTIONS, 1 - LABELS, positive=0) == pytest.approx(expected)
    assert accuracy(PREDICTIONS, LABELS) == pytest.approx((tp + tn) / 50)


def test_constant_predictions():
    constant = np.ones(50, int)
    assert matthews(constant, LABELS) == 0.0
    assert f1(constant * 0, LABELS) == 0.0
    assert pearson(constant, LABELS) == spearman(constant, LABELS) == 0.0


def test_correlations():
    x = RNG.normal(size=40)
    y = x + RNG.normal(size=40)
    assert pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert spearman(np.exp(x), y**3) == pytest.approx(
        np.corrcoef(x.argsort().argsort(), y.argsort().argsort())[0, 1]
    )
    # Equal numbers share the mean of their ranks.
    ranks = np.array([0.5, 0.5, 2.0, 3.5, 3.5])
    assert spearman(np.array([1, 1, 2, 7, 7]), np.array([1, 2, 3, 5, 8])) == (
        pytest.approx(np.corrcoef(ranks, np.arange(5))[0, 1])
    )
