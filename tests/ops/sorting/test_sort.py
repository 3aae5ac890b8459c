"""sort and argsort: order, equals, gradients, and that no device ever holds
the whole.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf

# A row, cut and whole; where "b" takes the cut in place of "n", and where nothing can.
LAYOUTS = [
    ("", ""),
    ("x:4", "n:x"),
    ("x:2", "n:x"),
    ("x:2;y:2", "n:x;b:y"),
    ("x:8", "n:x"),
]

NUMBERS_AND_NAN = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0, 3.0, 4.0]


def named(array, axes, layout):
    """A tensor whose last dimension is n."""
    return mtf.asarray(mtf.Mesh(axes, layout), array, "b;n" if array.ndim == 2 else "n")


def ordered(x, descending):
    """The stable order by NumPy."""
    return np.argsort(-x.astype("float64") if descending else x, -1, kind="stable")


@pytest.mark.parametrize("axes, layout", LAYOUTS)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("shape", [(16,), (4, 16), (2, 24)])
def test_equals_stay_in_order(axes, layout, shape, descending, rng):
    x = rng.integers(0, 9, shape).astype("float32")
    t = named(x, axes, layout)
    order = ordered(x, descending)
    np.testing.assert_array_equal(mtf.argsort(t, "n", descending).numpy(), order)
    np.testing.assert_array_equal(
        mtf.sort(t, "n", descending).numpy(), np.take_along_axis(x, order, -1)
    )


@pytest.mark.parametrize("axes", ["x:2", "x:3", "x:4", "x:6", "x:8"])
@pytest.mark.parametrize(
    "numbers",
    [np.arange(24)[::-1], np.arange(24), np.roll(np.arange(24), 5), np.zeros(24)],
    ids=["backwards", "sorted", "rolled", "equal"],
)
def test_slices_are_merged_in_enough_turns(axes, numbers):
    x = named(numbers.astype("float32"), axes, "n:x")
    np.testing.assert_array_equal(mtf.sort(x, "n").numpy(), np.sort(numbers))
    np.testing.assert_array_equal(
        mtf.argsort(x, "n").numpy(), np.argsort(numbers, kind="stable")
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "int32", "uint8", "int64", "float64"])
@pytest.mark.parametrize("axes, layout", LAYOUTS[:2])
def test_data_types(axes, layout, dtype):
    numbers = np.array([3, 0, 255, 7, 3, 1, 128, 0])
    x = mtf.cast(named(numbers, axes, layout), dtype)
    if dtype.startswith("int"):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        numbers = np.array([low, high, -1, 0, 1, high, low, 5])
        x = named(numbers.astype(dtype), axes, layout)
    for descending in (False, True):
        y = mtf.sort(x, "n", descending=descending)
        assert y.dtype == dtype
        np.testing.assert_array_equal(
            y.numpy().astype("float64"),
            np.sort(numbers.astype("float64"))[:: -1 if descending else 1],
        )


def test_infinities_have_their_place():
    x = named(np.array([1, np.inf, -np.inf, 0], "float32"), "x:2", "n:x")
    np.testing.assert_array_equal(mtf.sort(x, "n").numpy(), [-np.inf, 0, 1, np.inf])


@pytest.mark.parametrize("axes, layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(16,), (4, 16)])
def test_gradients_go_where_elements_came_from(axes, layout, shape, rng):
    x, w = rng.normal(size=(2, *shape)).astype("float32")
    order = ordered(x, True)
    want = np.empty_like(w)
    np.put_along_axis(want, order, w, -1)
    t = named(x, axes, layout)
    weights = mtf.asarray(t.mesh, w, t.shape)

    def gradient(t, weights):
        return mtf.gradients([mtf.sort(t, "n", descending=True)], [t], [weights])[0]

    for function in (gradient, mtf.function(gradient)):
        np.testing.assert_array_equal(function(t, weights).numpy(), want)


@pytest.mark.parametrize("axes, layout", LAYOUTS[:2])
def test_gradients_of_gradients(axes, layout):
    x = named(np.array([3, 1, 2, 0], "float32"), axes, layout)
    weights = mtf.asarray(x.mesh, np.array([1, 10, 100, 1000], "float32"), "n")
    y = mtf.sort(x, "n")
    (dx,) = mtf.gradients([y * y * weights], [x])
    (ddx,) = mtf.gradients([dx * weights], [x])
    np.testing.assert_array_equal(
        dx.numpy(), [2 * 3 * 1000, 2 * 1 * 10, 2 * 2 * 100, 0]
    )
    np.testing.assert_array_equal(ddx.numpy(), [2000, 2 * 10 * 10, 2 * 100 * 100, 2000])


def collectives(function, mesh, names, array):
    """The communication of a function of one array."""
    return mtf.explain(mtf.function(function, mesh=mesh, x=names), array).collectives


def test_another_dimension_is_cut_in_its_place():
    mesh, x = mtf.Mesh("x:4", "n:x"), np.zeros((8, 64), "float32")
    (there,) = collectives(lambda x: mtf.reduce_sum(mtf.sort(x, "n")), mesh, "b;n", x)[
        :1
    ]
    assert (there.kind, there.bytes) == ("all_to_all", 8 * 16 * 4 * 3 / 4)
    kinds = [
        m.kind
        for m in collectives(
            lambda x: mtf.shard(mtf.sort(x, "n"), "n:x"), mesh, "b;n", x
        )
    ]
    assert kinds == ["all_to_all", "all_to_all"]

    def gradient(x):
        return mtf.shard(mtf.gradients([mtf.square(mtf.sort(x, "n"))], [x])[0], "n:x")

    assert {m.kind for m in collectives(gradient, mesh, "b;n", x)} == {"all_to_all"}


@pytest.mark.parametrize("axes, turns", [("x:2", 1), ("x:4", 4), ("x:8", 8)])
def test_where_none_can_be_only_slices_are_exchanged(axes, turns):
    mesh, x = mtf.Mesh(axes, "n:x"), np.zeros(64, "float32")
    size = 64 * 4 // int(axes[2:])

    def gradient(x):
        return mtf.gradients([mtf.square(mtf.sort(x, "n"))], [x])[0]

    for function in (lambda x: mtf.sort(x, "n"), gradient):
        found = collectives(function, mesh, "n", x)
        assert {m.kind for m in found} == {"window"}
        assert all(m.bytes <= size for m in found)
    assert len(collectives(lambda x: mtf.sort(x, "n"), mesh, "n", x)) == 2 * turns


def test_take_along_gives_what_argsort_says(rng):
    x = named(rng.normal(size=(4, 8)).astype("float32"), "x:2", "n:x")
    y = mtf.take_along_axis(x, mtf.argsort(x, "n"), "n")
    np.testing.assert_array_equal(y.numpy(), np.sort(x.numpy()))


def test_what_is_refused():
    x = named(np.zeros((2, 4), "float32"), "x:2", "n:x")
    for function in (mtf.sort, mtf.argsort):
        with pytest.raises(mtf.ShapeError, match='no dimension "m" in'):
            function(x, "m")
        with pytest.raises(
            mtf.DTypeError, match=r'bool has no order.*\n.*mtf.cast\(x, "int32"\)'
        ):
            function(x > 1.0, "n")


@pytest.mark.parametrize(
    "axes, layout", [("x:4", "n:x"), ("x:2;y:2", "n:x+y"), ("x:3", "n:x")]
)
@pytest.mark.parametrize("size", [2, 5, 7])
def test_a_size_that_axes_do_not_divide(axes, layout, size, rng):
    numbers = rng.permutation(size).astype("float32")
    x = named(numbers, axes, layout)
    values, order = mtf.sort(x, "n"), mtf.argsort(x, "n")
    np.testing.assert_array_equal(values.numpy(), np.arange(size))
    np.testing.assert_array_equal(order.numpy(), np.argsort(numbers))
    (dx,) = mtf.gradients([mtf.square(values) * 0.5], [x])
    np.testing.assert_array_equal(dx.numpy(), numbers)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("devices", ["", "spmd"])
@pytest.mark.parametrize("axes, layout", LAYOUTS[:2])
@pytest.mark.parametrize("sizes", [(2, 16), (16,), (8, 2**14)])
def test_nan_is_the_largest(axes, layout, sizes, devices, descending, rng):
    array = rng.choice(NUMBERS_AND_NAN, sizes).astype("float32")
    names = "b;n" if len(sizes) == 2 else "n"
    x = mtf.asarray(mtf.Mesh(axes, layout, devices=devices or None), array, names)

    @mtf.function
    def f(x):
        return mtf.sort(x, "n", descending), mtf.argsort(x, "n", descending)

    values, order = (y.numpy() for y in f(x))
    # NumPy sorts NaN last, too, and 0.0 and -0.0 as equal.
    key = np.nan_to_num(array, nan=1e9, posinf=1e6, neginf=-1e6)
    expected = np.argsort(-key if descending else key, -1, kind="stable")
    np.testing.assert_array_equal(order, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(array, expected, -1))
