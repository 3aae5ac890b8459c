"""Einsum and matmul: contractions by names, against NumPy, and their errors."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from tests.support.refusals import refuses


@pytest.fixture(params=["", "k:x", "a:x; b:y", "b:x"])
def mesh(request):
    return mtf.Mesh("x:2;y:2", request.param)


@pytest.mark.parametrize("names", ["a;b", "b;a", "g;a;b", "a;k;b", "k", "b", ""])
def test_products_by_names(mesh, rng, names):
    a, b = rng.normal(size=(3, 4, 2)), rng.normal(size=(2, 4, 6))
    x = mtf.asarray(mesh, a.astype("float32"), "g:3;k:4;a:2")
    y = mtf.asarray(mesh, b.astype("float32"), "a:2;k:4;b:6")
    want = np.einsum(f"gka,akb->{names.replace(';', '')}", a, b)
    np.testing.assert_allclose(
        mtf.einsum([x, y], names).numpy(), want, rtol=1e-5, atol=1e-5
    )


def test_one_tensor_and_three(mesh, rng):
    a, b, c = (rng.normal(size=s).astype("float32") for s in ((2, 4), (4, 6), (6, 2)))
    x, y, z = (mtf.asarray(mesh, v, n) for v, n in ((a, "a;k"), (b, "k;b"), (c, "b;c")))
    np.testing.assert_allclose(mtf.einsum([x], "k;a").numpy(), a.T)
    np.testing.assert_allclose(
        mtf.einsum([x, y, z], "c;a").numpy(), (a @ b @ c).T, rtol=1e-4, atol=1e-5
    )


def test_matmul(mesh, rng):
    a, b = rng.normal(size=(3, 2, 4)), rng.normal(size=(4, 6))
    x = mtf.asarray(mesh, a.astype("float32"), "g;a;k")
    y = mtf.asarray(mesh, b.astype("float32"), "k;b")
    z = mtf.matmul(x, y)
    assert z.shape == mtf.Shape("g:3;a:2;b:6")
    np.testing.assert_allclose(z.numpy(), a @ b, rtol=1e-5, atol=1e-5)
    with refuses(mtf.ShapeError, "share 2", "mtf.einsum"):
        mtf.matmul(y, mtf.rename(z, "a", "k"))


def test_what_is_refused():
    mesh = mtf.Mesh("")
    x, y = mtf.ones(mesh, "batch:2;d_model:4"), mtf.ones(mesh, "d_model:4;d_ff:6")
    with refuses(
        mtf.ShapeError, 'no input has the dimension "dff"', "Did you mean d_ff"
    ):
        mtf.einsum([x, y], "batch;dff")
    with refuses(mtf.ShapeError, '"d_model" has size 4 in one input and 5 in another'):
        mtf.einsum([x, mtf.ones(mesh, "d_model:5;d_ff:6")], "batch;d_ff")
    with refuses(mtf.DTypeError, "bfloat16 and float32", "mtf.cast"):
        mtf.einsum([x, mtf.cast(y, "bfloat16")], "batch;d_ff")
