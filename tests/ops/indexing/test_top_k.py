"""top_k, argmax and their counterparts: values, communication and errors."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf

TIES = np.array([[2, 5, 5, 1, 5, 0, 2, 5], [0, 0, 0, 0, 0, 0, 0, 0]], "float32")

_NAN, _INF = np.nan, np.inf
WITH_NAN = np.array(
    [
        [_INF, 1, _NAN, 5, -_NAN, 0, _INF, 5],
        [_NAN, -_NAN, _NAN, _NAN, _NAN, _NAN, _NAN, -_NAN],
        [0, -0.0, 0, 0, -0.0, -_INF, -_INF, -_NAN],
        [_INF, -_INF, _INF, -_INF, 3, 3, 3, 3],
        [-_INF, -_INF, -_INF, -_INF, -_INF, -_INF, -_INF, _NAN],
        [-_NAN, 1, 2, 3, 4, 5, 6, 7],
        [1, 2, 3, 4, 5, 6, 7, 8],
        [-0.0, 0, -1, -1, 0, -0.0, -1, -1],
    ],
    "float32",
)


@pytest.fixture(params=["", "v:x"])
def mesh(request):
    return mtf.Mesh("x:4", layout=request.param)


@pytest.mark.parametrize("names", ["b;v", "v;b"])
def test_among_equals_the_lowest_index_wins(mesh, names):
    x = mtf.transpose(mtf.asarray(mesh, TIES, "b:2;v:8"), names)
    values, indices = mtf.top_k(x, "v", "k:5")
    assert values.shape == mtf.Shape("b:2;k:5")
    np.testing.assert_array_equal(values.numpy(), [[5, 5, 5, 5, 2], [0] * 5])
    np.testing.assert_array_equal(indices.numpy(), [[1, 2, 4, 7, 0], [0, 1, 2, 3, 4]])
    np.testing.assert_array_equal(mtf.argmax(x, "v").numpy(), [1, 0])


@pytest.mark.parametrize("dtype", ["bfloat16", "int32", "uint8", "int64"])
def test_data_types(mesh, dtype):
    x = mtf.cast(mtf.asarray(mesh, TIES, "b:2;v:8"), dtype)
    values, indices = mtf.top_k(x, "v", "k:8")
    assert (values.dtype, indices.dtype) == (dtype, "int32")
    np.testing.assert_array_equal(values.numpy().astype("float32"), -np.sort(-TIES, 1))
    np.testing.assert_array_equal(indices.numpy(), np.argsort(-TIES, 1, kind="stable"))
    np.testing.assert_array_equal(mtf.argmax(x, "v").numpy(), [1, 0])


def test_the_gradient_goes_to_the_chosen(mesh):
    x = mtf.asarray(mesh, TIES, "b:2;v:8")
    values, _ = mtf.top_k(x, "v", "k:2")
    (dx,) = mtf.gradients([values * 3.0], [x])
    np.testing.assert_array_equal(
        dx.numpy(), [[0, 3, 3, 0, 0, 0, 0, 0], [3, 3, 0, 0, 0, 0, 0, 0]]
    )


@pytest.mark.parametrize("size", [8, 2**14])  # on small and large tensors
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("devices", ["", "spmd"])
@pytest.mark.parametrize("layout", ["", "v:x"])
def test_nan_is_the_largest(layout, devices, dtype, size):
    array = np.zeros([8, size], "float32")
    array[:, :8] = WITH_NAN
    mesh = mtf.Mesh("x:4", layout, devices=devices or None)
    x = mtf.cast(mtf.asarray(mesh, array, "b;v"), dtype)

    @mtf.function
    def f(x):
        smallest = [mtf.math.nth_smallest(x, "v", n) for n in (0, size - 2)]
        largest = mtf.math.nth_largest(x, "v", 1)
        return (
            mtf.argmax(x, "v"),
            mtf.argmin(x, "v"),
            *mtf.top_k(x, "v", "k:5"),
            *smallest,
            largest,
        )

    argmax, argmin, values, indices, least, last, second = (y.numpy() for y in f(x))
    np.testing.assert_array_equal(argmax, np.argmax(array, 1))
    np.testing.assert_array_equal(argmin, np.argmin(array, 1))
    # NumPy sorts NaN last, too.
    descending = np.argsort(
        -np.nan_to_num(array, nan=1e9, posinf=1e6), 1, kind="stable"
    )
    np.testing.assert_array_equal(indices, descending[:, :5])
    rows = np.sort(array, 1)
    np.testing.assert_array_equal(values.astype("float32"), rows[:, :-6:-1])
    np.testing.assert_array_equal(least.astype("float32"), rows[:, 0])
    np.testing.assert_array_equal(last.astype("float32"), rows[:, -2])
    np.testing.assert_array_equal(second.astype("float32"), rows[:, -2])


@pytest.mark.parametrize(
    "k, words",
    [
        ("k:9", "v:8 has no 9 largest"),
        ("b:3", "occurs twice"),
        ("v:3", 'need a name other than "v"'),
    ],
)
def test_what_is_refused(mesh, k, words):
    x = mtf.asarray(mesh, TIES, "b:2;v:8")
    with pytest.raises(mtf.ShapeError, match=words):
        mtf.top_k(x, "v", k)


def test_truth_values_have_no_largest(mesh):
    x = mtf.asarray(mesh, TIES > 1, "b:2;v:8")
    for function in (mtf.argmax, mtf.argmin):
        with pytest.raises(mtf.DTypeError, match="bool has no largest"):
            function(x, "v")


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8"])
def test_the_smallest(mesh, dtype):
    x = mtf.cast(mtf.asarray(mesh, TIES, "b:2;v:8"), dtype)
    np.testing.assert_array_equal(mtf.argmin(x, "v").numpy(), [5, 0])
    for n in range(8):
        for function, order in ((mtf.math.nth_smallest, 1), (mtf.math.nth_largest, -1)):
            y = function(x, "v", n)
            assert y.dtype == dtype
            np.testing.assert_array_equal(y.numpy(), np.sort(TIES)[:, ::order][:, n])


def test_the_gradient_of_one_goes_to_the_first_among_equals(mesh):
    x = mtf.asarray(mesh, TIES, "b:2;v:8")
    values, indices = mtf.top_1(x, "v")
    np.testing.assert_array_equal(values.numpy(), [5, 0])
    np.testing.assert_array_equal(indices.numpy(), [1, 0])
    (dx,) = mtf.gradients([values], [x])
    np.testing.assert_array_equal(
        dx.numpy(), [[0, 1, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]]
    )
    (dx,) = mtf.gradients([mtf.math.nth_smallest(x, "v", 2) * 2.0], [x])
    np.testing.assert_array_equal(
        dx.numpy(), [[2, 0, 0, 0, 0, 0, 0, 0], [0, 0, 2, 0, 0, 0, 0, 0]]
    )


@pytest.mark.parametrize("n", [-1, 8])
def test_there_are_so_many_and_no_more(mesh, n):
    x = mtf.asarray(mesh, TIES, "b:2;v:8")
    for function in (mtf.math.nth_largest, mtf.math.nth_smallest):
        with pytest.raises(
            mtf.ShapeError, match=f"v:8 has no element {n}.*(\n.*)*to 7"
        ):
            function(x, "v", n)


@pytest.mark.parametrize(
    "function, num_statistics",
    [
        (lambda x: mtf.top_k(x, "v", "k:3"), 2 * 3),
        (lambda x: mtf.argmax(x, "v"), 2),
        (lambda x: mtf.argmin(x, "v"), 2),
        (lambda x: mtf.top_1(x, "v"), 2),
        (lambda x: mtf.math.nth_largest(x, "v", 3), 2 * 4),
    ],
)
def test_shards_exchange_their_k_largest_and_nothing_else(function, num_statistics):
    mesh = mtf.Mesh("x:4", "v:x")
    forecast = mtf.explain(
        mtf.function(function, mesh=mesh, x="b;v"), np.zeros((5, 64), "f")
    )
    (move,) = forecast.collectives
    assert (move.kind, move.bytes) == ("gather_statistics", 3 * 5 * num_statistics * 4)


@pytest.mark.parametrize(
    "axes, layout", [("x:4", "v:x"), ("x:2;y:2", "v:x+y"), ("x:2;y:4", "v:x+y")]
)
@pytest.mark.parametrize("size", [3, 5, 7])
def test_padding_comes_after_the_smallest_elements(axes, layout, size):
    """Under two axes, shards with padding come before shards without."""
    mesh = mtf.Mesh(axes, layout)
    lowest = {"float32": -np.inf, "int32": -(2**31), "uint8": 0}
    for dtype, value in lowest.items():
        equal = np.full((1, size), value, dtype)
        one_larger = np.where(np.eye(size, dtype=bool), np.array(1, dtype), equal)
        numbers = np.concatenate([equal, one_larger])
        x = mtf.asarray(mesh, numbers, "b;v")
        expected = np.argsort(-numbers.astype("float64"), axis=1, kind="stable")
        values, indices = mtf.top_k(x, "v", mtf.Dimension("k", size))
        np.testing.assert_array_equal(indices.numpy(), expected)
        np.testing.assert_array_equal(
            values.numpy(), np.take_along_axis(numbers, expected, axis=1)
        )
        np.testing.assert_array_equal(mtf.argmax(x, "v").numpy(), expected[:, 0])


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("k", ["k:1", "k:4"])
def test_indices_of_nan_are_valid_beside_padding(k, jit):
    mesh = mtf.Mesh("x:4", "v:x")  # shards of 2, 2, 1 and 0
    x = mtf.asarray(mesh, np.full(5, np.nan, "float32"), "v")

    def select(x):
        return mtf.top_k(x, "v", k)[1], mtf.argmax(x, "v")

    indices, index = mtf.function(select, jit=jit)(x)
    assert (0 <= indices.numpy()).all() and (indices.numpy() < 5).all()
    assert 0 <= index.numpy() < 5
