"""Tensors that XLA computes once: on CPUs the hashes of a dropout mask's indices, and on all
devices what gradients compare with its extremes.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

import meshtf as mtf
from meshtf.runtime.lowering.filled_padding import poisoned_padding
from tests.fuzz.exporting import run_module

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
    (module,) = f.lower(X, 5).live_executable._modules.values()
    hlo = module.compiled.hlo
    assert len(FACTOR.findall(hlo)) == 4  # of two hashes, one after the other
    for live, placed in zip(outputs[:2], dropout_with_gradient(None)(X, 5)[:2]):
        np.testing.assert_array_equal(live.numpy(), placed.numpy())


def test_modules_for_any_devices_leave_the_choice_to_xla():
    f = dropout_with_gradient(None)
    assert b"inlineable" not in mtf.export(f, X, np.int32(5)).module


def sums_of_waves(w):
    """Returns x [t d], which XLA would compute anew, with other roundings, in each kernel that
    reads it.
    """
    h = w * 1.0
    squares = mtf.einsum([h, h], "t")
    v = h + 0.3 * mtf.sin(mtf.tanh(0.3 * squares))
    v = v + 0.3 * mtf.sin(mtf.where(h > 0.25, 2 * h, h))
    p = h + 0.3 * mtf.sin(v)
    q = h + 0.3 * mtf.sin(p)
    return h + 0.3 * mtf.sin(p) + 0.3 * mtf.sin(q)


def by_parity(function):
    """Returns a function of x [t d] that reduces the elements of even and of odd index."""

    def reduce(x, dim):
        return function(x, mtf.range(x.mesh, x.shape.dim(dim)) % 2, "parity:2")

    return reduce


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", ["live", "exported"])
@pytest.mark.parametrize(
    "function, layout, seed",
    [
        (mtf.reduce_max, "d:data", 4),
        (mtf.reduce_min, "d:data", 6),
        (by_parity(mtf.math.segment_max), "d:data", 4),
        (by_parity(mtf.math.segment_min), "d:data", 6),
        (mtf.math.cummax, "", 8),
        (mtf.math.cummin, "", 6),
    ],
    ids=["max", "min", "segment_max", "segment_min", "cummax", "cummin"],
)
def test_gradients_find_the_extremes_of_what_xla_would_compute_twice(
    function, layout, seed, kind
):
    w = np.random.default_rng(seed).normal(size=(3, 5))

    def gradient(w):
        extremes = function(sums_of_waves(w), "d")
        return mtf.gradients([mtf.reduce_mean(mtf.sin(extremes))], [w])

    one = mtf.asarray(mtf.Mesh(""), w, "t;d")
    (want,) = mtf.function(gradient)(one)
    devices = "spmd:cpu" if kind == "live" else None
    mesh = mtf.Mesh("data:4", layout, devices=devices)
    x = mtf.asarray(mesh, w, "t;d")
    with poisoned_padding(13):
        if kind == "live":
            (have,) = mtf.function(gradient)(x)
        else:
            (have,) = run_module(gradient, mesh, [x])
    np.testing.assert_allclose(have.numpy(), want.numpy(), rtol=1e-9, atol=1e-12)
