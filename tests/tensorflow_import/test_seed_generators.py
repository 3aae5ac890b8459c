"""Keras' seed generators determine what is drawn: under every layout, in each step, resumed."""

from __future__ import annotations

import keras
import numpy as np

import meshtf as mtf

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(16, 6, 8)).astype("float32")
Y = RANDOM.normal(size=(16, 4)).astype("float32")


def _model() -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((6, 8)),
            keras.layers.GaussianNoise(0.5),
            keras.layers.SpatialDropout1D(0.3),
            keras.layers.Dense(16, activation="relu", name="hidden"),
            keras.layers.Dropout(0.5),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(4),
        ]
    )
    # The rate is 0: losses differ only by what is drawn.
    model.compile(keras.optimizers.SGD(0.0), "mse", jit_compile=False)
    return model


def _losses(model: keras.Model, layout: str, steps: int) -> list[float]:
    mtf.keras.distribute(model, mtf.Mesh("data:4; model:2", layout))
    return [float(model.train_on_batch(X, Y)) for _ in range(steps)]


def test_layouts_and_steps() -> None:
    first = _losses(_model(), "batch:data", 3)
    second = _losses(_model(), "length:model", 3)
    np.testing.assert_allclose(first, second, rtol=1e-6)
    assert len({round(loss, 6) for loss in first}) == 3


def test_goes_on_with_the_variables() -> None:
    """What a model draws depends on its variables alone. (Keras' own files leave out those of
    seed generators.)
    """
    expected = _losses(_model(), "batch:data", 3)
    before, after = _model(), _model()
    _losses(before, "batch:data", 2)
    for source, target in zip(before.variables, after.variables):
        target.assign(source)
    (last,) = _losses(after, "batch:data", 1)
    np.testing.assert_allclose(last, expected[2], rtol=1e-6)
