"""Scatters of sharded updates: partial sums, and errors as in TensorFlow."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.errors import IndexRangeError


def test_an_index_out_of_range_is_an_error() -> None:
    """The row and column [0, 5] of a matrix of 4 columns are not [1, 1]."""

    def matrix(i: tf.Tensor) -> tf.Tensor:
        return tf.scatter_nd(i, tf.ones([8]), [4, 4])

    spec = tf.TensorSpec([8, 2], tf.int32)
    inputs = {"i": "batch; axes"}
    program = mtf.from_tensorflow(
        matrix, mtf.Mesh("d:8", "batch:d"), spec, inputs=inputs
    )
    indices = np.ones([8, 2], "int32")
    assert program(i=indices).numpy()[1, 1] == 8
    indices[3] = (0, 5)
    with pytest.raises(IndexRangeError):
        program(i=indices).numpy()


def test_a_confusion_matrix_gathers_no_batch() -> None:
    """And has Keras' values."""
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(4)])
    metric = keras.metrics.MeanIoU(4, sparse_y_pred=False)
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=[metric])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 16)).astype("float32")
    y = rng.integers(0, 4, (64,))
    expected = model.evaluate(x, y, batch_size=64, verbose=0)
    named = mtf.keras.distribute(model, mtf.Mesh("data:8", "batch:data"))
    assert np.allclose(model.evaluate(x, y, batch_size=64, verbose=0), expected, 1e-4)
    forecast = named.explain((x, y), method="test_step")
    assert {c.kind for c in forecast.collectives} == {"all_reduce"}
