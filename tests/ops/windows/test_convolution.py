"""Convolutions: against TensorFlow's, with sharded dimensions, their traffic and errors."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from tests.support.refusals import refuses

MESHES = [
    ("", ""),
    ("x:2;y:2", "h:x;w:y"),
    ("x:4", "h:x"),
    ("x:2;y:2", "b:x;o:y"),
    ("x:2;y:2", "h:y;c:x"),
]


@pytest.fixture(params=MESHES, ids=[layout or "one device" for _, layout in MESHES])
def mesh(request):
    return mtf.Mesh(*request.param)


def named(mesh, array, names):
    return mtf.asarray(mesh, array.astype("float32"), names)


def close(have, want, tolerance=2e-5):
    np.testing.assert_allclose(
        have.numpy(), np.asarray(want), rtol=tolerance, atol=tolerance
    )


def gradients_are_equal(y, xs, plain, arrays, rng):
    """Compares the gradients of named tensors with the tape's, and both values."""
    dy = rng.normal(size=y.shape.sizes).astype("float32")
    found = mtf.gradients([y], xs, [mtf.asarray(y.mesh, dy, y.shape)])
    watched = [tf.constant(a, tf.float32) for a in arrays]
    with tf.GradientTape() as tape:
        tape.watch(watched)
        want = plain(*watched)
    close(y, want)
    for have, grad in zip(found, tape.gradient(want, watched, dy), strict=True):
        close(have, grad, 5e-5)


@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (2, 3)], ids=str)
@pytest.mark.parametrize("taps", [(3, 3), (2, 5), (1, 1)], ids=str)
def test_conv_2d(mesh, rng, taps, strides):
    x, kernel = rng.normal(size=(2, 8, 12, 4)), rng.normal(size=(*taps, 4, 2))
    xs = named(mesh, x, "b;h;w;c"), named(mesh, kernel, "i;j;c;o")
    y = mtf.conv(*xs, "h:i;w:j", stride=dict(zip("hw", strides)))
    assert y.shape.names == ("b", "h", "w", "o")
    gradients_are_equal(
        y, xs, lambda x, k: tf.nn.conv2d(x, k, strides, "SAME"), [x, kernel], rng
    )


@pytest.mark.parametrize("taps, stride", [(5, 1), (2, 3), (3, 3), (1, 3), (9, 1)])
def test_conv_without_padding(mesh, rng, taps, stride):
    x, kernel = rng.normal(size=(2, 12, 4)), rng.normal(size=(taps, 4, 2))
    xs = named(mesh, x, "b;h;c"), named(mesh, kernel, "i;c;o")
    y = mtf.conv(*xs, "h:i", stride=stride, padding="valid")
    gradients_are_equal(
        y, xs, lambda x, k: tf.nn.conv1d(x, k, stride, "VALID"), [x, kernel], rng
    )


ODD = [
    (rows, taps, stride)
    for rows in (5, 7, 9)
    for taps in (2, 3)
    for stride in (1, 2, 3)
]


