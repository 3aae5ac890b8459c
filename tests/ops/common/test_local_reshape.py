"""Functions element by element of tensors of many axes, as an import of windows makes them."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf

LETTERS = "abcdefghij"
SHAPE = "; ".join(f"{letter}:2" for letter in LETTERS)
X = np.random.default_rng(0).normal(size=[2] * len(LETTERS))
FUNCTIONS = {
    "erf": (mtf.math.erf, 1),
    "gelu": (mtf.gelu, 1),
    "relu": (mtf.relu, 1),
    "elu": (mtf.elu, 1),
    "silu": (mtf.silu, 1),
    "softplus": (mtf.softplus, 1),
    "leaky_relu": (lambda x: mtf.leaky_relu(x, 0.1), 1),
    "clip": (lambda x: mtf.clip(x, -1.0, 1.0), 1),
    "where": (lambda x, y: mtf.where(y > 0, x, y), 2),
    "maximum": (mtf.maximum, 2),
    "power": (lambda x, y: mtf.abs(x) ** y, 2),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_ten_axes(name, dtype) -> None:
    """Values and gradients are those of the same elements in two axes."""
    function, arity = FUNCTIONS[name]
    mesh = mtf.Mesh("data:2; model:2", "a:data; j:model")

    @mtf.function
    def run(*xs):
        y = function(*xs)
        return y, mtf.gradients([mtf.reduce_sum(mtf.square(y))], xs)

    many = [X.astype(dtype), X[:, 1].astype(dtype)][:arity]
    shapes = [SHAPE, SHAPE.replace("b:2; ", "")]
    y, dxs = run(*(mtf.asarray(mesh, x, s) for x, s in zip(many, shapes)))
    # The same with the axes "c" to "i" as one.
    few = [x.reshape(*x.shape[:-8], 2**7, 2) for x in many]
    shapes = ["a:2; b:2; rest:128; j:2", "a:2; rest:128; j:2"]
    z, dzs = run(*(mtf.asarray(mesh, x, s) for x, s in zip(few, shapes)))
    for have, expected in zip([y, *dxs], [z, *dzs]):
        ours, theirs = have.numpy().ravel(), expected.numpy().ravel()
        np.testing.assert_allclose(ours, theirs, 1e-6, 1e-6)
