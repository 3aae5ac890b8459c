"""Softmax and log-softmax: large logits, masks, half floats, second derivatives,
refusals.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf

INF = np.inf
LOGITS = np.array(
    [[1e4, 0, -1e4, 1e4], [-INF, -INF, 0, 1], [3, -INF, -INF, -INF], [0, 0, 0, 0]],
    "float32",
)


@pytest.fixture(params=["", "d:x", "b:x"])
def mesh(request):
    return mtf.Mesh("x:2", layout=request.param)


@pytest.mark.parametrize("dims", ["b;d", "d;b"])
def test_large_logits_and_masks(mesh, dims):
    x = mtf.transpose(mtf.asarray(mesh, LOGITS, "b;d"), dims)
    for ours, theirs in (
        (mtf.softmax, tf.nn.softmax),
        (mtf.log_softmax, tf.nn.log_softmax),
    ):
        y = mtf.transpose(ours(x, "d"), "b;d")
        np.testing.assert_allclose(y.numpy(), theirs(LOGITS).numpy(), rtol=1e-5)


def test_half_floats_are_rounded_once(mesh):
    x = mtf.asarray(mesh, LOGITS[:, :4].clip(-9, 9), "b;d", dtype="bfloat16")
    y = mtf.softmax(x, "d")
    assert y.dtype == "bfloat16"
    wanted = tf.cast(tf.nn.softmax(x.numpy().astype("float32")), tf.bfloat16)
    np.testing.assert_allclose(
        y.numpy().astype("float32"), wanted.numpy().astype("float32"), rtol=1e-2
    )


@pytest.mark.parametrize(
    "ours, theirs", [(mtf.softmax, tf.nn.softmax), (mtf.log_softmax, tf.nn.log_softmax)]
)
def test_second_derivatives(mesh, ours, theirs):
    array = np.random.default_rng(0).normal(size=(4, 4)).astype("float32")
    x = mtf.asarray(mesh, array, "b;d")
    (dx,) = mtf.gradients([mtf.square(ours(x, "d"))], [x])
    (ddx,) = mtf.gradients([mtf.square(dx)], [x])
    v = tf.constant(array)
    with tf.GradientTape() as outer:
        outer.watch(v)
        with tf.GradientTape() as inner:
            inner.watch(v)
            y = tf.square(theirs(v))
        y = tf.square(inner.gradient(y, v))
    np.testing.assert_allclose(
        ddx.numpy(), outer.gradient(y, v).numpy(), rtol=1e-3, atol=1e-5
    )


def test_what_is_refused(mesh):
    x = mtf.asarray(mesh, LOGITS, "b;d")
    with pytest.raises(mtf.ShapeError, match='no dimension "e"'):
        mtf.softmax(x, "e")
    with pytest.raises(mtf.DTypeError, match="softmax does not take int32"):
        mtf.softmax(mtf.cast(x, "int32"), "d")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sink_logit_takes_its_share(mesh, dtype):
    x = mtf.asarray(mesh, LOGITS, "b;d", dtype=dtype)
    extra = np.array([1, 1, -INF, 0], "float32")
    for sink_logit, values in (
        (mtf.asarray(mesh, extra, "b"), extra),
        (2.0, np.full(4, 2.0)),
    ):
        both = np.concatenate([LOGITS, values[:, None]], 1).astype("float32")
        rough = {"rtol": 1e-6 if dtype == "float32" else 1e-2}
        y = mtf.softmax(x, "d", sink_logit)
        assert y.dtype == dtype
        np.testing.assert_allclose(
            y.numpy().astype("float32"), tf.nn.softmax(both)[:, :4], **rough
        )
        np.testing.assert_allclose(
            mtf.log_softmax(x, "d", sink_logit).numpy().astype("float32"),
            tf.nn.log_softmax(both)[:, :4],
            **rough,
        )


def test_the_gradient_of_a_sink_logit(mesh):
    array = np.random.default_rng(0).normal(size=(4, 4)).astype("float32")
    x, extra = (
        mtf.asarray(mesh, array, "b;d"),
        mtf.asarray(mesh, array[0], "b"),
    )
    y = mtf.square(mtf.softmax(x, "d", extra))
    v, e = tf.constant(array), tf.constant(array[0])
    with tf.GradientTape() as tape:
        tape.watch([v, e])
        z = tf.square(tf.nn.softmax(tf.concat([v, e[:, None]], 1))[:, :4])
    for have, want in zip(
        mtf.gradients([y], [x, extra]), tape.gradient(z, [v, e]), strict=True
    ):
        np.testing.assert_allclose(have.numpy(), want, rtol=1e-4, atol=1e-6)


def test_where_all_logits_are_masked_the_extra_one_takes_all(mesh):
    x = mtf.asarray(mesh, np.full((4, 4), -INF, "float32"), "b;d")
    extra = mtf.zeros(mesh, "b:4")
    y = mtf.softmax(x, "d", extra)
    dx, de = mtf.gradients([y], [x, extra])
    assert not y.numpy().any() and not dx.numpy().any() and not de.numpy().any()
    np.testing.assert_array_equal(
        mtf.reduce_logsumexp(x, "d", extra).numpy(), np.zeros(4)
    )
    with pytest.raises(mtf.ShapeError, match='(?s)sink logit has the dimension "d"'):
        mtf.softmax(x, "d", x)


@pytest.mark.parametrize(
    "function, plain",
    [(mtf.softmax, tf.nn.softmax), (mtf.log_softmax, tf.nn.log_softmax)],
)
def test_many_dimensions(mesh, function, plain):
    x = np.random.default_rng(0).normal(size=(2, 1, 2, 1, 3, 4)).astype("float32")
    actual = function(mtf.asarray(mesh, x, "b;c;e;f;g;d"), "d")
    np.testing.assert_allclose(
        actual.numpy(), plain(x.reshape(-1, 4)).numpy().reshape(x.shape), rtol=1e-5
    )
