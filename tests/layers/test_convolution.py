"""Convolution layers: their kernels' shapes and first values, and what they compute,
cut or not.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf import layers

MESHES = [
    ("", ""),
    ("x:2;y:2", "h:x;w:y"),
    ("x:2;y:2", "batch:x;c_out:y"),
    ("x:2;y:2", "c_in:x;h:y"),
]


@pytest.fixture(params=MESHES, ids=[layout or "one device" for _, layout in MESHES])
def mesh(request):
    return mtf.Mesh(*request.param)


def image(mesh, rng):
    array = rng.normal(size=(2, 8, 12, 4)).astype("float32")
    return array, mtf.asarray(mesh, array, "batch;h;w;c_in")


def close(have, expected):
    np.testing.assert_allclose(have.numpy(), expected, rtol=2e-5, atol=2e-5)


def test_conv(mesh, rng):
    array, x = image(mesh, rng)
    conv = layers.Conv(
        mesh, "h:3;w:2", "c_in:4", "c_out:6", stride={"h": 2}, dilation={"w": 2}
    )
    assert conv.kernel.shape == mtf.Shape("k_h:3;k_w:2;c_in:4;c_out:6")
    conv.bias.assign(rng.normal(size=6).astype("float32"))
    y = conv(x)
    assert y.shape == mtf.Shape("batch:2;h:4;w:12;c_out:6")
    kernel = np.insert(conv.kernel.numpy(), 1, 0.0, axis=1)
    close(y, tf.nn.conv2d(array, kernel, (2, 1), "SAME") + conv.bias.numpy())
    assert {v.name for v in conv.variables} == {"conv/kernel", "conv/bias"}


def test_depthwise_conv(mesh, rng):
    array, x = image(mesh, rng)
    conv = layers.Conv(mesh, "h:3;w:3", groups="c_in:4", use_bias=False)
    close(
        conv(x),
        tf.nn.depthwise_conv2d(
            array, conv.kernel.numpy()[..., None], (1, 1, 1, 1), "SAME"
        ),
    )
    assert conv.bias is None


def test_conv_of_one_dimension_and_of_three(mesh, rng):
    array, x = image(mesh, rng)
    conv = layers.Conv(mesh, "w:5", "c_in:4", "c_out:2", padding="causal")
    pads = [[0, 0], [0, 0], [4, 0], [0, 0]]
    close(conv(x), tf.nn.conv2d(array, conv.kernel.numpy()[None], 1, pads))
    video = mtf.rename(x, "batch", "time")
    conv = layers.Conv(mesh, "time:2;h:3;w:3", "c_in:4", "c_out:2")
    close(
        conv(video), tf.nn.conv3d(array[None], conv.kernel.numpy(), (1,) * 5, "SAME")[0]
    )


def test_conv_transpose(mesh, rng):
    array, x = image(mesh, rng)
    conv = layers.ConvTranspose(mesh, "h:3;w:3", "c_in:4", "c_out:6", stride=2)
    kernel = conv.kernel.numpy().transpose(0, 1, 3, 2)
    close(conv(x), tf.nn.conv2d_transpose(array, kernel, (2, 16, 24, 6), 2, "SAME"))


def test_rows_of_a_transposed_conv(rng):
    mesh = mtf.Mesh("x:2", "w:x")
    array, x = image(mesh, rng)
    conv = layers.ConvTranspose(mesh, "h:3;w:3", "c_in:4", "c_out:6", stride=2)
    kernel = conv.kernel.numpy().transpose(0, 1, 3, 2)
    close(
        conv(x, output_size={"h": 15}),
        tf.nn.conv2d_transpose(array, kernel, (2, 15, 24, 6), 2, "SAME"),
    )


def test_separable_conv(mesh, rng):
    array, x = image(mesh, rng)
    conv = layers.SeparableConv(
        mesh, "h:3;w:3", "c_in:4", "c_out:6", stride=2, multiplier=2
    )
    point = conv.pointwise.numpy().reshape(1, 1, 8, 6)
    close(
        conv(x),
        tf.nn.separable_conv2d(
            array, conv.depthwise.numpy(), point, (1, 2, 2, 1), "SAME"
        ),
    )


@pytest.mark.parametrize(
    "make, size",
    [
        (lambda mesh: layers.Conv(mesh, "h:3;w:3", "c_in:64", "c_out:64"), 64),
        (lambda mesh: layers.Conv(mesh, "h:3;w:3", groups="c_in:64"), 64),
        (
            lambda mesh: layers.ConvTranspose(
                mesh, "h:4;w:4", "c_in:64", "c_out:64", stride=2
            ),
            64,
        ),
        (
            lambda mesh: layers.SeparableConv(
                mesh, "h:3;w:3", "c_in:64", "c_out:64", multiplier=2
            ),
            64,
        ),
    ],
)
def test_first_kernels_keep_the_variance(rng, make, size):
    mesh = mtf.Mesh("")
    array = rng.normal(size=(4, 16, 16, size)).astype("float32")
    x = mtf.asarray(mesh, array, "batch;h;w;c_in")
    y = make(mesh)(x).numpy()[:, 3:-3, 3:-3]
    assert np.std(y) == pytest.approx(1.0, rel=0.15)


def test_layers_train_alike_however_images_are_sharded(rng):
    array = rng.normal(size=(4, 8, 8, 2)).astype("float32")

    def losses(axes, layout):
        mesh = mtf.Mesh(axes, layout)
        conv = layers.Conv(mesh, "h:3;w:3", "c_in:2", "c_out:4", name="conv")
        norm = layers.BatchNorm(mesh, "c_out:4", name="norm")
        up = layers.ConvTranspose(
            mesh, "h:3;w:3", "c_out:4", "c_in:2", stride=2, name="up"
        )
        variables = [*conv.variables, *norm.trainable_variables, *up.variables]

        @mtf.function(mesh=mesh, x="batch;h;w;c_in")
        def step(x):
            h = mtf.max_pool(mtf.relu(norm(conv(x), training=True)), "h:2;w:2")
            loss = mtf.reduce_mean(mtf.square(up(h) - x))
            for v, dv in zip(variables, mtf.gradients([loss], variables)):
                v.assign(v - 0.3 * dv)
            return loss

        return [float(step(array)) for _ in range(5)], norm.moving_variance.numpy()

    expected, variance = losses("", "")
    assert expected[-1] < expected[0] * 0.9
    for axes, layout in (
        ("x:2;y:2", "h:x;w:y"),
        ("x:2;y:2", "batch:x;c_out:y"),
        ("x:4", "h:x"),
    ):
        results, moved = losses(axes, layout)
        np.testing.assert_allclose(results, expected, rtol=1e-5)
        np.testing.assert_allclose(moved, variance, rtol=1e-5)
