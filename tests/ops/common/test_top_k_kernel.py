"""Zeros of both signs are equal: their indices ascend, with and without XLA."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf


def ordered(x):
    """What sorts, and the gradients, which depend on the indices."""
    values, indices = mtf.top_k(x, "d", "k:5")
    ascending = mtf.sort(x, "d")
    order = mtf.argsort(x, "d", descending=True)
    weights = mtf.range(x.mesh, "k:5", "float32") + 1.0
    (dx,) = mtf.gradients([mtf.reduce_sum(values * weights)], [x])
    # The reciprocals tell the signs of zeros.
    return [indices, mtf.argsort(x, "d"), order, dx, 1.0 / values, 1.0 / ascending]


@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
@pytest.mark.parametrize("layout", ["", "b:x", "d:x", "b:y;d:x"])
def test_zeros_of_both_signs_are_equal(devices, layout, rng):
    x = rng.choice([0.0, -0.0, 1.0, -1.0], size=(4, 12)).astype("float32")
    mesh = mtf.Mesh("x:4;y:2", layout, devices=devices)
    have = [y.numpy() for y in mtf.function(ordered, mesh=mesh, x="b;d")(x)]
    values, indices = tf.math.top_k(x, 5)
    ascending, order = tf.math.top_k(-x, 12)
    dx = np.zeros_like(x)
    np.put_along_axis(dx, indices.numpy(), np.arange(1, 6, dtype="float32"), axis=1)
    want = [indices, order, tf.math.top_k(x, 12)[1], dx, 1 / values, 1 / -ascending]
    for y, w in zip(have, want, strict=True):
        np.testing.assert_array_equal(y, w)
