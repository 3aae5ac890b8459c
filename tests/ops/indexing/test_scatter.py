"""segment_max, _min, _mean, scatter, scatter_add, scatter_update: against NumPy, under
layouts.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf

LAYOUTS = ["", "v:x", "b:x", "v:x;b:y", "d:x;v:y"]
IDS = np.array([3, 1, 3, -1, 1, 7, 0, 3], "int32")


@pytest.fixture(params=LAYOUTS)
def mesh(request):
    return mtf.Mesh("x:2;y:2", layout=request.param)


@pytest.fixture
def rows(rng):
    return rng.normal(size=(8, 4)).astype("float32")


def named(mesh, array, shape):
    return mtf.asarray(mesh, np.asarray(array), shape)


def by_number(rows, ids, reduce, empty):
    """Returns the result of a Python loop over the ids."""
    return np.stack(
        [
            reduce(rows[ids == v])
            if (ids == v).any()
            else np.full(rows.shape[1:], empty)
            for v in range(8)
        ]
    )


@pytest.mark.parametrize(
    "function, reduce, empty",
    [
        (mtf.math.segment_max, lambda r: r.max(0), -np.inf),
        (mtf.math.segment_min, lambda r: r.min(0), np.inf),
        (mtf.math.segment_mean, lambda r: r.mean(0), 0),
        (mtf.scatter, lambda r: r[-1], 0),
        (mtf.segment_sum, lambda r: r.sum(0), 0),
    ],
    ids=lambda f: getattr(f, "__name__", ""),
)
def test_rows_by_number(mesh, rows, function, reduce, empty):
    y = function(named(mesh, rows, "b;d"), named(mesh, IDS, "b"), "v:8")
    assert y.shape == mtf.Shape("v:8;d:4")
    np.testing.assert_allclose(
        y.numpy(), by_number(rows, IDS, reduce, empty), rtol=1e-5
    )


def test_rows_of_infinities(mesh):
    x = named(mesh, np.array([-np.inf, np.inf], "float32"), "b")
    ids = named(mesh, np.array([0, 2], "int32"), "b")
    np.testing.assert_array_equal(
        mtf.math.segment_max(x, ids, "v:4").numpy(), [-np.inf, -np.inf, np.inf, -np.inf]
    )
    np.testing.assert_array_equal(
        mtf.math.segment_min(x, ids, "v:4").numpy(), [-np.inf, np.inf, np.inf, np.inf]
    )


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bfloat16", "float64"])
def test_data_types(mesh, dtype):
    x = mtf.cast(named(mesh, np.arange(8), "b"), dtype)
    ids = named(mesh, IDS, "b")
    for function, want in (
        (mtf.math.segment_max, [6, 4, 7, 5]),
        (mtf.math.segment_min, [6, 1, 0, 5]),
        (mtf.scatter, [6, 4, 7, 5]),
    ):
        y = function(x, ids, "v:8")
        assert y.dtype == dtype
        np.testing.assert_array_equal(y.numpy()[[0, 1, 3, 7]].astype("int64"), want)


def test_means_of_half_floats_count_far(mesh):
    x = mtf.cast(named(mesh, np.ones(1024), "b"), "bfloat16")
    y = mtf.math.segment_mean(x, named(mesh, np.zeros(1024, "int32"), "b"), "v:2")
    np.testing.assert_array_equal(y.numpy().astype("float32"), [1, 0])


@pytest.mark.parametrize("kind", ["max", "min", "mean"])
def test_gradients_are_those_of_tensorflow(mesh, kind, rng):
    x = rng.integers(0, 3, (8, 4)).astype("float32")  # many are equal
    w = rng.normal(size=(8, 4)).astype("float32")
    with tf.GradientTape() as tape:
        tf_x = tf.constant(x)
        tape.watch(tf_x)
        y = getattr(tf.math, f"unsorted_segment_{kind}")(tf_x, IDS, 8)
    t = named(mesh, x, "b;d")
    y2 = getattr(mtf.math, f"segment_{kind}")(t, named(mesh, IDS, "b"), "v:8")
    (dx,) = mtf.gradients([y2], [t], [named(mesh, w, "v;d")])
    want = tape.gradient(y, tf_x, tf.constant(w)).numpy()
    np.testing.assert_allclose(dx.numpy(), want, rtol=1e-5, atol=1e-6)


def _gradient_of_extremes_of_sums(mesh, function):
    """The gradient of extremes of values that XLA would compute in two kernels."""
    w = mtf.asarray(
        mesh, np.random.default_rng(0).normal(size=[8, 5]), "d;t", "float32"
    )
    ids = mtf.asarray(mesh, np.array([0, 1, 0, 1, 2, 2, 0, 1], "int32"), "d")

    @mtf.function
    def gradient(w, ids):
        _, sums, _ = mtf.scan_and_sum(lambda h, x: (None, x, None), None, w, "d")
        y = function(w + 0.3 * mtf.sin(sums), ids, "s:3")
        return mtf.gradients([mtf.reduce_mean(mtf.sin(y))], [w])[0]

    return gradient(w, ids).numpy()


@pytest.mark.parametrize("kind", ["max", "min"])
def test_gradients_on_xla_meet_the_extremes(kind):
    function = {"max": mtf.math.segment_max, "min": mtf.math.segment_min}[kind]
    live = _gradient_of_extremes_of_sums(mtf.Mesh("", devices="spmd:cpu"), function)
    placed = _gradient_of_extremes_of_sums(mtf.Mesh(""), function)
    np.testing.assert_allclose(live, placed, rtol=1e-4, atol=1e-6)


def test_update_takes_the_last_of_several(mesh, rows):
    x = np.arange(32, dtype="float32").reshape(8, 4)
    want = x.copy()
    for i, v in enumerate(IDS):
        if v >= 0:
            want[v] = rows[i]
    ids, updates = named(mesh, IDS, "b"), named(mesh, rows, "b;d")
    y = mtf.scatter_update(named(mesh, x, "v;d"), ids, updates, "v")
    assert y.shape == mtf.Shape("v:8;d:4")
    np.testing.assert_array_equal(y.numpy(), want)


def test_only_what_is_put_has_a_gradient(mesh, rows):
    x, updates = (
        named(mesh, np.zeros((8, 4), "float32"), "v;d"),
        named(mesh, rows, "b;d"),
    )
    w = np.arange(32, dtype="float32").reshape(8, 4)
    ids = named(mesh, IDS, "b")
    y = mtf.scatter_update(x, ids, updates, "v")
    dx, dy = mtf.gradients([y], [x, updates], [named(mesh, w, "v;d")])
    put = np.isin(np.arange(8), IDS)
    np.testing.assert_array_equal(dx.numpy(), np.where(put[:, None], 0, w))
    last = np.array([i for i in range(8) if IDS[i] >= 0 and IDS[i] not in IDS[i + 1 :]])
    want = np.zeros((8, 4))
    want[last] = w[IDS[last]]
    np.testing.assert_array_equal(dy.numpy(), want)


def test_add(mesh, rows):
    x = np.arange(32, dtype="float32").reshape(8, 4)
    y = mtf.scatter_add(
        named(mesh, x.T, "d;v"), named(mesh, IDS, "b"), named(mesh, rows, "b;d"), "v"
    )
    assert y.shape == mtf.Shape("d:4;v:8")
    want = x + by_number(rows, IDS, lambda r: r.sum(0), 0)
    np.testing.assert_allclose(y.numpy().T, want, rtol=1e-5)


def test_batches_and_several_places(mesh, rng):
    ids, x = (
        rng.integers(-1, 6, (4, 3, 2)),
        rng.normal(size=(4, 5, 6)).astype("float32"),
    )
    updates = rng.normal(size=(3, 4, 5, 2)).astype("float32")  # b g d c
    added, put = x.copy(), x.copy()
    for g, b, c in np.ndindex(4, 3, 2):
        if ids[g, b, c] >= 0:
            added[g, :, ids[g, b, c]] += updates[b, g, :, c]
            put[g, :, ids[g, b, c]] = updates[b, g, :, c]
    with mtf.layout("*:; g:x; v:y" if mesh.layout.axes("v") else "*:; g:y"):
        args = (
            named(mesh, x, "g;d;v"),
            named(mesh, ids.astype("int32"), "g;b;c"),
            named(mesh, updates, "b;g;d;c"),
            "v",
        )
        np.testing.assert_allclose(
            mtf.scatter_add(*args).numpy(), added, rtol=1e-4, atol=1e-5
        )
        np.testing.assert_array_equal(mtf.scatter_update(*args).numpy(), put)


def test_one_row_by_a_scalar(mesh):
    x = named(mesh, np.zeros((8, 4), "float32"), "v;d")
    row, index = (
        named(mesh, np.arange(4.0, dtype="float32"), "d"),
        named(mesh, np.int32(5), ""),
    )
    for function in (mtf.scatter_update, mtf.scatter_add):
        y = function(x, index, row, "v").numpy()
        np.testing.assert_array_equal(y[5], [0, 1, 2, 3])
        assert not y[:5].any() and not y[6:].any()


def test_truth_values_can_be_put(mesh):
    x = named(mesh, np.ones(8, "bool"), "v")
    y = mtf.scatter_update(
        x, named(mesh, IDS, "b"), named(mesh, np.zeros(8, "bool"), "b"), "v"
    )
    np.testing.assert_array_equal(y.numpy(), ~np.isin(np.arange(8), IDS))


def test_updates_of_a_sharded_dimension_are_local():
    def collectives(function):
        mesh = mtf.Mesh("x:4", "v:x")
        f = mtf.function(function, mesh=mesh, x="v;d", ids="b", updates="b;d")
        args = np.zeros((64, 8), "f"), np.zeros(4, "i"), np.zeros((4, 8), "f")
        return mtf.explain(f, *args).collectives

    assert not collectives(
        lambda x, ids, updates: mtf.scatter_update(x, ids, updates, "v")
    )
    assert not collectives(
        lambda x, ids, updates: mtf.scatter_add(x, ids, updates, "v")
    )
    assert not collectives(
        lambda x, ids, updates: mtf.math.segment_max(updates, ids, "v:64")
    )


def test_what_is_refused(mesh):
    x, rows = (
        named(mesh, np.zeros((8, 4), "float32"), shape) for shape in ("v;d", "b;d")
    )
    ids = named(mesh, IDS, "b")
    for function in (mtf.scatter_add, mtf.scatter_update):
        with pytest.raises(
            mtf.ShapeError, match=r"updates along \"v\"(.*\n)*.*\[b:8 d:4\]"
        ):
            function(x, ids, mtf.rename(rows, "d", "e"), "v")
        with pytest.raises(mtf.ShapeError, match='no dimension "w"'):
            function(x, ids, rows, "w")
        with pytest.raises(mtf.DTypeError, match="indices are integers"):
            function(x, mtf.cast(ids, "float32"), rows, "v")
    with pytest.raises(mtf.DTypeError, match="segment_max takes numbers, not bool"):
        mtf.math.segment_max(rows > 0.0, ids, "v:8")
