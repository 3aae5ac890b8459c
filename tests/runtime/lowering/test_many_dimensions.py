"""Ops on tensors of more dimensions than TensorFlow's kernels take."""

from __future__ import annotations

import string

import numpy as np
import pytest

import meshtf as mtf

# Functions of [a b c ...], of which some name "d".
FUNCTIONS = {
    "erf": mtf.math.erf,
    "relu": mtf.relu,
    "gelu": mtf.gelu,
    "silu": mtf.silu,
    "softplus": mtf.softplus,
    "elu": mtf.elu,
    "leaky_relu": mtf.leaky_relu,
    "clip": lambda x: mtf.clip(x, -0.5, 0.5),
    "reduce_max": lambda x: mtf.reduce_max(x, "d"),
    "softmax": lambda x: mtf.softmax(x, "d"),
    "log_softmax": lambda x: mtf.log_softmax(x, "d"),
    "slice": lambda x: mtf.slice(x, "d", 1, 1),
    "pad": lambda x: mtf.pad(x, "d", 1, 2),
    "stack": lambda x: mtf.stack([x, 2.0 * x], "new", axis=4),
    "unstack": lambda x: mtf.unstack(x, "d")[1],
    "concat": lambda x: mtf.concat([x, x * x], "d"),
    "cumsum": lambda x: mtf.cumsum(x, "d"),
    "sort": lambda x: mtf.sort(x, "d"),
    "argmax": lambda x: x * mtf.cast(mtf.argmax(x, "d"), "float64"),
    "where": lambda x: mtf.where(x > 0.1, x * x, 0.0),
}


@pytest.mark.parametrize("layout", ["c:x", "d:x", "j:x"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_many_dimensions(name, layout):
    function = FUNCTIONS[name]
    # "d" has three elements, which two devices pad.
    sizes = [2, 2, 2, 3, 2, 2, 2, 2, 2, 2, 2]
    x = np.random.default_rng(0).normal(size=sizes)
    total, dx = _run(function, x, list(string.ascii_lowercase[:11]), layout)
    # The same elements in three dimensions, on one device.
    few = _run(function, x.reshape(8, 3, 128), ["before", "d", "after"], "")
    assert total == pytest.approx(few[0], rel=1e-12)
    np.testing.assert_allclose(dx.ravel(), few[1].ravel(), rtol=1e-9, atol=1e-12)


def _run(function, x, names, layout):
    """Returns the sum of the sine of a function, and its gradient."""
    mesh = mtf.Mesh("x:2", layout)

    @mtf.function
    def run(x):
        total = mtf.reduce_sum(mtf.sin(function(x)))
        return [total, *mtf.gradients([total], [x])]

    return [y.numpy() for y in run(mtf.asarray(mesh, x, list(zip(names, x.shape))))]
