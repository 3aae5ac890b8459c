"""How a model's step is traced."""

from __future__ import annotations

import keras
import numpy as np

import meshtf as mtf


class CountsTraces(keras.Sequential):
    """A model that counts how often its training step is called."""

    traces = 0

    def train_step(self, data):
        self.traces += 1
        return super().train_step(data)


class BuiltInAStep(keras.Model):
    """A model whose layer is built where it is first called."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        return self.dense(x)


def test_layers_that_a_step_builds_get_the_weights_that_keras_gives_them():
    x, y = np.ones([8, 6], "float32"), np.zeros([8, 3], "float32")
    kernels = []
    for mesh in (None, mtf.Mesh("data:2", "batch:data")):
        keras.utils.set_random_seed(3)
        model = BuiltInAStep()
        model.compile("sgd", "mse", jit_compile=False)
        if mesh is not None:
            mtf.keras.distribute(model, mesh)
        model.train_on_batch(x, y)
        kernels.append(model.dense.kernel.numpy())
    np.testing.assert_allclose(kernels[0], kernels[1], 1e-6, 1e-7)


def test_a_step_whose_metrics_create_variables_is_traced_once():
    model = CountsTraces([keras.Input((6,)), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    mtf.keras.distribute(model, mtf.Mesh("data:2", "batch:data"))
    x, y = np.ones([8, 6], "float32"), np.zeros(8, "int32")
    history = model.fit(x, y, epochs=2, batch_size=4, verbose=0).history
    assert model.traces == 1
    assert len(history["accuracy"]) == 2
