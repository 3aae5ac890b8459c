"""Pooling: against TensorFlow's, over sharded dimensions, with ties; traffic and
errors.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from tests.support.refusals import refuses

MESHES = [("", ""), ("x:2;y:2", "h:x;w:y"), ("x:4", "h:x"), ("x:2;y:2", "b:x;c:y")]
POOLS = {"max": (mtf.max_pool, tf.nn.max_pool), "avg": (mtf.avg_pool, tf.nn.avg_pool)}
WINDOWS = [
    ((2, 2), (2, 2), "same"),
    ((3, 3), (2, 2), "same"),
    ((3, 2), (1, 3), "same"),
    ((2, 4), (3, 3), "same"),
    ((2, 2), (2, 2), "valid"),
    ((5, 1), (1, 3), "valid"),
    ((1, 5), (3, 1), "valid"),
    ((3, 3), (3, 1), "valid"),
]


@pytest.fixture(params=MESHES, ids=[layout or "one device" for _, layout in MESHES])
def mesh(request):
    return mtf.Mesh(*request.param)


def same_as_tensorflow(y, x, plain, array, rng):
    """Compares values and gradients with the tape's."""
    dy = rng.normal(size=y.shape.sizes).astype("float32")
    (found,) = mtf.gradients([y], [x], [mtf.asarray(y.mesh, dy, y.shape)])
    watched = tf.constant(array)
    with tf.GradientTape() as tape:
        tape.watch(watched)
        want = plain(watched)
    np.testing.assert_allclose(y.numpy(), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        found.numpy(), tape.gradient(want, watched, dy), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("taps, strides, padding", WINDOWS, ids=str)
def test_pools_of_two_dimensions(mesh, rng, kind, taps, strides, padding):
    array = rng.normal(size=(4, 24, 12, 4)).astype("float32")
    pool, plain = POOLS[kind]
    x = mtf.asarray(mesh, array, "b;h;w;c")
    y = pool(
        x, mtf.Shape(zip("hw", taps)), stride=dict(zip("hw", strides)), padding=padding
    )
    assert y.shape.names == x.shape.names
    same_as_tensorflow(
        y, x, lambda x: plain(x, taps, strides, padding.upper()), array, rng
    )


@pytest.mark.parametrize(
    "size, taps, stride", [(5, 2, 2), (7, 3, 2), (9, 2, 3), (5, 5, 1)]
)
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("kind", POOLS)
def test_odd_sizes(rng, kind, padding, size, taps, stride):
    mesh = mtf.Mesh("x:2", "c:x")
    array = rng.normal(size=(2, size, 4)).astype("float32")
    pool, plain = POOLS[kind]
    x = mtf.asarray(mesh, array, "b;h;c")
    same_as_tensorflow(
        pool(x, f"h:{taps}", stride, padding),
        x,
        lambda x: plain(x, taps, stride, padding.upper()),
        array,
        rng,
    )


@pytest.mark.parametrize("kind", POOLS)
def test_pools_of_three_dimensions(mesh, rng, kind):
    array = rng.normal(size=(2, 8, 4, 5, 4)).astype("float32")
    pool, plain = POOLS[kind][0], getattr(tf.nn, f"{kind}_pool3d")
    x = mtf.asarray(mesh, array, "b;h;w;d;c")
    y = pool(x, "h:3;w:2;d:3", stride={"h": 2, "w": 1, "d": 2}, padding="same")
    same_as_tensorflow(
        y, x, lambda x: plain(x, (3, 2, 3), (2, 1, 2), "SAME"), array, rng
    )


def test_the_first_of_equal_ones_gets_the_gradient(mesh, rng):
    array = (rng.integers(0, 2, (4, 8, 8, 4)) * 0.5).astype("float32")
    x = mtf.asarray(mesh, array, "b;h;w;c")
    y = mtf.max_pool(x, "h:3;w:3", stride=1, padding="same")
    same_as_tensorflow(y, x, lambda x: tf.nn.max_pool(x, 3, 1, "SAME"), array, rng)
    cube = mtf.rename(mtf.ones_like(x), "b", "d")
    (dx,) = mtf.gradients([mtf.max_pool(cube, "h:2;w:4;d:2")], [cube])
    want = np.zeros((4, 8, 8, 4), "float32")
    want[::2, ::2, ::4] = 1
    np.testing.assert_array_equal(dx.numpy(), want)


def test_padding_by_rows_is_never_the_largest_nor_counted(mesh, rng):
    array = -1 - rng.uniform(size=(4, 8, 4, 4)).astype("float32")
    x = mtf.asarray(mesh, array, "b;h;w;c")
    padded = np.pad(array, [(0, 0), (2, 1), (0, 0), (0, 0)], constant_values=-np.inf)
    windows = np.stack([padded[:, i : i + 8] for i in range(4)])
    how = {"stride": 1, "padding": {"h": (2, 1)}}
    np.testing.assert_array_equal(mtf.max_pool(x, "h:4", **how).numpy(), windows.max(0))
    there = np.isfinite(windows)
    want = np.where(there, windows, 0).sum(0) / there.sum(0)
    np.testing.assert_allclose(mtf.avg_pool(x, "h:4", **how).numpy(), want, rtol=1e-5)


def test_causal_pooling_and_names_in_another_order(mesh, rng):
    array = rng.normal(size=(4, 8, 4)).astype("float32")
    x = mtf.asarray(mesh, array, "c;h;b")
    y = mtf.max_pool(x, "h:3", stride=2, padding="causal")
    padded = np.pad(array, [(0, 0), (2, 0), (0, 0)], constant_values=-np.inf)
    want = np.stack([padded[:, i : i + 7 : 2] for i in range(3)]).max(0)
    np.testing.assert_array_equal(y.numpy(), want)


def test_gradients_of_gradients(mesh, rng):
    array = rng.normal(size=(4, 8, 8, 4)).astype("float32")
    x = mtf.asarray(mesh, array, "b;h;w;c")

    def twice(x):
        y = mtf.max_pool(x, "h:3;w:3", 1, "same") + mtf.avg_pool(
            x, "h:3;w:3", 1, "same"
        )
        (dx,) = mtf.gradients([mtf.reduce_sum(y * y * y)], [x])
        return mtf.gradients([mtf.reduce_sum(dx * dx)], [x])[0]

    watched = tf.constant(array)
    with tf.GradientTape() as outer:
        outer.watch(watched)
        with tf.GradientTape() as inner:
            inner.watch(watched)
            pools = (
                pool(watched, 3, 1, "SAME") for pool in (tf.nn.max_pool, tf.nn.avg_pool)
            )
            total = tf.reduce_sum(tf.add_n(list(pools)) ** 3)
        loss = tf.reduce_sum(inner.gradient(total, watched) ** 2)
    want = outer.gradient(loss, watched)
    np.testing.assert_allclose(
        twice(x).numpy(), want, rtol=1e-3, atol=np.abs(want).max() * 1e-5
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("kind", POOLS)
def test_data_types(rng, kind, dtype):
    array = rng.integers(-8, 8, (2, 4, 4, 4)).astype("float32")
    x = mtf.cast(mtf.asarray(mtf.Mesh("x:2", "h:x"), array, "b;h;w;d"), dtype)
    y = POOLS[kind][0](x, "h:2;w:2;d:2")
    assert y.dtype == mtf.gradients([y], [x])[0].dtype == dtype
    want = POOLS[kind][1](array[..., None], 2, 2, "VALID")[..., 0]
    np.testing.assert_allclose(
        mtf.cast(y, "float32").numpy(), want, rtol=1e-2, atol=1e-2
    )


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize(
    "window, stride, count", [(2, 2, 0), (4, 4, 0), (3, 1, 1.5), (3, 2, 0.75)]
)
def test_only_elements_at_the_border_are_moved(kind, window, stride, count):
    mesh = mtf.Mesh("x:4", "h:x", devices="abstract")
    x = np.ones((2, 16, 3), "float32")

    def pool(x):
        return POOLS[kind][0](x, f"h:{window}", stride, "same")

    forward = mtf.explain(mtf.function(pool, mesh=mesh, x="b;h;c"), x)
    assert {m.kind for m in forward.collectives} == ({"window"} if count else set())
    assert forward.bytes_moved() == count * 2 * 3 * 4
    step = mtf.function(lambda x: mtf.gradients([pool(x)], [x]), mesh=mesh, x="b;h;c")
    assert {m.kind for m in mtf.explain(step, x).collectives} == (
        {"window"} if count else set()
    )


REFUSED = [
    ("v:2", {}, 'no dimension "v"'),
    ("", {}, "at least one dimension"),
    ("h:9", {}, "no window of 9 elements fits"),
    ("h:2", {"stride": 0}, "stride.*at least 1"),
    ("h:2", {"padding": (2, 0)}, "nothing but padding"),
    ("h:2", {"padding": (0, 2)}, "nothing but padding"),
]


@pytest.mark.parametrize(
    "window, how, words", REFUSED, ids=[words for *_, words in REFUSED]
)
@pytest.mark.parametrize("kind", POOLS)
def test_what_is_refused(kind, window, how, words):
    with refuses(mtf.ShapeError, words):
        POOLS[kind][0](mtf.ones(mtf.Mesh(""), "b:2;h:8"), window, **how)


@pytest.mark.parametrize("kind", POOLS)
def test_whole_numbers_are_refused(kind):
    with refuses(mtf.DTypeError, "pooling does not take int32", "mtf.cast"):
        POOLS[kind][0](mtf.ones(mtf.Mesh(""), "b:2;h:8", dtype="int32"), "h:2")
