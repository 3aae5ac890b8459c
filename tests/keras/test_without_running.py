"""`explain`, `search` and `dimensions` of a Keras model on a mesh: nothing runs."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.errors import ArgumentError, ShapeError
from meshtf.forecast.report_data import without_indices
from meshtf.keras.layer_settings.patterns import layers_within
from tests.keras.test_roles import batch_of, distributed, transformer

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


def test_explain_names_layers() -> None:
    """Each operation of a layer, forward and backward, has its path; updates the optimizer's
    name.
    """
    model, named = distributed(functools.partial(transformer, 0.0), LAYOUT)
    forecast = named.explain(batch_of(model))
    paths = {path for _, path in layers_within(model)}
    used = {op.path for op in forecast.ops} & paths
    assert {variable.path.rpartition("/")[0] for variable in model.weights} <= used
    for phase in ("forward", "backward"):
        named_ops = [op for op in forecast.ops if op.phase == phase and op.path]
        assert sum(op.flops for op in named_ops) > 0.95 * sum(
            op.flops for op in forecast.ops if op.phase == phase
        )
    updates = [
        op for op in forecast.ops if op.phase == "update" and op.title != "write"
    ]
    assert {op.path for op in updates} == {model.optimizer.name}
    text = str(forecast)
    table = text[text.index("  modules") :].partition("\n\n")[0]
    assert all(without_indices(path) in table for path in used if path.count("/") < 3)


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


@pytest.mark.parametrize(
    "shape,text",
    [
        ([None, 10], r"batch.0. does not say the size of its axis 0,"),
        ([8, None], r"axis 1.*\n  shape +\[8, None\]\n  Give numbers"),
        (None, "does not say the number of its axes"),
    ],
)
def test_sizes_that_are_not_known(shape: Any, text: str) -> None:
    """As in the `element_spec` of a dataset."""
    _, named = distributed(transformer, LAYOUT)
    spec = tf.TensorSpec(shape, tf.int32)
    with pytest.raises(ShapeError, match=text):
        named.explain((spec, tf.TensorSpec([8], tf.int32)))


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

    with pytest.raises(ArgumentError, match="(?s)which inputs it takes.*builds it"):
        print(mtf.keras.distribute(Subclassed(), mtf.Mesh("data:2")).dimensions)


def test_a_batch_without_labels() -> None:
    model, named = distributed(transformer)
    x, y = batch_of(model)
    with pytest.raises(ArgumentError, match=r"(?s)without labels.*\(x, y\)"):
        named.explain(x)
    assert named.explain((x,), method="predict_step").ops


class Contrastive(keras.Model):
    """A step that compares each example of a batch with all of them."""

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            y = self(data[0], training=True)
            scores = tf.matmul(y, y, transpose_b=True)
            loss = tf.reduce_mean(scores**2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}


def contrastive(layout: str) -> Any:
    """Returns what `distribute` returns for a model with such a step, and a batch."""
    inputs = keras.Input([], dtype="int32")
    model = Contrastive(inputs, keras.layers.Embedding(64, 8, name="table")(inputs))
    model.compile("adam")
    mesh = mtf.Mesh("data:4; model:2", layout)
    return mtf.keras.distribute(model, mesh), (np.zeros(16, "int32"), np.zeros(16))


def test_dimensions_of_other_tensors() -> None:
    """Layouts may shard them, so that the table has them."""
    named, batch = contrastive("batch:data")
    named.explain(batch)
    assert "other tensors: batch_2 16" in str(named.dimensions)
    assert "batch_2" not in {row.name for row in named.dimensions}
    named, batch = contrastive("batch:data; batch_2:model")
    named.explain(batch)
    assert named.dimensions["batch_2"].sharded == "model"
    assert "batch_2  16    model       other tensors" in str(named.dimensions)


def test_explain_tells_lines_of_the_step() -> None:
    """Operations outside of layers have the line that calls TensorFlow."""
    named, batch = contrastive("batch:data")
    ops = [op for op in named.explain(batch).ops if op.title.startswith("einsum")]
    lines, first = inspect.getsourcelines(Contrastive.train_step)
    expected = next(k for k, line in enumerate(lines) if "matmul" in line) + first
    assert __file__ in {op.file for op in ops}
    assert expected in {op.line for op in ops}


def test_search_shards_dimensions_that_a_layout_may_name() -> None:
    """Names that a few operations have for a time are none."""
    inputs = keras.Input((16, 16, 3))
    x = keras.layers.Conv2D(8, 3, strides=2, padding="same")(inputs)
    x = keras.layers.UpSampling2D(2, interpolation="bilinear")(x)
    model = keras.Model(inputs, keras.layers.Conv2D(4, 1)(x))
    model.compile("sgd", "mse")
    named = mtf.keras.distribute(model, mtf.Mesh("data:8", "batch:data"))
    batch = (np.zeros((16, 16, 16, 3)), np.zeros((16, 16, 16, 4)))
    found = named.search(batch, devices=8, hardware="h100")
    names = {name for each in found.best for name, _ in mtf.Layout(each.layout).items()}
    assert "height" in names
    assert all(name in named.dimensions for name in names)
