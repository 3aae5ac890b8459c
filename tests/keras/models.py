"""Small Keras models, and what `fit` makes of them on a mesh and on one device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import meshtf as mtf

layers = keras.layers


def cnn() -> keras.Model:
    """Convolutions with batch norm: images `[batch, 8, 8, 3]` to 4 classes."""
    x = inputs = keras.Input((8, 8, 3))
    for filters in (8, 12):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.ReLU()(x)
        x = layers.MaxPooling2D()(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(4)(x))


def transformer() -> keras.Model:
    """A block of attention: ids `[batch, 8]` of 16 tokens to 4 classes."""
    inputs = keras.Input((8,), dtype="int64")
    x = layers.Embedding(16, 8)(inputs)
    attended = layers.MultiHeadAttention(2, 4)(x, x)
    x = layers.LayerNormalization()(x + attended)
    y = layers.Dense(8)(layers.Dense(16, activation="gelu")(x))
    x = layers.LayerNormalization()(x + y)
    return keras.Model(inputs, layers.Dense(4)(layers.GlobalAveragePooling1D()(x)))


def batches(model: Callable[[], keras.Model], size: int, count: int) -> Any:
    """Returns inputs and labels of batches, the last one of them with half as many."""
    rng = np.random.default_rng(0)
    examples = size * count - size // 2
    if model is cnn:
        x = rng.normal(size=(examples, 8, 8, 3))
    else:
        x = rng.integers(0, 16, (examples, 8))
    return x, rng.integers(0, 4, examples)


@dataclasses.dataclass
class Trained:
    """What `fit` has made.

    Attributes:
        history: Keras' history.
        weights: By path, variables of the model, its optimizer and metrics.
    """

    history: dict[str, list[float]]
    weights: dict[str, np.ndarray]


def compiled(
    build: Callable[[], keras.Model],
    optimizer: Callable[[], keras.optimizers.Optimizer],
    mesh: mtf.Mesh | None = None,
    **settings: Any,
) -> keras.Model:
    """Returns a compiled model, distributed if there is a mesh."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    model = build()
    settings.setdefault(
        "loss", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    model.compile(optimizer(), jit_compile=False, **settings)
    if mesh is not None:
        mtf.keras.distribute(model, mesh)
    return model


def train(model: keras.Model, x: Any, y: Any = None, **settings: Any) -> Trained:
    """Calls `fit`, and returns what it has made."""
    history = model.fit(x, y, verbose=0, shuffle=False, **settings).history
    return Trained(history, weights_of(model))


def weights_of(model: keras.Model) -> dict[str, np.ndarray]:
    """Returns all variables, by their paths."""
    variables = [*model.variables, *model.metrics_variables, *model.optimizer.variables]
    return {v.path: v.numpy() for v in variables}


def assert_equal(result: Trained, expected: Trained, tolerance: float) -> None:
    """Fails unless histories and variables are equal to a tolerance, relative to them."""
    assert result.history.keys() == expected.history.keys()
    for name, values in expected.history.items():
        np.testing.assert_allclose(
            result.history[name], values, tolerance, tolerance, err_msg=name
        )
    assert result.weights.keys() == expected.weights.keys()
    for path, value in expected.weights.items():
        np.testing.assert_allclose(
            result.weights[path], value, tolerance, tolerance, err_msg=path
        )
