"""Ragged ids as tensors of fixed shape, eagerly and in tf.data."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf import layers
from tests.support.refusals import refuses

IDS = [[3, 7], [], [5]]


def test_rows_are_padded():
    ids = layers.pad_ragged(tf.ragged.constant(IDS), 3)
    assert ids.numpy().tolist() == [[3, 7, -1], [-1, -1, -1], [5, -1, -1]]
    weights = layers.pad_ragged(tf.ragged.constant([[0.5], [2.0, 1.0]]), 2, 0.0)
    assert weights.numpy().tolist() == [[0.5, 0.0], [2.0, 1.0]]


def test_a_longer_row_is_refused_and_not_truncated():
    ragged = tf.ragged.constant(IDS)
    with refuses(mtf.ShapeError, "more than 1 values: 2", r"ragged\[:, :1\]"):
        layers.pad_ragged(ragged, 1)
    batches = tf.data.Dataset.from_tensors(ragged)
    padded = next(iter(batches.map(lambda x: layers.pad_ragged(x, 2))))
    assert padded.shape == (3, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="more than 1 values"):
        next(iter(batches.map(lambda x: layers.pad_ragged(x, 1))))


def test_what_is_not_ragged_is_refused():
    for x in (np.ones((2, 3)), tf.ones([2, 3]), tf.ragged.constant([[[1], [2, 3]]])):
        with refuses(mtf.ArgumentError, "tf.RaggedTensor"):
            layers.pad_ragged(x, 3)
