"""Correlations against numpy: pairs of variables, and all pairs, under layouts."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import layers
from tests.support.layer_agreement import agree


def test_a_matrix_of_correlations(rng):
    x = rng.normal(size=(8, 6)).astype("float32") * 3 + 5
    x[:, 1] = -2 * x[:, 0] + 1
    actual, _ = agree(
        lambda mesh: (
            None,
            lambda x: layers.correlation(x, mtf.rename(x, "d", "other"), "batch"),
        ),
        {"x": (x, "batch;d")},
        ["batch:x", "d:x", "d:x;batch:y", "other:x;d:y"],
    )
    np.testing.assert_allclose(actual, np.corrcoef(x.T), rtol=1e-4, atol=1e-4)
    assert actual[0, 1] == pytest.approx(-1, abs=1e-4)


def test_rows_that_both_have_are_paired(rng):
    x, y = rng.normal(size=(2, 8, 4)).astype("float32")
    actual, _ = agree(
        lambda mesh: (None, lambda x, y: layers.correlation(x, y, "batch")),
        {"x": (x, "batch;d"), "y": (y, "batch;d")},
        ["batch:x", "d:x;batch:y"],
    )
    np.testing.assert_allclose(
        actual,
        [np.corrcoef(x[:, i], y[:, i])[0, 1] for i in range(4)],
        rtol=1e-4,
        atol=1e-4,
    )


def test_what_does_not_vary_has_correlation_0():
    x = mtf.ones(mtf.Mesh(""), "batch:4;d:2")
    assert not layers.correlation(x, x, "batch").numpy().any()


def test_root_mean_square(rng):
    x = rng.normal(size=(4, 8)).astype("float32")
    actual, _ = agree(
        lambda mesh: (None, lambda x: layers.rms(x, "d")),
        {"x": (x, "batch;d")},
        ["batch:x", "d:x"],
    )
    np.testing.assert_allclose(actual, np.sqrt((x**2).mean(1)), rtol=1e-5)
