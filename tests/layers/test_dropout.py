"""Noise of training: shares, masks that serve many rows, rates that fall, all layouts
alike.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import layers
from tests.support.layer_agreement import agree
from tests.support.refusals import refuses


def step_at(mesh, step):
    return mtf.asarray(mesh, np.int32(step), "")


@pytest.mark.parametrize(
    "step, rate", [(0, 0.5), (10, 0.5), (15, 0.25), (20, 0.0), (99, 0.0)]
)
def test_the_rate_of_annealed_dropout_falls(step, rate):
    mesh = mtf.Mesh("x:2", "b:x")
    drop = layers.AnnealedDropout(0.5, 10, 20)
    x = mtf.ones(mesh, "b:64;d:64")
    assert drop(x, step_at(mesh, step)) is x
    with mtf.seed(0):
        output = drop(x, step_at(mesh, step), training=True).numpy()
    assert set(np.unique(output)) <= {np.float32(0), np.float32(1 / (1 - rate))}
    assert (output == 0).mean() == pytest.approx(rate, abs=0.03)


def test_one_mask_serves_all_rows_of_names_that_are_broadcast():
    mesh = mtf.Mesh("x:2", "length:x")
    drop = layers.AnnealedDropout(0.5, 10, 20, broadcast="length")
    with mtf.seed(0):
        output = drop(
            mtf.ones(mesh, "b:8;length:4;d:8"), step_at(mesh, 0), training=True
        ).numpy()
    assert (output == output[:, :1]).all() and np.ptp(output, axis=(0, 2)).all()


@pytest.mark.parametrize(
    "noise",
    [
        lambda x: layers.AnnealedDropout(0.5, 10, 20)(
            x, mtf.full(x.mesh, "", 15, "int32"), True
        ),
        lambda x: layers.multiplicative_jitter(x, 0.5),
        lambda x: layers.add_noise(x, 0.5),
    ],
    ids=["annealed dropout", "jitter", "noise"],
)
def test_every_layout_draws_the_same(rng, noise):
    x = rng.normal(size=(4, 8)).astype("float32")
    agree(lambda mesh: (None, noise), {"x": (x, "b;d")}, ["b:x", "b:y;d:x"])


def test_jitter_and_noise_have_the_size_that_was_asked_for():
    x = mtf.full(mtf.Mesh(""), "b:64;d:64", 3.0)
    assert layers.multiplicative_jitter(x, 0.0) is x and layers.add_noise(x, 0.0) is x
    with mtf.seed(0):
        jittered = layers.multiplicative_jitter(x, 0.1).numpy() / 3
        noise = layers.add_noise(x, 0.1).numpy() - 3
    assert 0.9 <= jittered.min() < 0.901 and 1.099 < jittered.max() <= 1.1
    assert noise.std() == pytest.approx(0.1, rel=0.05) and abs(noise.mean()) < 0.01


def test_rates_and_steps_that_are_none_are_refused():
    for arguments in ((1.0, 0, 9), (-0.1, 0, 9), (0.5, 9, 9)):
        with refuses(mtf.PlanError, "a dropout rate is at least 0 and below 1"):
            layers.AnnealedDropout(*arguments)
