"""Reversible residuals against the same layers one by one, and gradients that are held
short.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshtf as mtf
from meshtf import layers
from tests.support.layer_agreement import agree, run

LAYOUTS = ["batch:x;f:y", "d:x;length:y", "length:x", "f:x;d:y"]


def one_by_one(functions, x1, x2, **kwargs):
    """Returns what `Reversible` returns."""
    for f in functions:
        x1, x2 = x2, x1 + f(x2, **kwargs)
    return x1, x2


def model(reversible, dropout=0.0):
    """Returns what makes two attention and two feed-forward layers of two streams."""

    def make(mesh):
        with mtf.scope("net"):
            functions = [
                f
                for i in range(2)
                for f in (
                    layers.FeedForward(
                        mesh, "d:8", "f:8", "gelu", dropout, name=f"ff_{i}"
                    ),
                    layers.MultiHeadAttention(
                        mesh, "d:8", "heads:2", "key:4", name=f"attention_{i}"
                    ),
                )
            ]
        both = layers.Reversible(functions)

        def call(x):
            way = (
                both
                if reversible
                else lambda *xs, **kw: one_by_one(functions, *xs, **kw)
            )
            y1, y2 = way(x, x * 0.5, training=True)
            return y1 * y2

        return both, call

    return make


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_reversible_layers_are_layers_one_by_one(rng, dropout):
    x = {"x": (rng.normal(size=(2, 4, 8)).astype("float32"), "batch;length;d")}
    y, grads = agree(
        model(True, dropout), x, LAYOUTS if dropout else LAYOUTS[:1], tolerance=1e-4
    )
    expected, want_grads = run(model(False, dropout), x)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    assert len(grads) == 2 * (2 + 4) + 1 and grads.keys() == want_grads.keys()
    for name, grad in want_grads.items():
        np.testing.assert_allclose(
            grads[name], grad, rtol=1e-3, atol=1e-4, err_msg=name
        )


def test_a_layer_that_stands_twice_gets_both_gradients(rng):
    mesh = mtf.Mesh("")
    dense = layers.FeedForward(mesh, "d:8", "f:8")
    x1, x2 = (
        mtf.asarray(mesh, a, "batch;d")
        for a in rng.normal(size=(2, 4, 8)).astype("float32")
    )
    results, want = (
        mtf.gradients([mtf.square(y) for y in ys], [x1, x2, *dense.trainable_variables])
        for ys in (
            layers.Reversible([dense, dense])(x1, x2),
            one_by_one([dense, dense], x1, x2),
        )
    )
    for have, expected in zip(results, want, strict=True):
        np.testing.assert_allclose(have.numpy(), expected.numpy(), rtol=1e-4, atol=1e-4)


def test_gradients_of_gradients(rng):
    """A gradient of f depends on what f was applied to."""
    mesh = mtf.Mesh("")
    functions = [layers.FeedForward(mesh, "d:8", "f:8", name=f"f{k}") for k in range(3)]
    variables = [v for f in functions for v in f.trainable_variables]
    x1, x2 = (
        mtf.asarray(mesh, a, "batch;d")
        for a in rng.normal(size=(2, 4, 8)).astype("float32")
    )
    squares = []
    for ys in (
        layers.Reversible(functions)(x1, x2),
        one_by_one(functions, x1, x2),
    ):
        first = mtf.gradients([mtf.sin(y) for y in ys], [x1, x2, *variables])
        loss = mtf.add_n([mtf.reduce_sum(mtf.square(g)) for g in first])
        squares.append(mtf.gradients([loss], [x1, x2, *variables]))
    for have, expected in zip(*squares, strict=True):
        np.testing.assert_allclose(have.numpy(), expected.numpy(), rtol=1e-4, atol=1e-4)


def test_gradients_within_recompute(rng):
    mesh = mtf.Mesh("")
    functions = [layers.FeedForward(mesh, "d:8", "f:8", name=f"f{k}") for k in range(2)]
    x = mtf.asarray(mesh, rng.normal(size=(4, 8)).astype("float32"), "batch;d")
    results = []
    for apply in (
        layers.Reversible(functions),
        functools.partial(one_by_one, functions),
    ):
        ys = mtf.recompute(lambda x, apply=apply: apply(x * 1.0, x * 0.5))(x)
        results += mtf.gradients([mtf.sin(y) for y in ys], [x])
    np.testing.assert_allclose(results[0].numpy(), results[1].numpy(), rtol=1e-5)


def test_one_result_alone_and_functions_without_variables():
    mesh = mtf.Mesh("")
    x1 = mtf.ones(mesh, "d:4")
    x2 = mtf.ones(mesh, "d:4") * 3.0
    y1, _ = layers.Reversible([mtf.square, lambda x: mtf.stop_gradient(x)])(x1, x2)
    d1, d2 = mtf.gradients([y1], [x1, x2])  # y1 = x1 + x2 ** 2
    np.testing.assert_array_equal(d1.numpy(), np.ones(4))
    np.testing.assert_array_equal(d2.numpy(), np.full(4, 6.0))


def test_memory_does_not_grow_with_the_number_of_layers():
    def activations(count, reversible):
        mesh = mtf.Mesh("x:2", "batch:x", devices="abstract")
        functions = [
            layers.FeedForward(mesh, "d:8", "f:32", name=f"ff_{i}")
            for i in range(count)
        ]
        both = layers.Reversible(functions)

        @mtf.function(mesh=mesh, x="batch;d")
        def step(x):
            ys = both(x, x) if reversible else one_by_one(functions, x, x)
            return mtf.gradients([mtf.square(y) for y in ys], both.trainable_variables)

        memory = mtf.explain(step, np.zeros((4096, 8), "float32")).memory
        return memory.peak - memory.parameters - memory.gradients

    assert activations(8, True) < 1.1 * activations(2, True)
    assert activations(8, False) > 2 * activations(2, False)


@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_clipped_gradients(rng, limit):
    x = rng.normal(size=(4, 8)).astype("float32")
    y, grads = agree(
        lambda mesh: (None, lambda x: layers.clip_gradient(x, limit)),
        {"x": (x, "batch;d")},
        ["batch:x", "d:x;batch:y"],
    )
    np.testing.assert_array_equal(y, x)
    _, plain_grads = run(lambda mesh: (None, lambda x: x * 1.0), {"x": (x, "batch;d")})
    size = np.sqrt((plain_grads["x"] ** 2).mean())
    limit = limit * size if limit > 1 else limit
    np.testing.assert_allclose(
        grads["x"], plain_grads["x"] * min(1.0, limit / size), rtol=1e-5
    )


def test_a_clipped_gradient_of_zero_is_zero():
    x = mtf.ones(mtf.Mesh(""), "d:4")
    (dx,) = mtf.gradients([layers.clip_gradient(x, 1.0) * 0.0], [x])
    np.testing.assert_array_equal(dx.numpy(), np.zeros(4))
