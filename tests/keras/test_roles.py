"""Names of the dimensions of Keras models, and errors of names that no dimension has."""

from __future__ import annotations

import itertools
from typing import Any

import keras
import numpy as np
import pytest

import meshtf as mtf
from meshtf.errors import ArgumentError, LayoutError

layers = keras.layers


def transformer(dropout: float = 0.1) -> keras.Model:
    """A block of attention with a head that classifies."""
    inputs = keras.Input((10,), dtype="int32", name="token_ids")
    x = layers.Embedding(60, 24)(inputs)
    x = layers.LayerNormalization()(
        x + layers.MultiHeadAttention(4, 6, dropout=dropout)(x, x)
    )
    x = x + layers.Dense(24)(layers.Dense(40, activation="gelu")(x))
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x))


def grouped() -> keras.Model:
    """Attention whose keys and values have fewer heads."""
    inputs = keras.Input((10, 24))
    x = layers.GroupQueryAttention(6, 4, 2)(inputs, inputs)
    return keras.Model(inputs, x)


def convolutions() -> keras.Model:
    """Images to classes."""
    x = inputs = keras.Input((12, 12, 3))
    for filters in (8, 16, 24):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D(padding="same")(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10, name="predictions")(x))


def recurrent() -> keras.Model:
    """Ids through an LSTM."""
    inputs = keras.Input((10,), dtype="int32")
    x = layers.LSTM(20)(layers.Embedding(60, 24)(inputs))
    return keras.Model(inputs, layers.Dense(7, name="score")(x))


def recommender() -> keras.Model:
    """A table for each column of ids, beside numbers."""
    ids, numbers = keras.Input((2,), dtype="int32"), keras.Input((5,))
    rows = [layers.Embedding(n, 12)(ids[:, k]) for k, n in enumerate((50, 60))]
    x = layers.Concatenate()([*rows, numbers])
    x = layers.Dense(40, activation="relu")(layers.Dense(32, activation="relu")(x))
    return keras.Model([ids, numbers], layers.Dense(1)(x))


NAMES = {
    transformer: {
        "batch": (8,),
        "length": (10,),
        "vocab": (60,),
        "d_model": (24,),
        "heads": (4,),
        "d_head": (6,),
        "d_ff": (40,),
        "classes": (3,),
    },
    grouped: {
        "batch": (8,),
        "length": (10,),
        "d_model": (24,),
        "heads": (2,),
        "group": (2,),
        "d_head": (6,),
    },
    convolutions: {
        "batch": (8,),
        "height": (2, 3, 6, 12),
        "width": (2, 3, 6, 12),
        "input_channels": (3,),
        "channels": (16,),
        "channels_2": (8, 24),
        "k_height": (3,),
        "k_width": (3,),
        "classes": (10,),
    },
    recurrent: {
        "batch": (8,),
        "length": (10,),
        "vocab": (60,),
        "d_model": (24,),
        "gates": (4,),
        "units": (20,),
        "state": (20,),
        "score": (7,),
    },
    recommender: {
        "batch": (8,),
        "columns": (2,),
        "features": (5,),
        "vocab": (50, 60),
        "d_model": (12,),
        "d_model_2": (29,),
        "dense": (32,),
        "dense_2": (40,),
    },
}


def distributed(build: Any, layout: str = "", **settings: Any) -> Any:
    """Returns a compiled model on a mesh, and what `distribute` returns."""
    model = build()
    loss = "mse"
    if build in (transformer, convolutions):
        loss = keras.losses.SparseCategoricalCrossentropy(
            from_logits=build is convolutions
        )
    model.compile("adam", loss, metrics=["mae"] if loss == "mse" else ["accuracy"])
    mesh = mtf.Mesh("data:4; model:2", layout)
    return model, mtf.keras.distribute(model, mesh, **settings)


