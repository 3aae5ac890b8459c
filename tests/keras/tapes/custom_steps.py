"""Runs models with a `train_step` of their own on one device and on a mesh."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import meshtf as mtf


def two_layers(cls: type[keras.Model]) -> keras.Model:
    """Returns a model of a class: two dense layers, [batch, 6] to [batch, 3]."""
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(4, activation="tanh")(inputs)
    model = cls(inputs, keras.layers.Dense(3)(hidden))
    model.compile("sgd", jit_compile=False)
    return model


def run_both(build: Any, data: Any, count: int = 3) -> Any:
    """Compares logs and variables after some steps on one device and on a mesh; returns the
    step of the mesh.
    """
    results = []
    for mesh in (None, mtf.Mesh("data:2; model:2", "batch:data")):
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        model = build()
        if mesh is not None:
            named = mtf.keras.distribute(model, mesh)
        logs = [model.train_on_batch(*data, return_dict=True) for _ in range(count)]
        results.append((logs, [v.numpy() for v in model.variables]))
    for log, expected in zip(results[1][0], results[0][0]):
        assert log.keys() == expected.keys()
        for name, value in expected.items():
            if np.asarray(value).dtype == object:  # of None, in some versions of Keras
                assert np.asarray(log[name]).item() is np.asarray(value).item() is None
            else:
                np.testing.assert_allclose(log[name], value, 1e-9, err_msg=name)
    for value, expected in zip(results[1][1], results[0][1]):
        np.testing.assert_allclose(value, expected, 1e-9, 1e-9)
    return named
