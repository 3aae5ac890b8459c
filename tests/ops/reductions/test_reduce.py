"""Reductions and broadcast: meanings, gradients at ties and infinities, and what they
refuse.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf


@pytest.fixture
def mesh():
    return mtf.Mesh("x:2;y:2", layout="a:x;b:y")


def tensor(mesh, array, names="a;b"):
    return mtf.asarray(mesh, np.asarray(array), names)


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min"])
def test_over_one_dimension_and_over_all(mesh, kind):
    array = np.random.default_rng(0).normal(size=(4, 6)).astype("float32")
    function, wanted = getattr(mtf, f"reduce_{kind}"), getattr(np, kind)
    x = tensor(mesh, array)
    assert function(x, "b").shape == mtf.Shape("a:4")
    np.testing.assert_allclose(function(x, "b").numpy(), wanted(array, 1), rtol=1e-5)
    np.testing.assert_allclose(function(x, ["a"]).numpy(), wanted(array, 0), rtol=1e-5)
    np.testing.assert_allclose(function(x).numpy(), wanted(array), rtol=1e-5, atol=1e-6)


def test_mean_of_integers_is_float32_and_of_truth_values_a_share(mesh):
    y = mtf.reduce_mean(tensor(mesh, [[1, 2], [3, 5]]))
    assert y.dtype == "float32" and float(y) == 2.75
    assert float(mtf.reduce_mean(tensor(mesh, [[True, False], [False, False]]))) == 0.25


def test_any_and_all(mesh):
    x = tensor(mesh, [[True, False], [False, False], [True, True], [False, True]])
    y = mtf.reduce_any(x, "b")
    assert y.dtype == "bool" and y.numpy().tolist() == [True, False, True, True]
    assert mtf.reduce_all(x, "b").numpy().tolist() == [False, False, True, False]
    assert not bool(mtf.reduce_all(x)) and bool(mtf.reduce_any(x))


def test_equal_elements_share_the_gradient_across_devices(mesh):
    x = tensor(mesh, np.array([[3, 1, 3, 2], [0, 0, 0, 0]], "float32"))
    (dx,) = mtf.gradients([mtf.reduce_max(x, "b")], [x])
    np.testing.assert_allclose(dx.numpy(), [[0.5, 0, 0.5, 0], [0.25] * 4])


@pytest.mark.parametrize("layout", ["", "b:x", "a:x; b:y"])
@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
@pytest.mark.parametrize("kind", ["max", "min"])
def test_gradients_of_ties_infinities_and_nan(kind, devices, layout):
    """Equal extremes share the cotangent, also infinite ones; a row with NaN has none. The
    second gradient is that of the squares of the first one, by the cotangent's root.
    """
    inf, nan = np.inf, np.nan
    rows = np.array(
        [
            [3, 1, 3, 2, 3],
            [1, -inf, 0, -1, 1],
            [-inf, -inf, -inf, -inf, -inf],
            [inf, 2, 1, inf, -inf],
            [4, nan, 1, 2, 4],
        ],
        "float64",
    )
    sign = 1 if kind == "max" else -1
    shares = np.array(
        [
            [1 / 3, 0, 1 / 3, 0, 1 / 3],
            [0.5, 0, 0, 0, 0.5],
            [0.2] * 5,
            [0.5, 0, 0, 0.5, 0],
            [0] * 5,
        ]
    )
    weights = np.array([[3.0], [1.0], [2.0], [2.0], [1.0]])
    mesh = mtf.Mesh("x:2;y:2", layout, devices=devices)

    @mtf.function(mesh=mesh, x="a;b", w="a")
    def gradients(x, w):
        y = getattr(mtf, f"reduce_{kind}")(x, "b")
        (first,) = mtf.gradients([y], [x], [w * w])
        (second,) = mtf.gradients([mtf.reduce_sum(first * first)], [w])
        return first, second

    first, second = gradients(sign * rows, weights[:, 0])
    np.testing.assert_allclose(first.numpy(), weights**2 * shares, rtol=1e-12)
    want = 4 * weights[:, 0] ** 3 * np.sum(shares**2, 1)
    np.testing.assert_allclose(second.numpy(), want, rtol=1e-12)


def test_logsumexp_of_infinities(mesh):
    inf = np.inf
    x = tensor(
        mesh, np.array([[-inf, -inf], [-inf, 2], [inf, 1], [1000, 1000]], "float32")
    )
    np.testing.assert_allclose(
        mtf.reduce_logsumexp(x, "b").numpy(),
        [-inf, 2, inf, 1000 + np.log(2)],
        rtol=1e-6,
    )
    (dx,) = mtf.gradients([mtf.reduce_logsumexp(x, "b")], [x])
    np.testing.assert_allclose(
        dx.numpy()[[0, 1, 3]], [[0, 0], [0, 1], [0.5, 0.5]], rtol=1e-4
    )


def test_broadcast(mesh):
    x = tensor(mesh, np.array([1, 2], "float32"), "b")
    y = mtf.broadcast(x, "a:4;b:2")
    np.testing.assert_array_equal(y.numpy(), [[1, 2]] * 4)
    (dx,) = mtf.gradients([y], [x])
    np.testing.assert_array_equal(dx.numpy(), [4, 4])
    assert mtf.broadcast(x, "b:2") is x


def test_what_is_refused(mesh):
    x = tensor(mesh, np.zeros((4, 6), "float32"))
    with pytest.raises(mtf.ShapeError, match='no dimension "bb".*Did you mean b'):
        mtf.reduce_sum(x, "bb")
    with pytest.raises(
        mtf.DTypeError, match="(?s)reduce_any does not take float32.*x != 0"
    ):
        mtf.reduce_any(x)
    with pytest.raises(
        mtf.DTypeError, match="(?s)reduce_max does not take bool.*reduce_any"
    ):
        mtf.reduce_max(mtf.cast(x, "bool"))
    with pytest.raises(
        mtf.DTypeError, match="(?s)reduce_logsumexp does not take int32.*cast"
    ):
        mtf.reduce_logsumexp(mtf.cast(x, "int32"))
    with pytest.raises(mtf.ShapeError, match="cannot be broadcast"):
        mtf.broadcast(x, "a:4;c:6")


@pytest.mark.parametrize("layout", ["a:x", "b:x", "b:x+y", "a:x; b:y"])
@pytest.mark.parametrize("axes", ["x:2;y:2", "x:3;y:1"])
@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int32"])
def test_extremes_with_nan_are_nan_under_every_layout(layout, axes, devices, dtype):
    mesh = mtf.Mesh(axes, layout, devices=devices)
    rows = [
        [1, np.nan, 3, 2, 4],
        [np.nan] * 5,
        [np.inf, 1, -np.inf, 0, np.nan],
        [-np.inf] * 5,
        [np.inf] * 5,
        [-3, -1, -2, -5, -4],
    ]
    array = np.array(rows, "float32")
    if dtype == "int32":
        array = np.nan_to_num(array, posinf=9, neginf=-9)
    array = np.stack([array, -array])  # NaN of both signs

    def extremes(x):
        x = mtf.cast(x, dtype)
        y = [mtf.reduce_max(x, "b"), mtf.reduce_min(x, "b"), mtf.reduce_max(x)]
        return [mtf.cast(z, "float64") for z in y]

    have = mtf.function(extremes, mesh=mesh, x="s;a;b")(array)
    for one, want in zip(have, [array.max(-1), array.min(-1), array.max()]):
        np.testing.assert_equal(one.numpy(), want)


@pytest.mark.parametrize("axes", ["x:4", "x:3", "stage:2;x:2"])
@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
def test_an_empty_batch(axes, devices):
    mesh = mtf.Mesh(axes, "batch:x", devices=devices)
    w = mtf.Variable(mesh, "d:4;o:3", "normal", name="w")

    @mtf.function(mesh=mesh, x="batch;d", labels="batch")
    def results(x, labels):
        y = mtf.einsum([x, w], "batch;o")
        loss = mtf.reduce_sum(mtf.cross_entropy(y, labels, "o"))
        (gradient,) = mtf.gradients([loss + mtf.reduce_mean(y) * 0.0], [w])
        rows = [mtf.softmax(y, "o"), mtf.sort(x, "d"), mtf.concat([x, x], "batch")]
        return loss, gradient, mtf.reduce_mean(y), rows, mtf.cumsum(x, "batch")

    labels = np.zeros(0, "int32")
    loss, gradient, mean, rows, sums = results(np.zeros((0, 4), "float32"), labels)
    assert float(loss) == 0
    assert np.isnan(mean)
    np.testing.assert_equal(gradient.numpy(), np.zeros((4, 3)))
    assert [y.numpy().shape for y in (*rows, sums)] == [(0, 3), *[(0, 4)] * 3]
    eager = mtf.asarray(mesh, np.zeros((0, 4), "float32"), "batch;d")
    assert float(eager.sum()) == 0
    assert np.isnan(eager.mean())