def batch_of(model: Any, size: int = 8) -> Any:
    """Returns a batch for a model."""
    x = [
        np.zeros([size, *t.shape[1:]], keras.backend.standardize_dtype(t.dtype))
        for t in model.inputs
    ]
    if model.loss == "mse":
        y = np.zeros([size, *model.output.shape[1:]], keras.config.floatx())
    else:
        y = np.zeros([size], "int32")
    return (x if len(x) > 1 else x[0]), y


@pytest.mark.parametrize("build", NAMES)
def test_names(build: Any) -> None:
    """Before any step runs."""
    _, named = distributed(build)
    assert {row.name: row.sizes for row in named.dimensions} == NAMES[build]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("build", [transformer, convolutions, recurrent])
def test_names_are_stable(build: Any) -> None:
    """The same in training, evaluation and prediction, in any order, and for other batches; and
    none of an optimizer, a metric or a seed.
    """
    distinct = set()
    for methods in (("train", "test", "predict"), ("predict", "test", "train")):
        model, named = distributed(build)
        paths = {id(v): v.path for v in model.variables}
        for method, size in itertools.product(methods, (8, 12)):
            program = named.step(f"{method}_step", batch_of(model, size)).program
            values = program.program.on_entry.values()
            inputs = program.program.inputs[: len(model.inputs)]
            layer_names = {
                paths[id(v.variable)].split("/")[-1] + str(v.shape): program.names_of(v)
                for v in values
                if id(v.variable) in paths and "seed" not in v.path
            }
            distinct.add(
                str([*map(program.names_of, inputs), sorted(layer_names.items())])
            )
        assert {row.name for row in named.dimensions} == set(NAMES[build])
    assert len(distinct) == 1, distinct


def test_inputs_have_their_names_in_the_table() -> None:
    _, named = distributed(transformer, "batch:data; heads:model")
    table = named.dimensions
    assert table["batch"].inputs == ("token_ids",)
    assert table["heads"].sharded == "model"
    assert table["heads"].sizes == (4,)
    assert any("query/kernel" in path for path in table["heads"].variables)
    assert "d_ff" in str(table) and not table.replicated


def test_the_table_has_what_runs_replicated() -> None:
    """With its share of the FLOPs, which is small beside a large product."""
    inputs = keras.Input((6, 6))
    _, x = keras.ops.eigh(inputs)
    model = keras.Model(inputs, layers.Dense(64)(keras.ops.tanh(x)))
    table = mtf.keras.distribute(model, mtf.Mesh("data:2", "batch:data")).dimensions
    kinds = {row.kind for row in table.replicated}
    assert "SelfAdjointEigV2" in kinds
    share = sum(row.share for row in table.replicated)
    assert 0 < share < 0.5
    assert f"replicated, {100 * share:.1f} % of the FLOPs" in str(table)


def test_dimensions_are_renamed() -> None:
    model, named = distributed(
        transformer, "batch:data; d_inner:model", names={"d_ff": "d_inner"}
    )
    assert named.dimensions["d_inner"].sharded == "model"
    model.fit(*batch_of(model), batch_size=8, verbose=0)
    assert "d_ff" not in named.dimensions


@pytest.mark.parametrize(
    "layout,names,error,text",
    [
        ("batch:data; head:model", {}, LayoutError, "similar +heads"),
        ("d_ff:model", {"d_ff": "d_inner"}, LayoutError, 'Its name is "d_inner"'),
        ("", {"d_f": "d_inner"}, ArgumentError, "similar +d_ff"),
        ("", {"d_ff": "d_model"}, ArgumentError, "an operation has both"),
    ],
)
def test_unknown_names(layout: str, names: Any, error: Any, text: str) -> None:
    """They are errors before anything runs."""
    model, _ = distributed(transformer, layout, names=names)
    before = model.get_weights()
    with pytest.raises(error, match=text):
        model.fit(*batch_of(model), batch_size=8, verbose=0)
    for x, y in zip(before, model.get_weights()):
        np.testing.assert_array_equal(x, y)
