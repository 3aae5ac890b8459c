"""Custom gradients in the layers of a pipeline: what needs the entire batch is refused."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf

X = np.random.default_rng(0).normal(size=(8, 3))


def gradient_of(rule, microbatches, within=None):
    """Returns the gradient of a scan whose layers have a custom gradient rule.

    Args:
      rule: the rule of y * w: a function of dy, y and w that returns [dy's, dw].
      microbatches: their number.
      within: a function that calls the function with the rule, such as in a loop.
    """
    mesh = mtf.Mesh("stage:2", "layers:stage", microbatches=microbatches)
    w = mtf.Variable(mesh, "layers:4; d:3", "ones", dtype="float64", name="w")

    @mtf.custom_gradient
    def identity(y, w):
        return y * w, lambda dy: rule(dy, y, w)

    def layer(h, w):
        h = within(identity, h, w) if within else identity(h, w)
        return mtf.sin(h), None

    @mtf.function(mesh=mesh, x="batch; d")
    def step(x):
        h, _ = mtf.scan(layer, x, w, "layers")
        return mtf.gradients([mtf.reduce_sum(mtf.square(h))], [w, x])

    return [g.numpy() for g in step(X)]


def exact(dy, y, w):
    return [dy * w, mtf.reduce_sum(dy * y, "batch")]


def clipped(dy, y, w):
    return [mtf.clip(dy, -0.1, 0.1) * w, mtf.reduce_sum(mtf.tanh(dy) * y, "batch")]


def in_a_loop(identity, h, w):
    return mtf.scan(lambda h, _: (identity(h, w), None), h, length=2)[0]


def in_loops(identity, h, w):
    return mtf.scan(lambda h, _: (in_a_loop(identity, h, w), None), h, length=2)[0]


def recomputed(identity, h, w):
    return mtf.recompute(identity)(h, w)


@pytest.mark.parametrize("within", [None, in_a_loop, in_loops, recomputed])
@pytest.mark.parametrize("rule", [exact, clipped])
def test_rules_of_single_examples(rule, within):
    expected = gradient_of(rule, microbatches=1, within=within)
    for gradient, value in zip(gradient_of(rule, 4, within), expected):
        np.testing.assert_allclose(gradient, value, rtol=1e-10)


def of_weights(rule):
    """Returns what gives w a gradient rule of its own, in place of that of y * w."""

    @mtf.custom_gradient
    def identity(w):
        return w + 0.0, lambda dw: rule(dw)

    return lambda _, h, w: h * identity(w)


def test_a_linear_rule_of_weights():
    within = of_weights(lambda dw: dw * 2.0)
    expected = gradient_of(exact, 1, within)
    for gradient, value in zip(gradient_of(exact, 4, within), expected):
        np.testing.assert_allclose(gradient, value, rtol=1e-10)


@pytest.mark.parametrize(
    "rule, message",
    [
        (lambda dw: mtf.clip(dw, -0.1, 0.1), "clip does not map along 'batch'"),
        (mtf.ones_like, "the gradient of a rule does not depend on it"),
    ],
)
def test_rules_of_the_sum_over_microbatches_are_refused(rule, message):
    with pytest.raises(mtf.PlanError, match=message):
        gradient_of(exact, 4, of_weights(rule))


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
@pytest.mark.parametrize("within", [None, in_a_loop, in_loops, recomputed])
def test_rules_that_need_the_entire_batch_are_refused(rule, message, within):
    with pytest.raises(mtf.PlanError, match=message) as e:
        gradient_of(rule, microbatches=4, within=within)
    assert 'with mtf.layout("layers:")' in str(e.value)
