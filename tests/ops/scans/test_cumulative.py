"""Running sums, products, extremes and log-sum-exps: directions, gradients, what is
refused.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf

ROW = [1, 2, 3, 4]
LAYOUTS = ["", "d:x"]


def named(array, layout="", axes="x:2"):
    """A tensor whose last dimension is d."""
    array = np.asarray(array)
    return mtf.asarray(mtf.Mesh(axes, layout), array, "b;d" if array.ndim == 2 else "d")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "exclusive, reverse, wanted",
    [
        (False, False, [1, 3, 6, 10]),
        (True, False, [0, 1, 3, 6]),
        (False, True, [10, 9, 7, 4]),
        (True, True, [9, 7, 4, 0]),
    ],
)
def test_directions(layout, exclusive, reverse, wanted):
    x = named(np.array(ROW, "float32"), layout)
    y = mtf.cumsum(x, "d", exclusive=exclusive, reverse=reverse)
    np.testing.assert_array_equal(y.numpy(), wanted)
    (dx,) = mtf.gradients([y], [x])
    np.testing.assert_array_equal(
        dx.numpy(), np.array([4, 3, 2, 1])[:: -1 if reverse else 1] - int(exclusive)
    )


FUNCTIONS = {
    mtf.math.cumprod: (np.multiply.accumulate, 1),
    mtf.math.cummin: (np.minimum.accumulate, np.inf),
    mtf.math.cummax: (np.maximum.accumulate, -np.inf),
    mtf.math.cumulative_logsumexp: (np.logaddexp.accumulate, -np.inf),
}


@pytest.mark.parametrize("axes", ["", "x:2", "x:4", "x:8"])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_others_are_those_of_numpy(function, reverse, exclusive, axes, rng):
    x = rng.normal(size=(3, 8)).astype("float32")
    accumulate, neutral = FUNCTIONS[function]
    ahead = x[:, ::-1] if reverse else x
    want = accumulate(ahead, 1)
    if exclusive:
        want = np.pad(want[:, :-1], [(0, 0), (1, 0)], constant_values=neutral)
    y = function(named(x, "d:x", axes), "d", exclusive=exclusive, reverse=reverse)
    np.testing.assert_allclose(y.numpy(), want[:, ::-1] if reverse else want, rtol=2e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_whole_numbers(layout):
    x = named(np.array([3, 1, 4, 1], "int32"), layout)
    np.testing.assert_array_equal(mtf.math.cumprod(x, "d").numpy(), [3, 3, 12, 12])
    np.testing.assert_array_equal(mtf.math.cummax(x, "d").numpy(), [3, 3, 4, 4])
    low, high = np.iinfo("int32").min, np.iinfo("int32").max
    np.testing.assert_array_equal(
        mtf.math.cummax(x, "d", exclusive=True).numpy(), [low, 3, 3, 4]
    )
    np.testing.assert_array_equal(
        mtf.math.cummin(x, "d", exclusive=True).numpy(), [high, 3, 1, 1]
    )


def differences(value, row):
    """The gradient of a function of one row, by differences of float64."""
    steps = 1e-6 * np.eye(len(row))
    return [(value(row + step) - value(row - step)) / 2e-6 for step in steps]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("reverse", [False, True])
def test_products_have_gradients_where_factors_are_zero(layout, reverse):
    # TensorFlow's own gradient divides by the factors, and gives zeros here.
    row, weights = np.array([2.0, 0, 3, 0, 5, 1, 2, 2]), np.arange(1.0, 9)
    order = slice(None, None, -1 if reverse else 1)
    x = named(row, layout)
    y = mtf.math.cumprod(x, "d", reverse=reverse)
    (dx,) = mtf.gradients([y], [x], [mtf.asarray(x.mesh, weights, "d")])
    want = differences(lambda r: np.sum(np.cumprod(r[order]) * weights[order]), row)
    np.testing.assert_allclose(dx.numpy(), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_gradients_of_gradients(function, layout):
    row, weights = np.array([0.5, -1.0, 2.0, 1.5]), np.array([1.0, -2.0, 3.0, 0.5])

    def slope(row, layout=""):
        x = named(row, layout)
        (dx,) = mtf.gradients([mtf.square(function(x, "d"))], [x])
        return x, dx

    x, dx = slope(row, layout)
    (ddx,) = mtf.gradients([dx], [x], [mtf.asarray(x.mesh, weights, "d")])
    want = differences(lambda r: np.sum(slope(r)[1].numpy() * weights), row)
    np.testing.assert_allclose(ddx.numpy(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_of_equals_the_latest_gets_the_gradient(layout):
    x = named(np.array([1, 3, 3, 2], "float32"), layout)
    (dx,) = mtf.gradients([mtf.math.cummax(x, "d")], [x])
    np.testing.assert_array_equal(dx.numpy(), [1, 1, 2, 0])


@pytest.mark.parametrize("axes", ["x:2", "x:4"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sign", [1, -1])
def test_gradients_of_extremes_of_infinities_and_nan(sign, layout, axes):
    inf = np.inf
    rows = np.array([[-inf, -inf, 1, inf, inf], [2, 1, np.nan, 3, np.nan]], "float32")
    x = named(sign * rows, layout, axes)
    function = mtf.math.cummax if sign == 1 else mtf.math.cummin
    dy = np.arange(1, 11, dtype="float32").reshape(2, 5)
    (dx,) = mtf.gradients([function(x, "d")], [x], [mtf.asarray(x.mesh, dy, "b;d")])
    # After a NaN, which is the extreme of all that follow, each element has its own.
    np.testing.assert_array_equal(dx.numpy(), [[1, 2, 3, 4, 5], [13, 0, 8, 9, 10]])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logsumexp_of_infinite_and_of_large_numbers(layout):
    x = named(np.array([-np.inf, -np.inf, 1000, 1001], "float32"), layout)
    y = mtf.math.cumulative_logsumexp(x, "d")
    np.testing.assert_allclose(
        y.numpy(), [-np.inf, -np.inf, 1000, 1001 + np.log1p(np.exp(-1))]
    )
    (dx,) = mtf.gradients([y], [x])
    small = 1 / (1 + np.e)
    np.testing.assert_allclose(dx.numpy(), [0, 0, 1 + small, 1 - small], rtol=1e-4)
    half = mtf.math.cumulative_logsumexp(
        mtf.cast(named(np.zeros(4, "float32"), layout), "bfloat16"), "d"
    )
    np.testing.assert_allclose(
        half.numpy().astype("float32"), np.log([1, 2, 3, 4]), rtol=1e-2
    )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axes", ["", "x:2", "x:8"])
def test_recurrence(axes, reverse, rng):
    a, b = (
        rng.normal(size=(2, 8)).astype("float32"),
        rng.normal(size=8).astype("float32"),
    )
    want, h = np.zeros_like(a), 0.0
    for i in range(7, -1, -1) if reverse else range(8):
        want[:, i] = h = a[:, i] * h + b[i]
    factors = named(a, "d:x", axes)
    y = mtf.math.linear_recurrence(
        factors, mtf.asarray(factors.mesh, b, "d"), "d", reverse=reverse
    )
    np.testing.assert_allclose(y.numpy(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("function", [mtf.cumsum, *FUNCTIONS], ids=lambda f: f.__name__)
def test_a_slice_tells_one_number_of_each_row(function):
    mesh = mtf.Mesh("x:4", "d:x")
    f = mtf.function(lambda x: function(x, "d"), mesh=mesh, x="b;d")
    (move,) = mtf.explain(f, np.ones((3, 16), "float32")).collectives
    assert (move.kind, move.bytes) == ("gather_statistics", 3 * 3 * 4)


@pytest.mark.parametrize("function", [mtf.math.cummax, mtf.math.cummin])
def test_gradient_of_extremes_of_what_xla_computes_twice(function):
    """XLA computes `v` in the kernel of the extremes, and again in that of the gradient, with
    another rounding."""
    array = np.random.default_rng(0).normal(size=[5, 3])

    def step(w):
        _, rows, _ = mtf.scan_and_sum(lambda h, row: (None, row, None), None, w, "d")
        v = w + 0.3 * mtf.sin(rows)
        return mtf.gradients([mtf.reduce_mean(mtf.sin(function(v, "d")))], [w])[0]

    live, placed = (
        mtf.function(step, mesh=mesh)(
            mtf.asarray(mesh, array, "d;t", "float64")
        ).numpy()
        for mesh in (mtf.Mesh("", devices="spmd:cpu"), mtf.Mesh(""))
    )
    np.testing.assert_allclose(live, placed, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("runs", ["live", "jit"])
def test_gradient_of_running_minima_where_y_of_the_forward_pass_is_not_met(runs):
    """XLA rounds one element otherwise where the gradient compares it, and `y` repeats there."""
    array = np.random.default_rng(11).normal(size=(3, 5))

    def gradient(w):
        h = w * 1.0
        v = h + 0.1 * h * h
        steps = v + 0.3 * mtf.sin(mtf.where(h > 0.25, 2 * h, h))
        norms = mtf.einsum([v, v], "t")
        x = 0.5 * steps + 0.3 * mtf.sin(mtf.tanh(0.3 * norms))
        y = mtf.math.cummin(x, "d", reverse=True)
        return mtf.gradients([mtf.reduce_mean(mtf.sin(y))], [w])[0]

    def on(mesh, jit=False):
        w = mtf.asarray(mesh, array, "t;d")
        return mtf.function(gradient, mesh=mesh, jit=jit)(w).numpy()

    want = on(mtf.Mesh(""))
    if runs == "live":
        have = on(mtf.Mesh("", devices="spmd:cpu"))
    else:
        have = on(mtf.Mesh(""), jit=True)
    np.testing.assert_allclose(have, want, rtol=1e-9, atol=1e-12)


def test_what_is_refused():
    x = named(ROW)
    for function in (mtf.cumsum, mtf.math.cummax):
        with pytest.raises(mtf.ShapeError, match='no dimension "e"'):
            function(x, "e")
        with pytest.raises(mtf.DTypeError, match="does not take bool"):
            function(x > 1, "d")
    with pytest.raises(mtf.DTypeError, match="cumulative_logsumexp does not take int"):
        mtf.math.cumulative_logsumexp(x, "d")
    with pytest.raises(mtf.DTypeError, match="do not mix"):
        mtf.math.linear_recurrence(mtf.cast(x, "float32"), mtf.cast(x, "float64"), "d")
    with pytest.raises(mtf.ShapeError, match='no dimension "e"'):
        mtf.math.linear_recurrence(mtf.cast(x, "float32"), mtf.cast(x, "float32"), "e")
