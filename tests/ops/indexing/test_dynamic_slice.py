"""dynamic_slice, dynamic_update, dynamic_shift: against NumPy, under layouts, out of
range.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf

LAYOUTS = ["", "n:x", "b:x", "n:x;b:y", "n:y;d:x"]
X = np.arange(4 * 8 * 2, dtype="float32").reshape(4, 8, 2)
BEGINS = [-3, 0, 1, 4, 5, 7, 100]


@pytest.fixture(params=LAYOUTS)
def mesh(request):
    return mtf.Mesh("x:2;y:2", layout=request.param)


def named(mesh, array, shape="b;n;d"):
    return mtf.asarray(mesh, np.asarray(array), shape)


@pytest.mark.parametrize("size", [1, 3, 4, 8])
def test_slice(mesh, size):
    x = named(mesh, X)
    for begin in BEGINS:
        y = mtf.dynamic_slice(x, "n", named(mesh, np.int32(begin), ""), f"m:{size}")
        start = min(max(begin, 0), 8 - size)
        assert y.shape == mtf.Shape(f"b:4;m:{size};d:2")
        np.testing.assert_array_equal(y.numpy(), X[:, start : start + size])


@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_slice_of_each_row_its_own(mesh, dtype):
    begin = named(mesh, np.array([0, 3, 9, 1], dtype), "b")
    y = mtf.dynamic_slice(named(mesh, X), "n", begin, 4)
    want = np.stack([X[b, start : start + 4] for b, start in enumerate([0, 3, 4, 1])])
    assert y.shape == mtf.Shape("b:4;n:4;d:2")
    np.testing.assert_array_equal(y.numpy(), want)


@pytest.mark.parametrize(
    "shape, size", [("d;b", 1), ("d;m;b", 1), ("d;m;b", 3), ("d;n;b", 4), ("d;n;b", 8)]
)
def test_update(mesh, shape, size, rng):
    x, new = named(mesh, X), rng.normal(size=(2, size, 4)).astype("float32")
    rows = named(mesh, new if len(shape) > 3 else new[:, 0], shape)
    for begin in BEGINS:
        y = mtf.dynamic_update(x, "n", named(mesh, np.int32(begin), ""), rows)
        want, start = X.copy(), min(max(begin, 0), 8 - size)
        want[:, start : start + size] = new.T
        assert y.shape == x.shape
        np.testing.assert_array_equal(y.numpy(), want)


@pytest.mark.parametrize("size", [1, 2])
def test_update_of_each_row_its_own(mesh, size):
    begin, new = [0, 3, 9, -1], -np.ones((4, size, 2), "float32")
    y = mtf.dynamic_update(
        named(mesh, X),
        "n",
        named(mesh, np.array(begin), "b"),
        named(mesh, new, "b;m;d"),
    )
    want = X.copy()
    for b, start in enumerate(begin):
        start = min(max(start, 0), 8 - size)
        want[b, start : start + size] = -1
    np.testing.assert_array_equal(y.numpy(), want)


@pytest.mark.parametrize("wrap", [False, True])
def test_shift_is_the_static_one(mesh, wrap):
    x = named(mesh, X)
    for by in (0, 1, -3, 7, -8, 11, -100):
        y = mtf.dynamic_shift(x, "n", named(mesh, np.int32(by), ""), wrap=wrap)
        want = mtf.roll(x, "n", by) if wrap else mtf.shift(x, "n", by)
        assert y.shape == x.shape
        np.testing.assert_array_equal(y.numpy(), want.numpy())


def test_shift_of_each_row_its_own(mesh):
    by = np.array([1, -2, 0, 9])
    y = mtf.dynamic_shift(named(mesh, X), "n", named(mesh, by, "b"), wrap=True)
    np.testing.assert_array_equal(
        y.numpy(), np.stack([np.roll(r, k, 0) for r, k in zip(X, by)])
    )


def test_gradients(mesh, rng):
    x, begin = named(mesh, X), named(mesh, np.array([0, 3, 9, -1]), "b")
    rows = named(mesh, X[:, :2])
    w = rng.normal(size=X.shape).astype("float32")
    dx, drows = mtf.gradients(
        [mtf.dynamic_update(x, "n", begin, rows)], [x, rows], [named(mesh, w)]
    )
    (dy,) = mtf.gradients(
        [mtf.dynamic_slice(x, "n", begin, 2)], [x], [named(mesh, w[:, :2])]
    )
    (dz,) = mtf.gradients([mtf.dynamic_shift(x, "n", begin)], [x], [named(mesh, w)])
    for b, start in enumerate([0, 3, 6, 0]):
        mask = np.ones((8, 1))
        mask[start : start + 2] = 0
        np.testing.assert_array_equal(dx.numpy()[b], w[b] * mask)
        np.testing.assert_array_equal(drows.numpy()[b], w[b, start : start + 2])
        want = np.zeros((8, 2), "float32")
        want[start : start + 2] = w[b, :2]
        np.testing.assert_array_equal(dy.numpy()[b], want)
    np.testing.assert_array_equal(dz.numpy()[1, :5], w[1, 3:])
    np.testing.assert_array_equal(dz.numpy()[2], np.zeros((8, 2)))


def test_one_program_serves_all_places():
    mesh = mtf.Mesh("x:2", "n:x")
    f = mtf.function(
        lambda x, begin, row: mtf.dynamic_update(x, "n", begin, row),
        mesh=mesh,
        x="b;n;d",
        begin="",
        row="b;d",
    )
    cache = X
    for step in range(8):
        cache = f(cache, np.int32(step), np.full((4, 2), step, "float32"))
    np.testing.assert_array_equal(
        cache.numpy(), np.broadcast_to(np.arange(8.0)[:, None], X.shape)
    )
    assert f.traces == 2  # the first takes an array, the others a tensor


@pytest.mark.parametrize("size", [1, 3])
def test_an_update_moves_nothing(size):
    mesh = mtf.Mesh("x:4", "n:x")
    f = mtf.function(
        lambda x, begin, row: mtf.dynamic_update(x, "n", begin, row),
        mesh=mesh,
        x="b;n;d",
        begin="b",
        row="b;m;d",
    )
    args = np.zeros((2, 64, 8), "f"), np.zeros(2, "i"), np.zeros((2, size, 8), "f")
    assert not mtf.explain(f, *args).collectives


def test_what_is_refused(mesh):
    x, begin = named(mesh, X), named(mesh, np.int32(0), "")
    row = named(mesh, X[:, 0], "b;d")
    for call in (
        lambda x, dim, begin: mtf.dynamic_slice(x, dim, begin, 2),
        mtf.dynamic_shift,
        lambda x, dim, begin: mtf.dynamic_update(x, dim, begin, row),
    ):
        with pytest.raises(mtf.ShapeError, match='no dimension "m"'):
            call(x, "m", begin)
        with pytest.raises(mtf.DTypeError, match="is an integer, not float32"):
            call(x, "n", mtf.cast(begin, "float32"))
        with pytest.raises(mtf.ShapeError, match='one index into "n"'):
            call(x, "n", named(mesh, np.zeros(3, "int32"), "c"))
    with pytest.raises(mtf.ShapeError, match="n:8 has no 9 elements"):
        mtf.dynamic_slice(x, "n", begin, 9)
    with pytest.raises(mtf.ShapeError, match='differ from the tensor in more than "n"'):
        mtf.dynamic_update(x, "n", begin, mtf.rename(row, "d", "e"))
