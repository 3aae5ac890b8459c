"""Batch norm: statistics of the whole batch however it is sharded, gradients, and moving
averages.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf import layers
from tests.support.refusals import refuses

MESHES = [
    ("", ""),
    ("x:2;y:2", "batch:x;h:y"),
    ("x:4", "batch:x"),
    ("x:3", "batch:x"),  # shards of 3, 3 and 2 examples
    ("x:2;y:2", "channels:x;h:y"),
]


@pytest.fixture(params=MESHES, ids=lambda mesh: " on ".join(mesh[::-1]))
def mesh(request):
    return mtf.Mesh(*request.param)


@pytest.fixture
def array(rng):
    return (rng.normal(size=(8, 4, 4)) * [1, 2, 3, 0.5] + [100, 0, -3, 1]).astype(
        "float32"
    )


def close(have, expected, tolerance=2e-5):
    np.testing.assert_allclose(have.numpy(), expected, rtol=tolerance, atol=tolerance)


def test_training_normalizes_by_the_statistics_of_the_batch(mesh, array, rng):
    norm = layers.BatchNorm(mesh, "channels:4", momentum=0.9, epsilon=1e-2)
    scale, bias = rng.normal(size=(2, 4)).astype("float32")
    norm.scale.assign(scale)
    norm.bias.assign(bias)
    dy = rng.normal(size=array.shape).astype("float32")
    x = mtf.asarray(mesh, array, "batch;h;channels")
    y = norm(x, training=True)
    results = mtf.gradients(
        [y], [x, norm.scale, norm.bias], [mtf.asarray(mesh, dy, x.shape)]
    )
    watched = [tf.constant(array), tf.constant(scale), tf.constant(bias)]
    with tf.GradientTape() as tape:
        tape.watch(watched)
        mean, variance = tf.nn.moments(watched[0], [0, 1])
        expected = tf.nn.batch_normalization(
            watched[0], mean, variance, watched[2], watched[1], 1e-2
        )
    close(y, expected, 1e-4)
    for have, gradient in zip(
        results, tape.gradient(expected, watched, dy), strict=True
    ):
        close(have, gradient, 2e-4)
    close(norm.moving_mean, 0.1 * array.mean((0, 1)))
    close(norm.moving_variance, 0.9 + 0.1 * array.var((0, 1)))


def test_evaluation_takes_moving_averages_and_leaves_them(mesh, array):
    norm = layers.BatchNorm(mesh, "channels:4")
    x = mtf.asarray(mesh, array, "batch;h;channels")
    close(norm(x), array / np.sqrt(1 + 1e-3))
    mean = np.float32([100, 1, -3, 2])
    variance = np.float32([1, 4, 9, 0.5])
    norm.moving_mean.assign(mean)
    norm.moving_variance.assign(variance)
    close(norm(x), (array - mean) / np.sqrt(variance + 1e-3))
    close(norm.moving_mean, mean, 0)


def test_moving_averages_reach_the_statistics(mesh, array):
    norm = layers.BatchNorm(mesh, "channels:4", momentum=0.5)
    step = mtf.function(
        lambda x: norm(x, training=True), mesh=mesh, x="batch;h;channels"
    )
    for _ in range(25):
        y = step(array)
    close(norm.moving_mean, array.mean((0, 1)), 1e-4)
    close(norm.moving_variance, array.var((0, 1)), 1e-4)
    close(norm(mtf.asarray(mesh, array, "batch;h;channels")), y.numpy(), 1e-3)


def test_averages_move_once_where_the_layer_is_computed_again(mesh, array):
    norm = layers.BatchNorm(mesh, "channels:4", momentum=0.5)

    @mtf.function(mesh=mesh, x="batch;h;channels")
    def step(x):
        y = mtf.recompute(lambda x: mtf.tanh(norm(x, training=True)))(x)
        return mtf.gradients([mtf.reduce_sum(y * y)], [x])[0]

    step(array)
    close(norm.moving_mean, array.mean((0, 1)) / 2)


def test_averages_are_state_and_are_not_trained():
    norm = layers.BatchNorm(mtf.Mesh(""), "channels:4", name="norm")
    assert {v.name for v in norm.trainable_variables} == {"norm/scale", "norm/bias"}
    assert {v.name for v in norm.variables} == {
        "norm/scale",
        "norm/bias",
        "norm/moving_mean",
        "norm/moving_variance",
    }
    assert norm.moving_mean.kind == "state"


def test_statistics_of_half_floats_are_float32(array):
    mesh = mtf.Mesh("x:2", "batch:x")
    norm = layers.BatchNorm(mesh, "channels:4", momentum=0.0)
    x = mtf.cast(mtf.asarray(mesh, array, "batch;h;channels"), "bfloat16")
    assert norm(x, training=True).dtype == "bfloat16"
    rounded = mtf.cast(x, "float32").numpy()
    close(norm.moving_mean, rounded.mean((0, 1)), 1e-4)
    close(norm.moving_variance, rounded.var((0, 1)), 1e-4)


def test_only_numbers_for_channels_are_moved(array):
    mesh = mtf.Mesh("x:4", "batch:x", devices="abstract")
    norm = layers.BatchNorm(mesh, "channels:4")
    plan = mtf.explain(
        mtf.function(lambda x: norm(x, training=True), mesh=mesh, x="batch;h;channels"),
        array,
    )
    assert [m.kind for m in plan.collectives] == ["all_reduce"] * 2
    assert sum(m.bytes for m in plan.collectives) == 2 * 2 * 3 / 4 * 4 * 4


def test_what_is_refused():
    mesh = mtf.Mesh("")
    norm = layers.BatchNorm(mesh, "channels:4")
    with refuses(mtf.ShapeError, 'no dimension "channels"'):
        norm(mtf.ones(mesh, "batch:2;c:4"))
    with refuses(mtf.ShapeError, "no dimension besides"):
        norm(mtf.ones(mesh, "channels:4"), training=True)


@pytest.mark.parametrize("training", [False, True])
def test_float64_is_computed_in_float64(training, rng):
    x = 3.0 + rng.normal(size=(6, 4))
    norm = mtf.layers.BatchNorm(mtf.Mesh(""), "c:4")
    y = norm(mtf.asarray(norm.scale.mesh, x, "b;c"), training)
    mean, variance = (x.mean(0), x.var(0)) if training else (0.0, 1.0)
    np.testing.assert_allclose(y.numpy(), (x - mean) / np.sqrt(variance + 1e-3), 1e-12)
    assert y.dtype == "float64" and norm.moving_mean.dtype == "float32"
    if training:
        np.testing.assert_allclose(norm.moving_mean.numpy(), 0.01 * x.mean(0), 1e-5)
