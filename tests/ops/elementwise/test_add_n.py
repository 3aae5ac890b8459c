"""add_n: one sum of several tensors, in one pass."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf


@pytest.mark.parametrize("layout", ["", "a:x", "b:x"])
def test_sums_and_gradients(layout, rng):
    mesh = mtf.Mesh("x:2", layout)
    arrays = [rng.normal(size=(4, 6)).astype("float32") for _ in range(3)]
    xs = [mtf.asarray(mesh, a, "a;b") for a in arrays]
    xs[1] = mtf.transpose(xs[1], "b;a")
    y = mtf.add_n(xs)
    np.testing.assert_allclose(y.numpy(), sum(arrays), rtol=1e-5)
    dxs = mtf.gradients([y * y], xs)
    assert [dx.shape for dx in dxs] == [x.shape for x in xs]
    np.testing.assert_allclose(dxs[1].numpy(), 2 * sum(arrays).T, rtol=1e-5)
    assert mtf.add_n(xs[:1]) is xs[0]


def test_unfinished_sums_are_added_before_they_are_finished(rng):
    mesh = mtf.Mesh("x:2", "k:x")
    x = mtf.asarray(mesh, rng.normal(size=(4, 6)).astype("float32"), "a;k")

    @mtf.function
    def total(x):
        terms = [mtf.reduce_sum(x * float(n), "k") for n in (1, 2, 3)]
        return mtf.add_n(terms)

    assert total.lower(x).collectives == ["all_reduce over x of [a:4]"]


def test_what_is_refused():
    mesh = mtf.Mesh("")
    x, y = mtf.ones(mesh, "a:2;b:2"), mtf.ones(mesh, "a:2")
    with pytest.raises(mtf.ShapeError, match="(?s)same dimensions.*broadcast"):
        mtf.add_n([x, y])
    with pytest.raises(mtf.ShapeError, match="add_n of no tensors"):
        mtf.add_n([])
    with pytest.raises(mtf.DTypeError, match="do not mix"):
        mtf.add_n([x, mtf.cast(x, "int32")])
    with pytest.raises(mtf.DTypeError, match="does not take the type bool"):
        mtf.add_n([x > 0, x > 0])
