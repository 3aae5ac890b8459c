"""LAMB against the formulas of its paper in numpy, under many layouts."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf import optimizers
from meshtf.layers import initializers
from tests.support.optimizer_steps import LAYOUTS, SHAPES, train


class Paper:
    """Algorithm 2 of arXiv 1904.00962 for one variable."""

    def __init__(
        self, value, rate, decay, adapted, beta_1=0.9, beta_2=0.999, epsilon=1e-6
    ):
        self.x = value.astype("float64")
        self.t = 0
        self.m = 0.0
        self.v = 0.0
        self.rate = rate
        self.decay = decay
        self.adapted = adapted
        self.epsilon = epsilon
        self.beta_1 = beta_1
        self.beta_2 = beta_2

    def step(self, g):
        """Updates x."""
        self.t += 1
        self.m = self.beta_1 * self.m + (1 - self.beta_1) * g
        self.v = self.beta_2 * self.v + (1 - self.beta_2) * g**2
        m = self.m / (1 - self.beta_1**self.t)
        v = self.v / (1 - self.beta_2**self.t)
        r = m / (np.sqrt(v) + self.epsilon)
        if self.adapted:
            r = r + self.decay * self.x
            r = r * (np.linalg.norm(self.x) / np.linalg.norm(r))
        self.x = self.x - self.rate * r


@pytest.mark.parametrize("beta_1", [0.9, 0.0])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_updates_are_the_papers_under_every_layout(layout, beta_1, rng):
    before, after, gradients = train(
        lambda variables: optimizers.LAMB(variables, 0.1, 0.5, beta_1, 0.99),
        LAYOUTS[layout],
        rng,
    )
    for i, (name, start, value) in enumerate(zip(SHAPES, before, after)):
        paper = Paper(start, 0.1, 0.5, start.ndim > 1, beta_1, 0.99)
        for grads in gradients:
            paper.step(grads[i].astype("float64"))
        np.testing.assert_allclose(
            value - start, paper.x - start, rtol=2e-3, atol=2e-6, err_msg=name
        )


def test_variables_that_do_not_decay_are_updated_as_by_adam(rng):
    grads = rng.normal(size=(3, 4, 6)).astype("float32")
    results = []
    for optimizer in (
        lambda vs: optimizers.LAMB(
            vs, 0.1, epsilon=1e-8, decay_mask=optimizers.exclude_names("w")
        ),
        lambda vs: optimizers.Adam(vs, 0.1),
    ):
        mesh = mtf.Mesh("x:2", "a:x")
        variable = mtf.Variable(mesh, "a:4;b:6", initializers.ones, "w")
        one = optimizer([variable])
        for step, grad in enumerate(grads):
            one.apply_gradients(
                [mtf.asarray(mesh, grad, "a;b")],
                [variable],
                mtf.asarray(mesh, np.int32(step), ""),
            )
        results.append(variable.numpy())
    np.testing.assert_allclose(*results, rtol=1e-4)


@pytest.mark.parametrize("value, grad", [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_norms_of_zero_scale_nothing(value, grad):
    mesh = mtf.Mesh("")
    variable = mtf.Variable(mesh, "a:4;b:6", initializers.constant(value), "w")
    optimizers.LAMB([variable], 0.1, weight_decay=0.0).apply_gradients(
        [mtf.full(mesh, variable.shape, grad)],
        [variable],
        mtf.full(mesh, "", 0, "int32"),
    )
    np.testing.assert_allclose(
        variable.numpy(), np.full((4, 6), value - 0.1 * grad), atol=1e-6
    )


def test_half_floats_are_updated_in_float32():
    mesh = mtf.Mesh("")
    variable = mtf.Variable(
        mesh,
        "a:4;b:6",
        lambda *args: mtf.ones(mesh, "a:4;b:6", "bfloat16"),
        "w",
        dtype="bfloat16",
    )
    optimizer = optimizers.LAMB([variable], 0.5)
    optimizer.apply_gradients(
        [mtf.ones(mesh, variable.shape, "bfloat16")],
        [variable],
        mtf.full(mesh, "", 0, "int32"),
    )
    assert {slot.dtype for slot in optimizer.variables} == {"float32"}
    np.testing.assert_array_equal(
        variable.numpy().astype("float32"), np.full((4, 6), 0.5)
    )
