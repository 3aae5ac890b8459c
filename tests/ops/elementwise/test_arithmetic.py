"""Tensors of which none has all names are refused; mtf.outer computes all their pairs."""

from __future__ import annotations

import re
from operator import attrgetter

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf import layers
from meshtf.names.public_path import public_path

LAYOUTS = ["", "batch:data; classes:model", "classes:data; clases:model"]


def tensors(layout):
    mesh = mtf.Mesh("data:2; model:2", layout)
    x = mtf.asarray(
        mesh, np.arange(1.0, 17, dtype="float32").reshape(4, 4), "batch;classes"
    )
    w = mtf.asarray(mesh, np.arange(2.25, 6, dtype="float32"), "clases")
    return x, w


def function_of(name):
    """Returns the function of `mtf` or `mtf.math` of this name."""
    return attrgetter(public_path(name).partition(".")[2])(mtf)


BINARY = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "floordiv",
    "floormod",
    "pow",
    "divide_no_nan",
    "atan2",
    "logaddexp",
    "maximum",
    "minimum",
    "squared_difference",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "equal",
    "not_equal",
]


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BINARY)
def test_is_refused_with_the_way_out(name, layout, recorded):
    x, w = tensors(layout)
    function = function_of(name)
    function = mtf.function(function, mesh=x.mesh) if recorded else function
    path = re.escape(public_path(name))
    with pytest.raises(
        mtf.ShapeError,
        match=rf'(?s){name} takes tensors.*lacks "clases". Did you '
        rf"mean .?classes.*test_arithmetic\.py.*mtf.outer\(x, y, {path}\)",
    ):
        function(x, w)


def test_operators_variables_where_and_others():
    x, w = tensors("")
    bad = mtf.Variable(x.mesh, "clases:4", layers.initializers.ones, "w_outer")
    for call in (
        lambda: x * bad,
        lambda: bad + x,
        lambda: x - w,
        lambda: x < w,
        lambda: x == w,
        lambda: (x > 0) & (w > 0),
        lambda: mtf.where(w > 0, x, 0.0),
        lambda: mtf.where(x > 0, x, w),
        lambda: mtf.math.complex(x, w),
        lambda: mtf.math.linear_recurrence(x, w, "batch"),
    ):
        with pytest.raises(
            mtf.ShapeError, match="one has the dimensions of all others"
        ):
            call()
    y = mtf.where(mtf.reduce_sum(x, "batch") > 0, mtf.reduce_sum(x, "classes"), x)
    assert set(y.shape) == set(x.shape)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_outer_is_that_of_numpy(layout, rng):
    x, w = tensors(layout)
    a, b = x.numpy(), w.numpy()
    for function, want in (
        (mtf.multiply, np.multiply),
        (mtf.subtract, np.subtract),
        (mtf.less, np.less),
        (mtf.math.floormod, np.mod),
        (mtf.math.atan2, np.arctan2),
    ):
        y = mtf.outer(x, w, function)
        assert y.shape.names == ("batch", "classes", "clases")
        np.testing.assert_allclose(y.numpy(), want.outer(a, b), rtol=1e-5)
    np.testing.assert_allclose(mtf.outer(x, w).numpy(), np.multiply.outer(a, b))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "name",
    [
        "multiply",
        "divide",
        "squared_difference",
        "atan2",
        "logaddexp",
        "maximum",
        "pow",
        "floormod",
    ],
)
def test_gradients_of_outer(name, layout, rng):
    x, w = tensors(layout)
    a, b = tf.constant(x.numpy()), tf.constant(w.numpy())
    plain = (
        {
            "logaddexp": lambda x, y: tf.reduce_logsumexp(
                tf.stack([x + 0 * y, y + 0 * x]), 0
            )
        }.get(name)
        or getattr(tf, name, None)
        or getattr(tf.math, name)
    )

    def both(x, w):
        y = mtf.outer(x, w, function_of(name))
        dx, dw = mtf.gradients([y], [x, w])
        twice = name not in ("logaddexp", "pow")  # these have no second gradient
        return dx, dw, mtf.gradients([dx * dx], [x])[0] if twice else None

    with tf.GradientTape() as second:
        second.watch(a)
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            y = tf.reduce_sum(plain(a[:, :, None], b[None, None]))
        da, db = tape.gradient(y, [a, b])
        squares = tf.reduce_sum(da * da)
    dda = second.gradient(squares, a)
    for function in (both, mtf.function(both, mesh=x.mesh)):
        dx, dw, ddx = function(x, w)
        np.testing.assert_allclose(dx.numpy(), da, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(dw.numpy(), db, rtol=1e-4, atol=1e-5)
        if dda is not None and ddx is not None:
            np.testing.assert_allclose(ddx.numpy(), dda, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "make",
    [
        lambda mesh: layers.Dense(mesh, "d:8", "e:4"),
        lambda mesh: layers.FeedForward(mesh, "d:8", "f:4"),
        lambda mesh: layers.MultiHeadAttention(mesh, "d:8", "heads:2", "key:4"),
        lambda mesh: layers.LayerNorm(mesh, "d:8"),
        lambda mesh: layers.RMSNorm(mesh, "d:8"),
        lambda mesh: layers.GroupNorm(mesh, "d:8", 2),
        lambda mesh: layers.BatchNorm(mesh, "d:8"),
        lambda mesh: layers.Embedding(mesh, "vocab:4", "d:8").attend,
        lambda mesh: layers.Conv(mesh, "length:3", "d:8", "e:4"),
        lambda mesh: layers.ConvTranspose(mesh, "length:3", "d:8", "e:4"),
        lambda mesh: layers.SeparableConv(mesh, "length:3", "d:8", "e:4"),
    ],
)
def test_layers_refuse_inputs_without_their_dimension(make):
    mesh = mtf.Mesh("data:2; model:2", "batch:data; d:model")
    layer = make(mesh)
    layer(mtf.ones(mesh, "batch:2;length:4;d:8"))
    with pytest.raises(mtf.ShapeError, match='no dimension "d"'):
        layer(mtf.ones(mesh, "batch:2;length:4;dd:8"))


def test_attention_refuses_keys_and_values_without_their_dimension():
    mesh = mtf.Mesh("", "")
    q, k = mtf.ones(mesh, "length:4;key:2"), mtf.ones(mesh, "kv_length:4;key:2")
    assert layers.dot_product_attention(q, k, k).shape == mtf.Shape("length:4;key:2")
    for keys, rows in (
        (mtf.rename(k, "key", "kye"), k),
        (k, mtf.rename(k, "kv_length", "rows")),
        (mtf.rename(k, "kv_length", "rows"), k),
    ):
        with pytest.raises(mtf.ShapeError, match="no dimension"):
            layers.dot_product_attention(q, keys, rows)
