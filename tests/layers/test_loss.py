"""Losses against Keras, under layouts that shard what they sum over."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf import layers
from tests.support.refusals import refuses


@pytest.fixture(params=["", "b:x", "c:x", "b:x;c:y"], ids=str)
def mesh(request):
    return mtf.Mesh("x:2;y:2", request.param)


def check(mesh, ours, theirs, *arrays):
    """Compares a loss, and its gradient to the first array, with TensorFlow's."""
    named = [mtf.asarray(mesh, x, "b;c" if np.ndim(x) > 1 else "b") for x in arrays]
    first = tf.constant(arrays[0])
    with tf.GradientTape() as tape:
        tape.watch(first)
        expected = theirs(first, *arrays[1:])
    have = ours(*named)
    assert have.shape == mtf.Shape("")
    np.testing.assert_allclose(float(have), float(expected), rtol=1e-5)
    np.testing.assert_allclose(
        mtf.gradients([have], named[:1])[0].numpy(),
        tape.gradient(expected, first).numpy(),
        rtol=1e-4,
        atol=1e-6,
    )


def test_sigmoid_cross_entropy(mesh, rng):
    logits = (rng.normal(size=(4, 6)) * 20).astype("float32")
    for targets in (rng.random((4, 6)).astype("float32"), rng.random((4, 6)) < 0.5):
        check(
            mesh,
            layers.sigmoid_cross_entropy,
            lambda x, t: tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(t, "float32"), x)
            ),
            logits,
            targets,
        )


def test_mean_squared_error_weighs_examples(mesh, rng):
    x, y = rng.normal(size=(2, 4, 6)).astype("float32")
    check(
        mesh, layers.mean_squared_error, lambda x, y: tf.reduce_mean((x - y) ** 2), x, y
    )
    weights = np.array([1, 0, 3, 0], "float32")
    check(
        mesh,
        layers.mean_squared_error,
        lambda x, y, w: tf.reduce_sum((x - y) ** 2 * w[:, None]) / 4 / 6,
        x,
        y,
        weights,
    )


def test_padding_counts_for_nothing(mesh, rng):
    logits = rng.normal(size=(4, 6)).astype("float32")
    labels = np.array([3, 0, 5, 0], "int32")
    check(
        mesh,
        lambda x, y: layers.softmax_cross_entropy(
            x, y, "c", weights=layers.weights_nonzero(y), label_smoothing=0.1
        ),
        lambda x, y: tf.reduce_mean(
            keras.losses.categorical_crossentropy(
                np.eye(6)[y], x, True, label_smoothing=0.1
            )[::2]
        ),
        logits,
        labels,
    )


def test_half_floats_are_summed_in_float32():
    x = mtf.ones(mtf.Mesh(""), "b:4;c:6", "bfloat16")
    for loss in (layers.sigmoid_cross_entropy, layers.mean_squared_error):
        assert loss(x, x).dtype == "float32"


def test_targets_of_other_dimensions_are_refused():
    x = mtf.ones(mtf.Mesh(""), "b:4;c:6")
    for loss in (layers.sigmoid_cross_entropy, layers.mean_squared_error):
        with refuses(
            mtf.ShapeError,
            r"targets of \[b:4\] do not fit \[b:4 c:6\]",
            "mtf.broadcast",
        ):
            loss(x, mtf.reduce_sum(x, "c"))


@pytest.mark.parametrize("weighted", [False, True])
def test_negative_labels_are_ignored(mesh, rng, weighted):
    logits = rng.normal(size=(4, 6)).astype("float32")
    labels = np.array([2, -1, 0, -100], "int32")
    weights = np.array([1, 2, 0.5, 3], "float32")

    def ours(x, y, *w):
        return layers.softmax_cross_entropy(x, y, "c", weights=w[0] if w else None)

    def theirs(x, y, w=1.0):
        counted = np.where(y >= 0, w, 0).astype("float32")
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(np.maximum(y, 0), x)
        return tf.reduce_sum(losses * counted) / counted.sum()

    check(mesh, ours, theirs, logits, labels, *([weights] if weighted else []))


def test_ignored_labels_do_not_count():
    mesh = mtf.Mesh("")
    logits = mtf.zeros(mesh, "batch:4 c:4")
    labels = mtf.asarray(mesh, np.array([0, 1, 2, -1], "int32"), "batch")
    loss = layers.softmax_cross_entropy(logits, labels, "c")
    np.testing.assert_allclose(float(loss), np.log(4), rtol=1e-6)
    ignored = layers.softmax_cross_entropy(logits, labels * 0 - 1, "c")
    assert float(ignored) == 0.0
    # Independent labels follow the same rule.
    targets = mtf.asarray(mesh, np.array([[0, 1], [-1, -1]], "int32"), "batch;c")
    scores = mtf.zeros(mesh, "batch:2 c:2")
    binary = layers.sigmoid_cross_entropy(scores, targets)
    np.testing.assert_allclose(float(binary), np.log(2), rtol=1e-6)
