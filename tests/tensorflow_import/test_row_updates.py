"""Updates of rows that a TensorFlow function has looked up, beside TensorFlow and Keras."""

from __future__ import annotations

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from tests.keras.conftest import float64
from tests.keras.models import assert_equal, compiled, train

layers = keras.layers
__all__ = ["float64"]
ROWS = 600
MESHES = [
    ("data:2", "batch:data", None),
    ("data:2; model:2", "batch:data; vocab:model", None),
    ("data:2; model:2", "batch:data; vocab:model", "spmd:cpu"),
    ("data:2", "batch:data; vocab:data", None),
    ("model:4", "d_model:model", None),
]
RNG = np.random.default_rng(0)
IDS = RNG.integers(0, ROWS, (8, 8))
IDS[:4] = IDS[4:]
LABELS = RNG.integers(0, 4, 8)


def two_lookups() -> keras.Model:
    """Ids `[batch, 8]`, looked up twice in one table, to 4 classes."""
    ids = keras.Input((8,), dtype="int64", name="ids")
    table = layers.Embedding(ROWS, 8)
    x = table(ids) + table(ids[:, ::-1]) * 0.5
    return keras.Model(ids, layers.Dense(4)(layers.Flatten()(x)))


def descent() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.5)


def clipped() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.5, global_clipnorm=0.1)


def adagrad() -> keras.optimizers.Optimizer:
    return keras.optimizers.Adagrad(0.5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("axes,layout,devices", MESHES)
@pytest.mark.parametrize("optimizer", [descent, clipped, adagrad])
def test_tables_of_keras(axes: str, layout: str, devices: Any, optimizer: Any) -> None:
    settings = {"batch_size": 4, "epochs": 2}
    expected = train(compiled(two_lookups, optimizer), IDS, LABELS, **settings)
    model = compiled(two_lookups, optimizer)
    named = mtf.keras.distribute(model, mtf.Mesh(axes, layout, devices=devices))
    assert_equal(train(model, IDS, LABELS, **settings), expected, 1e-9)
    if optimizer is descent:
        table = ROWS * 8 * 8
        forecast = named.explain((IDS[:4], LABELS[:4]))
        assert all(c.bytes < table / 4 for c in forecast.collectives)
        assert forecast.memory.activations < table / 2


def test_rows_between_repeated_layers() -> None:
    """The table is outside of the loop of layers."""

    def build() -> keras.Model:
        ids = keras.Input((8,), dtype="int64", name="ids")
        x = layers.Flatten()(layers.Embedding(ROWS, 2)(ids))
        for k in range(2):
            x = layers.Dense(16, "tanh", name=f"layer_{k}")(x)
        return keras.Model(ids, layers.Dense(4)(x))

    expected = train(compiled(build, descent), IDS, LABELS, batch_size=4)
    model = compiled(build, descent)
    mesh = mtf.Mesh("stage:2", "layers:stage")
    mtf.keras.distribute(model, mesh, repeated=r"layer_\d")
    assert_equal(train(model, IDS, LABELS, batch_size=4), expected, 1e-9)


class Counts(tf.Module):
    """Counts of ids; `checked` looks them up as well."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = tf.Variable(tf.zeros([ROWS, 2]))

    @tf.function(input_signature=[tf.TensorSpec([4], tf.int64)])
    def checked(self, ids: tf.Tensor) -> tf.Tensor:
        present = tf.gather(self.counts, ids)
        self.counts.scatter_add(tf.IndexedSlices(tf.ones([4, 2]), ids))
        return present

    @tf.function(input_signature=[tf.TensorSpec([4], tf.int64)])
    def unchecked(self, ids: tf.Tensor) -> tf.Tensor:
        self.counts.scatter_add(tf.IndexedSlices(tf.ones([4, 2]), ids))
        return ids


@pytest.mark.parametrize("name", ["checked", "unchecked"])
@pytest.mark.parametrize("axes", ["", "data:2"])
def test_additions_of_a_function(name: str, axes: str) -> None:
    """By rows only where a lookup checks the ids."""
    ids = np.array([3, ROWS - 1, 3, 0])
    mesh = mtf.Mesh(axes, "ids:data" if axes else "")
    module = Counts()  # a bound method alone does not keep it
    program = mtf.from_tensorflow(getattr(module, name), mesh, inputs={"ids": "ids"})
    for _ in range(2):
        program(ids)
    (counts,) = program.variables
    expected = np.bincount(ids, minlength=ROWS) * 2.0
    np.testing.assert_array_equal(counts.numpy(), np.stack([expected] * 2, 1))
    forecast = mtf.explain(program, ids)
    by_rows = forecast.memory.activations < ROWS * 2 * 4
    assert by_rows == (name == "checked")
