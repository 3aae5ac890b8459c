"""Indexing by name: against NumPy, eagerly and in functions, under layouts, with gradients."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf

X = np.arange(4 * 8 * 2, dtype="float32").reshape(4, 8, 2)
ROW_IDS = np.array([[1, 7], [0, 3], [2, 2], [5, 6]])
# By the index: the same index of NumPy, and the names of the result.
CASES = {
    "integer": (lambda ids: ("n", 3), X[:, 3], "b;d"),
    "negative": (lambda ids: ("n", -2), X[:, -2], "b;d"),
    "slice": (lambda ids: ("n", slice(2, 6)), X[:, 2:6], "b;n;d"),
    "negative slice": (lambda ids: ("n", slice(-4, None)), X[:, -4:], "b;n;d"),
    "step": (lambda ids: ("n", slice(1, None, 2)), X[:, 1::2], "b;n;d"),
    "reversed": (lambda ids: ("n", slice(None, None, -1)), X[:, ::-1], "b;n;d"),
    "all": (lambda ids: ("n", slice(None)), X, "b;n;d"),
    "several": (
        lambda ids: {"b": 1, "n": slice(0, 4), "d": -1},
        X[1, 0:4, -1],
        "n",
    ),
    "tensor": (lambda ids: ("n", ids), X[np.arange(4)[:, None], ROW_IDS], "b;k;d"),
    "tensor after an integer": (
        lambda ids: {"n": ids, "b": 0},
        X[0][ROW_IDS],
        "b;k;d",
    ),
    "tensor with the dimension": (
        lambda ids: ("n", mtf.rename(ids, "k", "n")),
        X[np.arange(4)[:, None], ROW_IDS],
        "b;n;d",
    ),
}
LAYOUTS = ["", "n:x", "b:x", "n:x;b:y", "n:y;d:x", "k:x;n:y"]


@pytest.fixture(params=LAYOUTS)
def mesh(request):
    return mtf.Mesh("x:2;y:2", layout=request.param)


@pytest.mark.parametrize("kind", CASES)
def test_entries_and_gradients(mesh, kind):
    index, want, names = CASES[kind]
    weights = np.cos(np.arange(want.size)).reshape(want.shape).astype("float32")

    def entries(x, ids, weights):
        y = x[index(ids)]
        return y, mtf.gradients([mtf.reduce_sum(y * weights)], [x])[0]

    x = mtf.asarray(mesh, X, "b;n;d")
    ids = mtf.asarray(mesh, ROW_IDS, "b;k")
    w = mtf.asarray(mesh, weights, names)
    dx = np.zeros_like(X)
    flat_indices = want.astype(int).reshape(-1)  # X counts its elements
    np.add.at(dx.reshape(-1), flat_indices, weights.reshape(-1))
    eager = entries(x, ids, w)
    recorded = mtf.function(entries)(x, ids, w)
    for y, gradient in (eager, recorded):
        assert y.shape.names == tuple(names.split(";"))
        np.testing.assert_array_equal(y.numpy(), want)
        np.testing.assert_allclose(gradient.numpy(), dx, atol=1e-6)


@pytest.mark.parametrize("dtype", ["int32", "bool", "bfloat16", "complex64"])
def test_other_types(mesh, dtype):
    x = mtf.cast(mtf.asarray(mesh, X % 2, "b;n;d"), dtype)
    want = x.numpy()
    np.testing.assert_array_equal(x["n", 1].numpy(), want[:, 1])
    np.testing.assert_array_equal(x["n", ::2].numpy(), want[:, ::2])


def test_variables_and_dimensions(mesh):
    v = mtf.Variable(mesh, "n:8", lambda m, s, name: mtf.range(m, s, "float32"), "v")
    assert float(v["n", 5]) == 5
    assert float(v[mtf.Dimension("n", 8), np.int64(-1)]) == 7
    np.testing.assert_array_equal(v["n", 2:6].numpy(), np.arange(2, 6))


def test_a_mesh_that_a_function_does_not_know_yet():
    @mtf.function(mesh=mtf.Mesh("x:2", "n:x"), x="b;n;d")
    def f(x):
        return x["b", 0]["n", 1::2]

    np.testing.assert_array_equal(f(X).numpy(), X[0, 1::2])


@pytest.mark.parametrize(
    "index, problem",
    [
        (0, r'(?s)by the names of dimensions.*Write x\["b", 0\]'),
        ((slice(None), 1), r'(?s)by the names.*Write x\["n", 1\]'),
        ((0, 1), r'Write x\[\{"b": 0, "n": 1\}\]'),
        (None, 'Write x\\["length", 0\\]'),
        ((Ellipsis, 0), r"Write x\["),
        ("n", r'(?s)no entry of it.*x.shape\["n"\]'),
        (("n", 1, "d", 0), "by the names of dimensions"),
        (("n", 1.0), '"index of n" takes an integer, a slice or a tensor'),
        (("n", True), "mtf.where"),
        (("n", "d"), '"index of n" takes'),
        (("n", np.arange(2)), "Name the dimensions of an array first"),
        (("n", [0, 1]), '"index of n" takes'),
        (("n", slice(0.5, None)), "takes an integer"),
        ({0: 1}, "the name of a dimension"),
    ],
)
def test_refusals_say_what_to_write(index, problem):
    x = mtf.asarray(mtf.Mesh(""), X, "b;n;d")
    with pytest.raises(mtf.ArgumentError, match=problem) as info:
        x[index]
    assert "test_by_name.py" in str(info.value)


@pytest.mark.parametrize(
    "index, problem",
    [
        (("n", 8), r"(?s)index 8 is out of range.*n:8.*from -8 to 7"),
        (("n", -9), "index -9 is out of range"),
        (("n", slice(4, 2)), "(?s)no entries.*4:2"),
        (("m", 0), '"m"'),
    ],
)
def test_entries_that_are_absent(index, problem):
    x = mtf.asarray(mtf.Mesh(""), X, "b;n;d")
    with pytest.raises(mtf.ShapeError, match=problem):
        x[index]


def test_tensors_of_other_types_are_no_index():
    x = mtf.asarray(mtf.Mesh(""), X, "b;n;d")
    with pytest.raises(mtf.DTypeError, match="integers, not bool"):
        x["n", x["d", 0]["b", 0] > 3]


def test_a_slice_must_fit_the_layout():
    x = mtf.asarray(mtf.Mesh("x:2", "n:x", strict=True), X, "b;n;d")
    with pytest.raises(mtf.LayoutError, match="n:3"):
        x["n", 0:3]
