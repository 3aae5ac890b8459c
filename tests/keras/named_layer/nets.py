"""Modules of meshtf in float64, and Keras models with one of them as a layer."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import meshtf as mtf

X = np.random.default_rng(0).normal(size=(22, 8))
Y = np.tanh(X[:, :3])
FIT = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}


class Hidden(mtf.Module):
    """tanh(x w + b), with dropout in training."""

    def __init__(self, mesh: mtf.Mesh, rate: float = 0.0) -> None:
        super().__init__("hidden")
        shape, uniform = "d_model:8; d_ff:16", mtf.layers.initializers.uniform
        self.w = mtf.Variable(mesh, shape, uniform(1.0), dtype="float64")
        self.b = mtf.Variable(mesh, "d_ff:16", "zeros", dtype="float64")
        self.rate = rate

    def __call__(self, x: mtf.Tensor, training: bool) -> mtf.Tensor:
        y = mtf.tanh(mtf.einsum([x, self.w], "batch; d_ff") + self.b)
        return mtf.dropout(y, self.rate) if training and self.rate else y


def trained(layer: Any, mesh: mtf.Mesh | None = None, **inputs: Any) -> Any:
    """Returns a model of a layer and a dense one, and the losses of its training."""
    keras.utils.set_random_seed(0)
    start = keras.Input([8], **inputs)
    dense = keras.layers.Dense(3, kernel_initializer="ones")
    model = keras.Model(start, dense(layer(start)))
    model.compile("adam", "mse")
    if mesh is not None:
        mtf.keras.distribute(model, mesh)
    size = 20 if inputs else len(X)  # all batches are full
    return model, model.fit(X[:size], Y[:size], **FIT).history["loss"]
