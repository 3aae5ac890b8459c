"""`explain`, `search` and `dimensions` of a Keras model on a mesh: nothing runs."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.errors import ArgumentError
from tests.keras.test_names import batch_of, distributed, transformer

LAYOUT = "batch:data; heads:model; d_ff:model"


def costs(forecast: Any) -> Any:
    """Returns FLOPs, collectives and memory."""
    flops = [(op.title, op.flops, op.phase) for op in forecast.ops]
    sent = [(c.kind, c.axis, c.bytes) for c in forecast.collectives]
    return flops, sent, forecast.memory


def test_explain_is_the_forecast_of_what_runs() -> None:
    """Arrays or specs; and the weights stay as they are."""
    model, named = distributed(transformer, LAYOUT)
    batch = batch_of(model)
    before = model.get_weights()
    forecast = named.explain(batch)
    specs = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), batch)
    assert costs(named.explain(specs)) == costs(forecast)
    assert not named.placed.variables
    for x, y in zip(before, model.get_weights()):
        np.testing.assert_array_equal(x, y)
    model.train_on_batch(*batch)
    step = named.step("train_step", batch)
    arguments = step.arguments(batch)
    run = mtf.explain(step.function, named.placed.next_seed(), *arguments)
    assert costs(run) == costs(forecast)


def test_explain_of_thousands_of_positions() -> None:
    model = transformer()
    model.compile("adam", "sparse_categorical_crossentropy")
    mesh = mtf.Mesh("data:512; model:4", LAYOUT, devices="abstract")
    named = mtf.keras.distribute(model, mesh)
    forecast = named.explain(batch_of(model, 1024), hardware="h100")
    assert "2048 devices" in str(forecast)
    assert forecast.time.seconds > 0


def test_search() -> None:
    """The best layout is one that `explain` gives the same time."""
    model, named = distributed(transformer)
    batch = batch_of(model, 64)
    best = named.search(batch, devices=8, hardware="h100", max_axes=1).best[0]
    mesh = mtf.Mesh(devices="abstract", **best.mesh_settings)
    assert mesh.size == 8
    again = transformer()
    again.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    forecast = mtf.keras.distribute(again, mesh).explain(batch, hardware="h100")
    np.testing.assert_allclose(forecast.time.seconds, best.seconds, rtol=1e-6)


def test_errors() -> None:
    model = transformer()
    named = mtf.keras.distribute(model, mtf.Mesh("data:2"))
    with pytest.raises(ArgumentError, match="compile the model"):
        named.explain((np.zeros([8, 10]), 0))
    model.compile("sgd", "mse")
    with pytest.raises(ArgumentError, match="has a shape and a dtype"):
        named.explain(("text", "text"))

    class Subclassed(keras.Model):
        """A model whose inputs nobody knows."""

    with pytest.raises(ArgumentError, match="which inputs it takes"):
        print(mtf.keras.distribute(Subclassed(), mtf.Mesh("data:2")).dimensions)
