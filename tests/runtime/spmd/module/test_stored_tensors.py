"""Tensors that XLA on CPUs computes once: the hashes of a dropout mask's indices."""

from __future__ import annotations

import re

import numpy as np

import meshtf as mtf

X = np.linspace(-1, 1, 8 * 6, dtype="float32").reshape(8, 6)
# A factor of the hashes of a shard's indices, 8 / 2 + 6, two for each.
FACTOR = re.compile(r"= u32\[2,10\]\S* multiply\(")


def dropout_with_gradient(devices):
    """Returns a function (x, step) of (x with dropout, the gradient by x of its squares)."""
    mesh = mtf.Mesh("data:2", "batch:data", devices=devices)

    @mtf.function(mesh=mesh, x="batch;d", step="")
    def f(x, step):
        y = mtf.dropout(x, 0.5, seed=[3, step])
        squares = mtf.reduce_sum(y * y)
        (gradient,) = mtf.gradients([squares], [x])
        return y, gradient, squares

    return f


def test_indices_are_hashed_once_forward_and_backward():
    f = dropout_with_gradient("spmd:cpu")
    outputs = f(X, 5)
    hlo = f.lower(X, 5).live_executable._module_call.hlo
    assert len(FACTOR.findall(hlo)) == 4  # of two hashes, one after the other
    for live, placed in zip(outputs[:2], dropout_with_gradient(None)(X, 5)[:2]):
        np.testing.assert_array_equal(live.numpy(), placed.numpy())


def test_modules_for_any_devices_leave_the_choice_to_xla():
    f = dropout_with_gradient(None)
    assert b"inlineable" not in mtf.export(f, X, np.int32(5)).module
