"""Broadcasting by names of many dimensions: TensorFlow's kernels take five groups of axes."""

from __future__ import annotations

import string

import numpy as np
import pytest

import meshtf as mtf

# Functions of [all dimensions], [every second one], [every third one].
FUNCTIONS = {
    "add": lambda x, y, z: x + y,
    "multiply": lambda x, y, z: y * x,
    "maximum": lambda x, y, z: mtf.maximum(x, y),
    "pow": lambda x, y, z: mtf.exp(x) ** y,
    "logaddexp": lambda x, y, z: mtf.math.logaddexp(x, z),
    "where": lambda x, y, z: mtf.where(x > 0.0, y, z),
    "where number": lambda x, y, z: mtf.where(y > 0.0, x, 0.0),
    "compare": lambda x, y, z: mtf.cast(z < x, "float64") * x,
    "broadcast": lambda x, y, z: mtf.broadcast(z, x.shape) * x,
    "einsum": lambda x, y, z: mtf.einsum([x, y], x.shape),
    "complex": lambda x, y, z: abs(mtf.math.complex(x, y)),
}


@pytest.mark.parametrize("rank", [6, 9, 12])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_dimensions_that_alternate(name, rank):
    names = string.ascii_lowercase[:rank]
    letters = [names, names[::2], names[::3]]
    rng = np.random.default_rng(rank)
    arrays = [rng.normal(size=[2] * len(shape)) for shape in letters]
    # One dimension, of which all operands have all elements.
    repeated = [
        np.broadcast_to(
            x.reshape([2 if a in shape else 1 for a in names]), [2] * rank
        ).ravel()
        for x, shape in zip(arrays, letters)
    ]
    flat = ["n"] * len(arrays)
    expected, *expected_gradients = _run(FUNCTIONS[name], repeated, flat, "")

    total, *gradients = _run(FUNCTIONS[name], arrays, letters, "c:x")

    assert total == pytest.approx(expected, rel=1e-12)
    for dx, expected_dx, shape in zip(gradients, expected_gradients, letters):
        if expected_dx is None:
            assert dx is None
            continue
        absent = [k for k, a in enumerate(names) if a not in shape]
        summed = expected_dx.reshape([2] * rank).sum(tuple(absent))
        np.testing.assert_allclose(dx, summed, rtol=1e-9, atol=1e-12)


def _run(function, arrays, letters, layout):
    """Returns the sum of the sine of a function, and the gradient of each operand.

    Args:
        function: The function.
        arrays: Its operands.
        letters: For each of them, a letter for each axis.
        layout: The layout on a mesh of two devices.
    """
    mesh = mtf.Mesh("x:2", layout)
    xs = [
        mtf.asarray(mesh, x, list(zip(names, x.shape)))
        for x, names in zip(arrays, letters)
    ]

    @mtf.function
    def run(x, y, z):
        total = mtf.reduce_sum(mtf.sin(function(x, y, z)))
        return [total, *mtf.gradients([total], [x, y, z])]

    return [None if x is None else x.numpy() for x in run(*xs)]
