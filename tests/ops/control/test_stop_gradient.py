"""Recomputation but for the matrix products of some modules: the same numbers, fewer products."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import meshtf as mtf


class Layer(mtf.Module):
    """A residual layer of two modules with two products each."""

    def __init__(self, mesh, name=None):
        super().__init__(name)
        with self.scope():
            for part in ("first", "second"):
                feed_forward = mtf.layers.FeedForward(mesh, "d:6", "d_ff:8", name=part)
                setattr(self, part, feed_forward)

    def __call__(self, x):
        x = x + self.first(x)
        return x + mtf.tanh(self.second(x))


def training_step(stored, axes="", layout="", scanned=True, **settings):
    """Returns a function of the loss and the gradients of four layers."""
    mesh = mtf.Mesh(axes, layout, **settings)
    recomputed = stored is not None
    if scanned:
        model = mtf.layers.Repeat(
            lambda: Layer(mesh), "layers:4", recomputed=recomputed, stored=stored or ()
        )
        variables = model.trainable_variables
    else:
        layer = Layer(mesh)
        variables = layer.trainable_variables
        model = mtf.recompute(layer, stored) if recomputed else layer

    @mtf.function(mesh=mesh, x="batch;d")
    def step(x):
        loss = mtf.reduce_sum(mtf.square(model(x)))
        return [loss, *mtf.gradients([loss], variables)]

    return step


X = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
CASES = [None, "", "first", "first; second"]


@pytest.mark.parametrize("stored", CASES[1:])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"scanned": False},
        {"axes": "x:2;y:2", "layout": "batch:x;d_ff:y"},
        {"axes": "x:2;y:2", "layout": "batch:x;d_ff:y", "devices": "spmd:cpu:4"},
        {"axes": "stage:2;x:2", "layout": "layers:stage;batch:x", "microbatches": 2},
    ],
)
def test_the_numbers_do_not_change(stored, settings):
    scanned = settings.get("scanned", True)
    want = training_step(None, scanned=scanned)(X)
    for y, expected in zip(training_step(stored, **settings)(X), want):
        np.testing.assert_allclose(y.numpy(), expected.numpy(), rtol=2e-4, atol=1e-4)


def products(step):
    """Returns how many FLOPs einsums have, forward and backward."""
    flops = Counter()
    for op in step.explain(X).ops:
        if op.title == "einsum":
            flops[op.phase] += op.total
    return flops["backward"] / flops["forward"]


def test_stored_products_are_not_computed_again():
    by_choice = [products(training_step(stored)) for stored in CASES]
    assert by_choice == pytest.approx([2.0, 3.0, 2.5, 2.0], abs=0.26)
    assert by_choice == sorted(by_choice[:1]) + sorted(by_choice[1:], reverse=True)


def test_stored_products_need_memory():
    peaks = [
        mtf.explain(training_step(x), X, runtime="spmd").memory.peak for x in CASES[1:]
    ]
    assert peaks == sorted(peaks)
    assert peaks[0] < peaks[-1]


def test_a_name_of_no_module_is_an_error():
    with pytest.raises(mtf.PlanError, match="close to  second") as error:
        training_step("secnd")(X)
    assert "no module called 'secnd'" in str(error.value)
