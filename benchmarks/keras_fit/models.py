"""Two Keras models and a batch for each."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np

VOCAB, LENGTH, D_MODEL, HEADS, BLOCKS = 1000, 128, 256, 4, 4
BATCH = 8
# A model, its inputs and its labels.
Case = tuple[keras.Model, np.ndarray, np.ndarray]


def transformer() -> Case:
    """Returns an encoder of four blocks that classifies each token."""
    layers = keras.layers
    ids = keras.Input([LENGTH], dtype="int32")
    x = layers.Embedding(VOCAB, D_MODEL)(ids)
    for _ in range(BLOCKS):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(HEADS, D_MODEL // HEADS)(y, y)
        y = layers.LayerNormalization()(x)
        y = layers.Dense(4 * D_MODEL, activation="gelu")(y)
        x = x + layers.Dense(D_MODEL)(y)
    model = keras.Model(ids, layers.Dense(VOCAB)(x))
    rng = np.random.default_rng(0)
    return model, *rng.integers(0, VOCAB, [2, BATCH, LENGTH]).astype("int32")


def resnet() -> Case:
    """Returns a ResNet-50 for images of 96 x 96."""
    model = keras.applications.ResNet50(
        weights=None, input_shape=(96, 96, 3), classes=11, classifier_activation=None
    )
    rng = np.random.default_rng(0)
    images = rng.normal(size=[BATCH, 96, 96, 3]).astype("float32")
    return model, images, rng.integers(0, 11, BATCH)


MODELS: dict[str, Callable[[], Case]] = {"transformer": transformer, "resnet": resnet}