@pytest.mark.parametrize("rows, taps, stride", ODD)
def test_odd_sizes(rng, rows, taps, stride):
    mesh = mtf.Mesh("x:2", "c:x")
    x, kernel = rng.normal(size=(2, rows, 4)), rng.normal(size=(taps, 4, 3))
    xs = named(mesh, x, "b;h;c"), named(mesh, kernel, "i;c;o")
    y = mtf.conv(*xs, "h:i", stride=stride)
    assert y.shape["h"] == -(-rows // stride)
    gradients_are_equal(
        y, xs, lambda x, k: tf.nn.conv1d(x, k, stride, "SAME"), [x, kernel], rng
    )


@pytest.mark.parametrize("strict", [False, True])
def test_windows_of_which_an_axis_does_not_divide_the_count(rng, strict):
    """They are padded, or, on a strict mesh, refused: then a rename helps."""
    mesh = mtf.Mesh("x:2", "h:x", strict=strict)
    x, kernel = rng.normal(size=(2, 8, 4)), rng.normal(size=(3, 4, 3))
    xs = named(mesh, x, "b;h;c"), named(mesh, kernel, "i;c;o")
    dim = "h"
    image = xs[0]
    if strict:
        with refuses(mtf.LayoutError, '"h" of size 3 cannot be split', "mtf.rename"):
            mtf.conv(*xs, "h:i", stride=2, padding="valid")
        dim = "h_whole"
        image = mtf.rename(xs[0], "h", dim)
    y = mtf.conv(image, xs[1], f"{dim}:i", stride=2, padding="valid")
    gradients_are_equal(
        y, xs, lambda x, k: tf.nn.conv1d(x, k, 2, "VALID"), [x, kernel], rng
    )


@pytest.mark.parametrize("dilation, stride", [(2, 1), (3, 1), (2, 2), (2, 3)])
def test_dilated_conv(mesh, rng, dilation, stride):
    """Against a kernel with zeros between its taps."""
    x, kernel = rng.normal(size=(2, 24, 4, 4)), rng.normal(size=(3, 2, 4, 2))

    def plain(x, kernel):
        spread = tf.concat(
            [tf.pad(row[None], [[0, dilation - 1], *[[0, 0]] * 3]) for row in kernel], 0
        )
        return tf.nn.conv2d(x, spread[: 2 * dilation + 1], (stride, 1), "SAME")

    xs = named(mesh, x, "b;h;w;c"), named(mesh, kernel, "i;j;c;o")
    y = mtf.conv(*xs, "h:i;w:j", dilation={"h": dilation}, stride={"h": stride})
    gradients_are_equal(y, xs, plain, [x, kernel], rng)


def test_conv_3d(mesh, rng):
    x, kernel = rng.normal(size=(2, 8, 4, 5, 4)), rng.normal(size=(3, 2, 3, 4, 2))
    xs = named(mesh, x, "b;h;w;d;c"), named(mesh, kernel, "i;j;k;c;o")
    y = mtf.conv(*xs, "h:i;w:j;d:k", stride={"h": 2, "d": 2})
    gradients_are_equal(
        y,
        xs,
        lambda x, k: tf.nn.conv3d(x, k, (1, 2, 1, 2, 1), "SAME"),
        [x, kernel],
        rng,
    )


@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_conv_with_several_kernels_for_a_channel(mesh, rng, stride):
    x, kernel = rng.normal(size=(2, 8, 12, 4)), rng.normal(size=(3, 2, 4, 3))
    xs = named(mesh, x, "b;h;w;c"), named(mesh, kernel, "i;j;c;m")
    y = mtf.conv(*xs, "h:i;w:j", stride=stride, groups="c")
    assert y.shape.names == ("b", "h", "w", "c", "m")
    strides = (1, stride, stride, 1)
    gradients_are_equal(
        y,
        xs,
        lambda x, k: tf.reshape(
            tf.nn.depthwise_conv2d(x, k, strides, "SAME"), y.shape.sizes
        ),
        [x, kernel],
        rng,
    )


def test_groups(mesh, rng):
    x, kernel = rng.normal(size=(2, 8, 4, 3, 4)), rng.normal(size=(3, 2, 3, 4, 2))
    xs = named(mesh, x, "b;h;w;g;c"), named(mesh, kernel, "i;j;g;c;o")
    y = mtf.conv(*xs, "h:i;w:j", groups="g")
    gradients_are_equal(
        y,
        xs,
        lambda x, k: tf.stack(
            [tf.nn.conv2d(x[..., g, :], k[:, :, g], 1, "SAME") for g in range(3)], 3
        ),
        [x, kernel],
        rng,
    )


def test_padding_by_rows_and_causal_padding(mesh, rng):
    x, kernel = rng.normal(size=(2, 8, 12, 4)), rng.normal(size=(3, 3, 4, 2))
    xs = named(mesh, x, "b;h;w;c"), named(mesh, kernel, "i;j;c;o")
    y = mtf.conv(*xs, "h:i;w:j", padding={"h": (0, 2), "w": "causal"}, stride={"w": 3})
    pads = [[0, 0], [0, 2], [2, 0], [0, 0]]
    gradients_are_equal(
        y, xs, lambda x, k: tf.nn.conv2d(x, k, (1, 3), pads), [x, kernel], rng
    )


@pytest.mark.parametrize("stride, taps", [(2, 3), (2, 2), (1, 3), (3, 2)])
def test_conv_transpose(mesh, rng, stride, taps):
    x, kernel = rng.normal(size=(2, 4, 6, 4)), rng.normal(size=(taps, 2, 4, 2))
    xs = named(mesh, x, "b;h;w;c"), named(mesh, kernel, "i;j;c;o")
    y = mtf.conv_transpose(*xs, "h:i;w:j", stride={"h": stride})
    assert y.shape == mtf.Shape(f"b:2;h:{4 * stride};w:6;o:2")
    gradients_are_equal(
        y,
        xs,
        lambda x, k: tf.nn.conv2d_transpose(
            x, tf.transpose(k, [0, 1, 3, 2]), y.shape.sizes, (stride, 1), "SAME"
        ),
        [x, kernel],
        rng,
    )


def test_conv_transpose_3d(mesh, rng):
    x, kernel = rng.normal(size=(2, 4, 2, 3, 4)), rng.normal(size=(3, 2, 2, 4, 2))
    xs = named(mesh, x, "b;h;w;d;c"), named(mesh, kernel, "i;j;k;c;o")
    y = mtf.conv_transpose(*xs, "h:i;w:j;d:k", stride={"h": 2, "d": 2})
    gradients_are_equal(
        y,
        xs,
        lambda x, k: tf.nn.conv3d_transpose(
            x, tf.transpose(k, [0, 1, 2, 4, 3]), (2, 8, 2, 6, 2), (2, 1, 2), "SAME"
        ),
        [x, kernel],
        rng,
    )


@pytest.mark.parametrize(
    "padding, rows, want",
    [
        ("valid", {}, 9),
        ("same", {"h": 7}, 7),
        ("valid", {"h": 10}, 10),
        ((1, 0), {}, 8),
    ],
)
def test_rows_of_a_transposed_conv(rng, padding, rows, want):
    mesh = mtf.Mesh("x:2", "b:x")
    x, kernel = rng.normal(size=(2, 4, 4)), rng.normal(size=(3, 4, 2))
    xs = named(mesh, x, "b;h;c"), named(mesh, kernel, "i;c;o")
    y = mtf.conv_transpose(*xs, "h:i", stride=2, padding=padding, output_size=rows)
    assert y.shape == mtf.Shape(f"b:2;h:{want};o:2")
    pads = (
        padding.upper()
        if isinstance(padding, str)
        else [[0, 0], [0, 0], padding, [0, 0]]
    )
    gradients_are_equal(
        y,
        xs,
        lambda x, k: tf.nn.conv2d_transpose(
            x[:, None], tf.transpose(k, [0, 2, 1])[None], (2, 1, want, 2), (1, 2), pads
        )[:, 0],
        [x, kernel],
        rng,
    )


def test_separable_conv(mesh, rng):
    x, deep, point = (
        rng.normal(size=s) for s in ((2, 8, 12, 4), (3, 3, 4, 2), (4, 2, 6))
    )
    xs = (
        named(mesh, x, "b;h;w;c"),
        named(mesh, deep, "i;j;c;m"),
        named(mesh, point, "c;m;o"),
    )
    y = mtf.separable_conv(*xs, "h:i;w:j", stride=2)
    assert y.shape.names == ("b", "h", "w", "o")
    gradients_are_equal(
        y,
        xs,
        lambda x, d, p: tf.nn.separable_conv2d(
            x, d, tf.reshape(p, [1, 1, 8, 6]), (1, 2, 2, 1), "SAME"
        ),
        [x, deep, point],
        rng,
    )


def test_names_may_stand_in_any_order(rng):
    mesh = mtf.Mesh("x:2;y:2", "h:x;c:y")
    x, kernel = rng.normal(size=(4, 8, 2, 6)), rng.normal(size=(2, 3, 4, 3))
    y = mtf.conv(named(mesh, x, "c;h;b;w"), named(mesh, kernel, "o;j;c;i"), "w:j;h:i")
    assert y.shape.names == ("o", "h", "b", "w")
    close(
        y,
        np.transpose(
            tf.nn.conv2d(
                x.transpose(2, 1, 3, 0), kernel.transpose(3, 1, 2, 0), 1, "SAME"
            ),
            (3, 1, 0, 2),
        ),
    )


def test_gradients_of_gradients(rng):
    x, kernel = rng.normal(size=(2, 8, 3)), rng.normal(size=(3, 3, 2))

    def named_loss(x, kernel):
        y = mtf.conv(x, kernel, "h:i", stride=2)
        gx, gk = mtf.gradients([mtf.reduce_sum(y * y * y)], [x, kernel])
        return mtf.reduce_sum(gx * gx) + mtf.reduce_sum(gk * gk)

    mesh = mtf.Mesh("x:2", "h:x")
    xs = named(mesh, x, "b;h;c"), named(mesh, kernel, "i;c;o")
    found = mtf.gradients([named_loss(*xs)], xs)
    watched = [tf.constant(x, tf.float32), tf.constant(kernel, tf.float32)]
    with tf.GradientTape() as outer:
        outer.watch(watched)
        with tf.GradientTape() as inner:
            inner.watch(watched)
            total = tf.reduce_sum(tf.nn.conv1d(*watched, 2, "SAME") ** 3)
        loss = tf.add_n([tf.reduce_sum(g * g) for g in inner.gradient(total, watched)])
    for have, want in zip(found, outer.gradient(loss, watched), strict=True):
        np.testing.assert_allclose(
            have.numpy(), want, rtol=1e-4, atol=np.abs(want).max() * 1e-5
        )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_data_types(rng, dtype):
    mesh = mtf.Mesh("x:2", "h:x")
    x, kernel = (
        rng.normal(size=(2, 8, 3)).astype("f4"),
        rng.normal(size=(3, 3, 2)).astype("f4"),
    )
    xs = [
        mtf.cast(named(mesh, x, "b;h;c"), dtype),
        mtf.cast(named(mesh, kernel, "i;c;o"), dtype),
    ]
    y = mtf.conv(*xs, "h:i")
    assert y.dtype == dtype
    close(mtf.cast(y, "float32"), tf.nn.conv1d(x, kernel, 1, "SAME"), 0.1)
    assert [g.dtype for g in mtf.gradients([y], xs)] == [dtype, dtype]


STEPS = [
    ({}, 1 * 3 / 4 + 1 * 3 / 4, 1 * 3 / 4 + 1 * 3 / 4),  # a row from each neighbour
    ({"padding": "causal"}, 2 * 3 / 4, 2 * 3 / 4),
    ({"stride": 2}, 1 * 3 / 4, 1 * 3 / 4),
    ({"dilation": 2}, 2 * 2 * 3 / 4, 2 * 2 * 3 / 4),
]


@pytest.mark.parametrize("how, there, back", STEPS, ids=[str(how) for how, *_ in STEPS])
def test_only_rows_at_the_border_are_moved(how, there, back):
    mesh = mtf.Mesh("x:4", "h:x", devices="abstract")
    x, kernel = np.ones((2, 16, 3), "float32"), np.ones((3, 3, 5), "float32")
    y = mtf.explain(
        mtf.function(
            lambda x, k: mtf.conv(x, k, "h:i", **how), mesh=mesh, x="b;h;c", k="i;c;o"
        ),
        x,
        kernel,
    )
    assert [m.kind for m in y.collectives] == ["window"]
    assert y.bytes_moved() == there * 2 * 3 * 4
    assert y.flops() == 2 * 2 * (4 // how.get("stride", 1)) * 3 * 3 * 5

    @mtf.function(mesh=mesh, x="b;h;c", k="i;c;o")
    def backward(x, k):
        return mtf.gradients([mtf.conv(x, k, "h:i", **how)], [x])

    collectives = mtf.explain(backward, x, kernel).collectives
    assert [m.kind for m in collectives] == ["window"]
    assert sum(m.bytes for m in collectives) == back * 2 * 5 * 4


def test_windows_that_do_not_overlap_move_nothing():
    mesh = mtf.Mesh("x:4", "h:x", devices="abstract")
    x, kernel = np.ones((2, 16, 3), "float32"), np.ones((2, 3, 5), "float32")

    @mtf.function(mesh=mesh, x="b;h;c", k="i;c;o")
    def step(x, k):
        return mtf.gradients([mtf.conv(x, k, "h:i", stride=2)], [x, k])

    assert [m.kind for m in mtf.explain(step, x, kernel).collectives] == ["all_reduce"]


X, K = "b:2;h:8;w:8;c:4", "i:3;j:3;c:4;o:2"
