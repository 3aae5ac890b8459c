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


def test_a_step_whose_metrics_create_variables_is_traced_once():
    model = CountsTraces([keras.Input((6,)), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    mtf.keras.distribute(model, mtf.Mesh("data:2", "batch:data"))
    x, y = np.ones([8, 6], "float32"), np.zeros(8, "int32")
    history = model.fit(x, y, epochs=2, batch_size=4, verbose=0).history
    assert model.traces == 1
    assert len(history["accuracy"]) == 2
