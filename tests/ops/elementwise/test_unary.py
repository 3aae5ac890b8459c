"""Functions of one tensor: special values, and gradients at singular points."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf


@pytest.fixture(params=["", "b:x", "d:x"])
def mesh(request):
    return mtf.Mesh("x:2", layout=request.param)


def put(mesh, value, shape, dtype="float32"):
    return mtf.asarray(mesh, np.asarray(value, dtype), shape)


def gradient(y, *xs):
    return [dx.numpy() for dx in mtf.gradients([y], xs)]


SINGULAR = [
    ("log", mtf.log, lambda x: x > 0, [0, -1, 2]),
    ("sqrt", mtf.sqrt, lambda x: x > 0, [0, -1, 2]),
    ("rsqrt", mtf.rsqrt, lambda x: x > 0, [0, -1, 2]),
    ("log1p", mtf.math.log1p, lambda x: x > -1, [-1, -2, 1]),
    ("reciprocal", mtf.math.reciprocal, lambda x: x != 0, [0, 0, 2]),
    ("1 / x", lambda x: 1.0 / x, lambda x: x != 0, [0, 0, 2]),
    ("x / x", lambda x: x / x, lambda x: x != 0, [0, 0, 2]),
    ("x ** 0.5", lambda x: x**0.5, lambda x: x > 0, [0, 0, 4]),
    ("x ** -1", lambda x: x**-1, lambda x: x != 0, [0, 0, 4]),
    ("x ** x", lambda x: x**x, lambda x: x > 0, [0, -0.5, 2]),
    ("2 ** x", lambda x: 2.0**x, lambda x: x < 80, [1000, 200, 1]),
    ("exp", mtf.exp, lambda x: x < 80, [1000, 90, 1]),
    ("expm1", mtf.math.expm1, lambda x: x < 80, [1000, 90, 1]),
    ("sinh", mtf.math.sinh, lambda x: x < 80, [1000, 90, 1]),
    ("cosh", mtf.math.cosh, lambda x: x < 80, [1000, 90, 1]),
    ("asin", mtf.math.asin, lambda x: mtf.abs(x) < 1, [1, 2, 0.5]),
    ("acos", mtf.math.acos, lambda x: mtf.abs(x) < 1, [1, 2, 0.5]),
    ("erfinv", mtf.math.erfinv, lambda x: mtf.abs(x) < 1, [1, -1, 0.5]),
    ("lgamma", mtf.math.lgamma, lambda x: x > 0, [0, -1, 2]),
    ("digamma", mtf.math.digamma, lambda x: x > 0, [0, -1, 2]),
    ("atan2", lambda x: mtf.math.atan2(x, x), lambda x: x != 0, [0, 0, 2]),
]


@pytest.mark.parametrize(
    "fn, chosen, at", [row[1:] for row in SINGULAR], ids=[row[0] for row in SINGULAR]
)
def test_one_where_is_enough_around_a_singular_point(fn, chosen, at):
    x = put(mtf.Mesh("x:3", "d:x"), at, "d:3")
    y = mtf.where(chosen(x), fn(x), 0.0)
    assert np.isfinite(y.numpy()).all()
    (dx,) = gradient(y, x)
    one_element = put(mtf.Mesh(""), at[2:], "d:1")
    np.testing.assert_array_equal(
        dx, [0, 0, *gradient(fn(one_element), one_element)[0]]
    )


def test_at_a_singular_point_that_counts_the_gradient_is_infinite(mesh):
    x = put(mesh, [[0.0, 0.0], [1.0, 4.0]], "b:2;d:2")
    for fn, far in (
        (mtf.log, [1, 0.25]),
        (mtf.sqrt, [0.5, 0.25]),
        (lambda x: x**0.5, [0.5, 0.25]),
    ):
        (dx,) = gradient(fn(x), x)
        assert dx[0].tolist() == [np.inf, np.inf]
        np.testing.assert_allclose(dx[1], far)


def test_no_nan_comes_from_the_branch_not_taken(mesh):
    x = put(mesh, [[-1.0, 0.0], [1.0, 4.0]], "b:2;d:2")
    is_positive = x > 0
    safe = mtf.where(is_positive, x, 1.0)
    (dx,) = gradient(mtf.where(is_positive, mtf.sqrt(safe), x), x)
    np.testing.assert_allclose(dx, [[1, 1], [0.5, 0.25]])
    nan = put(mesh, np.full([2, 2], np.nan), "b:2;d:2")
    dx, dnan = gradient(mtf.where(is_positive, x, nan), x, nan)
    np.testing.assert_array_equal(dx, [[0, 0], [1, 1]])
    np.testing.assert_array_equal(dnan, [[1, 1], [0, 0]])


def test_special_values(mesh):
    inf, nan = np.inf, np.nan
    x = put(mesh, [[nan, inf], [-inf, -2.5]], "b:2;d:2")
    assert mtf.is_nan(x).numpy().tolist() == [[True, False], [False, False]]
    assert mtf.is_finite(x).numpy().tolist() == [[False, False], [False, True]]
    assert mtf.ceil(x).numpy()[1].tolist() == [-inf, -2]
    y = put(mesh, [[0, inf], [-inf, 3]], "b:2;d:2")
    np.testing.assert_allclose(
        mtf.math.logaddexp(x, y).numpy(), [[nan, inf], [-inf, np.logaddexp(-2.5, 3)]]
    )
    z = mtf.math.logaddexp(y, -inf)
    np.testing.assert_array_equal(z.numpy(), y.numpy())
    np.testing.assert_array_equal(gradient(z, y)[0], [[1, 1], [0.5, 1]])
    zero = put(mesh, [[0, 0], [2, 0]], "b:2;d:2")
    np.testing.assert_array_equal(
        mtf.math.divide_no_nan(y, zero).numpy(), [[0, 0], [-inf, 0]]
    )
    np.testing.assert_array_equal(
        mtf.math.divide_no_nan(1.0, zero).numpy(), [[0, 0], [0.5, 0]]
    )
