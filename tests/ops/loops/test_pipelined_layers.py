"""Custom gradients in the layers of a pipeline: what needs the entire batch is refused."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf

X = np.random.default_rng(0).normal(size=(8, 3))


def gradient_of(rule, microbatches):
    """Returns the gradient of a scan whose layers have a custom gradient rule."""
    mesh = mtf.Mesh("stage:2", "layers:stage", microbatches=microbatches)
    w = mtf.Variable(mesh, "layers:4; d:3", "ones", dtype="float64", name="w")

    @mtf.custom_gradient
    def identity(y, w):
        return y * w, lambda dy: rule(dy, y, w)

    @mtf.function(mesh=mesh, x="batch; d")
    def step(x):
        h, _ = mtf.scan(lambda h, w: (mtf.sin(identity(h, w)), None), x, w, "layers")
        return mtf.gradients([mtf.reduce_sum(mtf.square(h))], [w, x])

    return [g.numpy() for g in step(X)]


def exact(dy, y, w):
    return [dy * w, mtf.reduce_sum(dy * y, "batch")]


def clipped(dy, y, w):
    return [mtf.clip(dy, -0.1, 0.1) * w, mtf.reduce_sum(mtf.tanh(dy) * y, "batch")]


@pytest.mark.parametrize("rule", [exact, clipped])
def test_rules_of_single_examples(rule):
    expected = gradient_of(rule, microbatches=1)
    for gradient, value in zip(gradient_of(rule, microbatches=4), expected):
        np.testing.assert_allclose(gradient, value, rtol=1e-10)


def centred(dy, y, w):
    return [dy - mtf.reduce_mean(dy, "batch"), mtf.reduce_sum(dy, "batch")]


def divided(dy, y, w):
    return [dy / y.shape["batch"], mtf.reduce_sum(dy, "batch")]


def averaged(dy, y, w):
    return [dy, mtf.reduce_mean(dy, "batch")]


@pytest.mark.parametrize(
    "rule, message",
    [
        (centred, "subtract does not map along 'batch'"),
        (divided, "depends on the size of 'batch' as a number"),
        (averaged, "the gradient of a rule is a mean over it"),
    ],
)
def test_rules_that_need_the_entire_batch_are_refused(rule, message):
    with pytest.raises(mtf.PlanError, match=message) as e:
        gradient_of(rule, microbatches=4)
    assert 'with mtf.layout("layers:")' in str(e.value)
