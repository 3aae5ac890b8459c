"""shift and roll: by any amount, over sharded dimensions, and the elements that
devices exchange.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf

X = np.arange(32, dtype="float32").reshape(2, 16)
AMOUNTS = (1, -1, 3, 4, -5, 9, 15, -16, 17, 40, -100)


def shifted(x, by, fill=0.0):
    """Rows moved along the last axis, by NumPy."""
    wide = np.pad(x, [(0, 0), (128, 128)], constant_values=fill)
    return wide[:, 128 - by : 128 - by + x.shape[1]]


@pytest.mark.parametrize("by", AMOUNTS)
@pytest.mark.parametrize("layout", ["", "n:x", "b:y;n:x"])
def test_any_amount(layout, by):
    x = mtf.asarray(mtf.Mesh("x:4;y:2", layout), X, "b;n")
    y = mtf.shift(x, "n", by, fill=-2.5)
    np.testing.assert_array_equal(y.numpy(), shifted(X, by, -2.5))
    z = mtf.roll(x, "n", by)
    np.testing.assert_array_equal(z.numpy(), np.roll(X, by, 1))
    assert (
        y.sharded_value.placement
        == z.sharded_value.placement
        == x.sharded_value.placement
    )


def test_gradients_flow_back():
    x = mtf.asarray(mtf.Mesh("x:4", "n:x"), X, "b;n")
    w = mtf.asarray(x.mesh, np.square(X), "b;n")
    (dx,) = mtf.gradients([mtf.shift(x, "n", 3, fill=7.0) * w], [x])
    np.testing.assert_array_equal(dx.numpy(), shifted(np.square(X), -3))
    (dx,) = mtf.gradients([mtf.roll(x, "n", 3) * w], [x])
    np.testing.assert_array_equal(dx.numpy(), np.roll(np.square(X), -3, 1))


@pytest.mark.parametrize("dtype", ["float32", "bool", "bfloat16", "complex64", "int32"])
@pytest.mark.parametrize("dim, axis", [("a", 0), ("n", 1)])
def test_large_tensors_roll_as_small_ones(dim, axis, dtype):
    wide = np.random.default_rng(3).integers(0, 2, (64, 1024)).astype("float32")
    x = mtf.cast(mtf.asarray(mtf.Mesh("x:4", "b:x"), wide, "a;n"), dtype)
    for by in (1, -5, 32):
        np.testing.assert_array_equal(
            mtf.roll(x, dim, by).numpy(), np.roll(x.numpy(), by, axis)
        )
    if dtype == "float32":
        (dx,) = mtf.gradients([mtf.roll(x, dim, 3) * x], [x])
        np.testing.assert_array_equal(
            dx.numpy(), np.roll(wide, 3, axis) + np.roll(wide, -3, axis)
        )


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("layout", ["", "a:x", "n:x"])
def test_large_tensors_roll_in_programs(layout, jit):
    wide = np.random.default_rng(4).standard_normal((64, 4096)).astype("float32")

    @mtf.function(mesh=mtf.Mesh("x:4", layout), jit=jit, x="a;n")
    def rolled(x):
        y = mtf.roll(x, "n", 5)
        return y, *mtf.gradients([y * x], [x])

    y, dx = rolled(wide)
    np.testing.assert_array_equal(y.numpy(), np.roll(wide, 5, 1))
    np.testing.assert_array_equal(
        dx.numpy(), np.roll(wide, 5, 1) + np.roll(wide, -5, 1)
    )


@pytest.mark.parametrize(
    "dtype, fill", [("bool", True), ("int32", -3), ("bfloat16", -np.inf)]
)
def test_data_types(dtype, fill):
    x = mtf.cast(mtf.asarray(mtf.Mesh("x:2", "n:x"), X % 2, "b;n"), dtype)
    y = mtf.shift(x, "n", -2, fill=fill)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y.numpy()[:, :14], x.numpy()[:, 2:])
    assert (y.numpy()[:, 14:] == np.array(fill, y.numpy().dtype)).all()


def test_nothing_to_do():
    x = mtf.asarray(mtf.Mesh(""), X, "b;n")
    assert mtf.shift(x, "n", 0) is x
    assert mtf.roll(x, "n", 32) is x


@pytest.mark.parametrize(
    "function, by, count",
    [
        (mtf.shift, 1, 1 * 3 / 4),  # of four slices, one has no neighbour before it
        (mtf.shift, -6, (4 + 4 + 2) / 4),
        (mtf.roll, 1, 1),
        (mtf.roll, -3, 3),
        (mtf.roll, 8, 4),
        (mtf.roll, 15, 1),
    ],
)
def test_only_elements_that_a_device_lacks_are_moved(function, by, count):
    mesh = mtf.Mesh("x:4", "n:x")
    collectives = mtf.explain(
        mtf.function(lambda x: function(x, "n", by), mesh=mesh, x="b;n"), X
    ).collectives
    assert [m.kind for m in collectives] == ["window"]
    assert sum(m.bytes for m in collectives) == count * 2 * 4


@pytest.mark.parametrize("function", [mtf.shift, mtf.roll])
def test_what_is_refused(function):
    x = mtf.asarray(mtf.Mesh(""), X, "b;n")
    with pytest.raises(mtf.ShapeError, match='no dimension "m" in'):
        function(x, "m", 1)
    with pytest.raises(mtf.ShapeError, match="integer.*1.5.*\n.*mtf.dynamic_shift"):
        function(x, "n", 1.5)


def test_a_fill_must_be_a_value_of_the_data_type():
    x = mtf.asarray(mtf.Mesh(""), X.astype("int32"), "b;n")
    with pytest.raises(mtf.DTypeError, match="0.5 is no value of the type int32"):
        mtf.shift(x, "n", 1, fill=0.5)
