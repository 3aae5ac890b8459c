"""Keras' callbacks on a mesh, beside Keras on one device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import meshtf as mtf
from tests.keras.models import assert_equal, compiled, train

layers = keras.layers
callbacks = keras.callbacks
RNG = np.random.default_rng(0)
X = RNG.normal(size=(14, 6))
Y = RNG.integers(0, 3, 14)


def dense() -> keras.Model:
    """Two dense layers."""
    inputs = keras.Input((6,))
    return keras.Model(inputs, layers.Dense(3)(layers.Dense(4)(inputs)))


def mesh() -> mtf.Mesh:
    """Returns a mesh of two positions."""
    return mtf.Mesh("data:2", "batch:data")


def adam() -> keras.optimizers.Optimizer:
    """Adam, with moving averages of the weights."""
    return keras.optimizers.Adam(0.3, use_ema=True, ema_momentum=0.9)


# Each gets a folder for its files.
CALLBACKS: dict[str, Callable[[Path], Any]] = {
    "stops early": lambda _: callbacks.EarlyStopping(
        "val_loss", patience=1, restore_best_weights=True, start_from_epoch=1
    ),
    "checkpoints": lambda folder: callbacks.ModelCheckpoint(
        folder / "best.keras", save_best_only=True
    ),
    "lower rate": lambda _: callbacks.ReduceLROnPlateau(patience=1, min_delta=10.0),
    "backup": lambda folder: callbacks.BackupAndRestore(folder / "backup"),
    "tensorboard": lambda folder: callbacks.TensorBoard(
        folder / "logs", histogram_freq=1, update_freq="batch", profile_batch=0
    ),
    "table": lambda folder: callbacks.CSVLogger(folder / "log.csv"),
    "not a number": lambda _: callbacks.TerminateOnNaN(),
    "schedule": lambda _: callbacks.LearningRateScheduler(lambda k, rate: rate * 0.5),
    "averages": lambda _: callbacks.SwapEMAWeights(swap_on_epoch=True),
    "function": lambda _: callbacks.LambdaCallback(),
}


def fit(folder: Path, name: str, m: mtf.Mesh | None) -> Any:
    """Trains three epochs with a callback."""
    model = compiled(dense, adam, m)
    folder.mkdir()
    callback = CALLBACKS[name](folder)
    return train(
        model,
        X,
        Y,
        batch_size=7,
        epochs=3,
        validation_data=(X[:5], Y[:5]),
        callbacks=[callback],
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CALLBACKS)
def test_callbacks(name, tmp_path: Path) -> None:
    expected = fit(tmp_path / "keras", name, None)
    assert_equal(fit(tmp_path / "mesh", name, mesh()), expected, 1e-9)
    if name == "table":
        logs = [(tmp_path / k / "log.csv").read_text() for k in ("keras", "mesh")]
        rows = [
            [[float(x) for x in row.split(",")] for row in log.split()[1:]]
            for log in logs
        ]
        np.testing.assert_allclose(rows[1], rows[0], 1e-9)
    if name == "checkpoints":
        best = [
            keras.models.load_model(tmp_path / k / "best.keras")
            for k in ("keras", "mesh")
        ]
        np.testing.assert_allclose(best[1](X), best[0](X), 1e-9)


class Stop(callbacks.Callback):
    """Ends training by an error after an epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            raise KeyboardInterrupt


def test_resume_is_equal_to_the_bit(tmp_path: Path) -> None:
    def go(folder: Path, *more: Any) -> list[np.ndarray]:
        model = compiled(dense, lambda: keras.optimizers.AdamW(0.1), mesh())
        backup = callbacks.BackupAndRestore(folder)
        settings = {"batch_size": 7, "epochs": 3, "verbose": 0, "shuffle": False}
        model.fit(X, Y, callbacks=[*more, backup], **settings)
        return [v.numpy() for v in [*model.variables, *model.optimizer.variables]]

    expected = go(tmp_path / "one")
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "two", Stop())
    for value, other in zip(go(tmp_path / "two"), expected):
        np.testing.assert_array_equal(value, other)


def test_what_is_not_a_number_ends_training() -> None:
    x = np.where(np.arange(14)[:, None] == 9, np.nan, X)
    model = compiled(dense, adam, mesh())
    history = model.fit(
        x, Y, batch_size=7, verbose=0, epochs=2, callbacks=[callbacks.TerminateOnNaN()]
    )
    assert len(history.history["loss"]) == 1
