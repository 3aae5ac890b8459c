"""Layers that a Keras model repeats as one loop: pipelines of Keras models."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest

import meshtf as mtf
from meshtf.errors import ArgumentError, LayoutError, PlanError
from tests.keras.beside_keras.test_objects import SPECIAL, optimizers, subclasses
from tests.keras.layer_settings.encoder import (
    Block,
    Small,
    adam,
    batch,
    distributed,
    encoder,
    trained,
)
from tests.keras.models import Trained, assert_equal, compiled, train, weights_of

layers = keras.layers
REPEATED = r"layer_\d"
MESHES = [
    ("data:2", "batch:data", ""),
    ("stage:2; data:2", "layers:stage; batch:data", ""),
    ("stage:2; data:2", "layers:stage; batch:data", "d_model:data"),
    ("stage:4", "layers:stage; vocab:stage", ""),
    ("stage:2; model:2", "layers:stage; heads:model; d_ff:model", ""),
]


class Causal(Block):
    """A block whose positions see those before."""

    def call(self, x: Any) -> Any:
        x = self.norm(x + self.attention(x, x, use_causal_mask=True))
        return x + self.down(self.up(x))


class Dropout(Small):
    """A block with dropout."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.drop = layers.Dropout(0.3)

    def call(self, x: Any, training: Any = None) -> Any:
        return x + self.down(self.drop(self.up(x), training=training))


class Penalized(Block):
    """A block that adds to the loss."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        penalty = keras.regularizers.L2(0.01)
        self.up = layers.Dense(
            16,
            activation="gelu",
            name="up",
            kernel_regularizer=penalty,
            activity_regularizer=penalty,
        )


class BatchNormalized(Small):
    """A block with statistics of the batch."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.norm = layers.BatchNormalization(name="norm")

    def build(self, shape: Any) -> None:
        super().build(shape)
        self.norm.build(shape)

    def call(self, x: Any, training: Any = None) -> Any:
        return self.norm(super().call(x), training=training)


def frozen() -> keras.Model:
    """A model of which only the last two blocks are trained."""
    model = encoder(blocks=4)
    for name in ("tokens", "layer_0", "layer_1"):
        model.get_layer(name).trainable = False
    return model


def all_depths() -> keras.Model:
    """A model that uses what each block gives."""
    inputs = keras.Input((8,), dtype="int64", name="ids")
    x = layers.Embedding(16, 8, name="tokens")(inputs)
    results = []
    for k in range(4):
        x = Block(f"layer_{k}")(x)
        results.append(x)
    x = layers.GlobalAveragePooling1D()(layers.Concatenate()(results))
    return keras.Model(inputs, layers.Dense(4, name="head")(x))


def by_groups() -> keras.Model:
    """Blocks that are no layers of their own."""
    inputs = keras.Input((8,), dtype="int64", name="ids")
    x = layers.Embedding(16, 8, name="tokens")(inputs)
    for k in range(4):
        y = layers.Dense(16, "gelu", name=f"layer{k}_up")(x)
        y = layers.Dense(8, name=f"layer{k}_down")(y)
        x = layers.Add(name=f"layer{k}_add")([x, y])
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(4, name="head")(x))


MODELS = {
    "small": functools.partial(encoder, Small, blocks=4),
    "attention": functools.partial(encoder, blocks=4),
    "causal": functools.partial(encoder, Causal, blocks=4),
    "penalized": functools.partial(encoder, Penalized, blocks=4),
    "frozen": frozen,
    "all_depths": all_depths,
    "by_groups": by_groups,
}


@functools.cache
def by_keras(name: str) -> Trained:
    """Returns what Keras makes of two steps."""
    return trained(compiled(MODELS[name], adam))


def piped(
    build: Any = MODELS["small"], axes: str = "stage:2", layout: str = "layers:stage"
) -> Any:
    """Returns a model in two stages, and what `distribute` returned."""
    mesh = mtf.Mesh(axes, layout, microbatches=2)
    return distributed(mesh, build, repeated=REPEATED)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("axes,layout,variables", MESHES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
def test_it_trains_as_on_one_device(axes, layout, variables, name, devices) -> None:
    """To 1e-9 in float64; and where the layout says so, it is a pipeline."""
    if name == "by_groups":
        layout = layout.replace("; heads:model", "")
    mesh = mtf.Mesh(axes, layout, variable_layout=variables, devices=devices)
    pattern = r"(layer\d)_.*" if name == "by_groups" else REPEATED
    model, named = distributed(mesh, MODELS[name], repeated=pattern)
    assert_equal(trained(model), by_keras(name), 1e-9)
    is_pipeline = bool(named.explain(batch()).pipelines)
    assert is_pipeline == ("stage" in axes)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", subclasses(optimizers, optimizers.Optimizer))
def test_optimizers_update_all_layers_at_once(name) -> None:
    """As on one device; and no device gets variables of another stage."""
    if name in ("MultiOptimizer", "Lion"):  # Lion takes signs of rounding errors
        pytest.skip("its steps cannot be compared for this model")
    make = SPECIAL.get(name) or getattr(optimizers, name)
    results = []
    for mesh in (None, mtf.Mesh("stage:2", "layers:stage", microbatches=2)):
        model = compiled(by_groups, make)
        # Keras loses what `build` assigns if that happens in a trace.
        model.optimizer.build(model.trainable_variables)
        if mesh is not None:
            named = mtf.keras.distribute(model, mesh, repeated=r"(layer\d)_.*")
        results.append(trained(model))
    tolerance = 1e-6 if name in ("Adafactor", "Muon") else 1e-9
    assert_equal(results[1], results[0], tolerance)
    if name not in ("Adafactor", "Muon", "LossScaleOptimizer"):
        collectives = named.explain(batch()).collectives
        gathers = [c for c in collectives if c.kind == "all_gather"]
        # The results of the last stage have a batch; what else is gathered are scalars.
        of_variables = [c for c in gathers if "batch" not in dict(c.tensor.shape)]
        assert len(of_variables) < len(gathers)
        assert sum(c.bytes for c in of_variables) < 100


def test_each_stage_stores_its_layers() -> None:
    stored = []
    for axes, layout in [("stage:4", ""), ("stage:4", "layers:stage")]:
        _, named = piped(axes=axes, layout=layout)
        memory = named.explain(batch()).memory
        stored.append(memory.parameters + memory.optimizer_state)
    in_layers = sum(v.numpy().nbytes for v in variables_of_layers(named.model)) * 3
    assert stored[0] - stored[1] == in_layers * 3 / 4
    (pipeline,) = named.explain(batch()).pipelines
    assert (pipeline.stages, pipeline.microbatches) == (4, 2)


def variables_of_layers(model: keras.Model) -> list[Any]:
    return [v for x in model.layers if x.name.startswith("layer_") for v in x.weights]


def test_dropout_is_that_of_other_layouts() -> None:
    results = []
    for axes, layout in [("", ""), ("stage:2; data:2", "layers:stage; batch:data")]:
        model, _ = piped(functools.partial(encoder, Dropout, blocks=4), axes, layout)
        results.append(trained(model))
    assert_equal(results[1], results[0], 1e-9)
    losses = results[0].history["loss"]
    model, _ = piped()
    assert trained(model).history["loss"] != losses


def test_recomputation_of_layers() -> None:
    memory = []
    for recompute in (None, REPEATED):
        mesh = mtf.Mesh("stage:2; data:2", "layers:stage; batch:data")
        settings: Any = {"repeated": REPEATED, "recompute": recompute}
        model, named = distributed(mesh, MODELS["small"], **settings)
        assert_equal(trained(model), by_keras("small"), 1e-9)
        memory.append(named.explain(batch()).memory.activations)
    assert memory[1] < 0.7 * memory[0]


def test_weights_are_read_and_written_by_layer(tmp_path) -> None:
    """Before, between and after steps, of one layer and of all; and files."""
    model, _ = piped()
    plain = compiled(MODELS["small"], adam)
    x, y = batch()
    for each in (plain, model):
        each.predict(x[:4], verbose=0)
        kernel = each.get_layer("layer_1").up.kernel
        kernel.assign(kernel * 2.0)
        each.train_on_batch(x, y)
        kernel = each.get_layer("layer_2").up.kernel
        kernel.assign(kernel.numpy() * 0.5)
        each.evaluate(x, y, verbose=0)
        each.train_on_batch(x, y)
    assert_equal(Trained({}, weights_of(model)), Trained({}, weights_of(plain)), 1e-9)
    model.save_weights(tmp_path / "w.weights.h5")
    model.train_on_batch(x, y)
    model.load_weights(tmp_path / "w.weights.h5")
    for value, expected in zip(model.get_weights(), plain.get_weights()):
        np.testing.assert_allclose(value, expected, 1e-9, 1e-9)
    model.compile("sgd", model.loss)
    plain.compile("sgd", plain.loss)
    expected = train(plain, x, y, batch_size=8).history
    np.testing.assert_allclose(
        train(model, x, y, batch_size=8).history["loss"], expected["loss"], 1e-9
    )


@pytest.mark.parametrize("repeated", [None, REPEATED])
def test_checkpoints_on_another_mesh(tmp_path, repeated) -> None:
    """Training goes on as if it had not stopped."""
    x, y = batch()
    models = []
    for axes, layout in [("stage:2", "layers:stage"), ("data:2", "batch:data")]:
        layout = layout if repeated else "batch:stage" if "stage" in axes else layout
        mesh = mtf.Mesh(axes, layout)
        models.append(distributed(mesh, MODELS["small"], repeated=repeated))
    (model, named), (other, named_other) = models
    for _ in range(2):
        model.train_on_batch(x, y)
    mtf.checkpoints.save(str(tmp_path), 2, named.variables((x, y)))
    kernel = other.get_layer("layer_2").up.kernel
    kernel.assign(kernel * 0.0)
    mtf.checkpoints.restore_latest(str(tmp_path), named_other.variables((x, y)))
    for value, expected in zip(other.get_weights(), model.get_weights()):
        np.testing.assert_array_equal(value, expected)
    losses = [each.train_on_batch(x, y) for each in (model, other)]
    np.testing.assert_allclose(losses[1], losses[0], 1e-12)


def test_statistics_of_the_batch_are_no_pipeline() -> None:
    """A loop has them, stages cannot."""
    build = functools.partial(encoder, BatchNormalized, blocks=4)
    expected = trained(compiled(build, adam))
    model, _ = piped(build, "data:2", "batch:data")
    assert_equal(trained(model), expected, 1e-7)
    model, _ = piped(build)
    with pytest.raises(PlanError, match="layer_0/norm"):
        trained(model)


def test_search_finds_pipelines() -> None:
    _, named = piped()
    found = named.search(batch(), devices=4, hardware="h100", stages=(2,))
    assert "layers:stage" in str(found)


def differing(*settings: Any) -> keras.Model:
    x = inputs = keras.Input((8,))
    for k, (units, activation) in enumerate(settings):
        x = layers.Dense(units, activation, name=f"layer_{k}")(x)
    return keras.Model(inputs, layers.Dense(4)(x))


RELU = (8, "relu")


@pytest.mark.parametrize(
    "build,pattern,message",
    [
        (lambda: differing(RELU, (8, "tanh")), REPEATED, "has Relu .* Tanh"),
        (lambda: differing(RELU, (16, None)), REPEATED, r"layer_1/kernel \[8, 16\]"),
        (by_groups, r"(layer\d)_(?:up|down)", "layer0_add"),
        (MODELS["small"], r"layer_1", "1 layer is repeated"),
        (MODELS["small"], r"block_\d", "no layer is repeated"),
        (MODELS["small"], r"layer_[02]", "operations"),
    ],
)
def test_layers_that_are_no_loop_are_refused(build, pattern, message) -> None:
    model = compiled(build, adam)
    mesh = mtf.Mesh("", "")
    with pytest.raises(ArgumentError, match=message):
        named = mtf.keras.distribute(model, mesh, repeated=pattern)
        named.explain((np.zeros([8, 8]), np.zeros([8])))


def test_regions_hold_for_all_layers_or_none() -> None:
    mesh = mtf.Mesh("stage:2; model:2", "layers:stage")
    region = {r"layer_\d/.*": "d_ff:model"}
    model, _ = distributed(mesh, MODELS["small"], regions=region, repeated=REPEATED)
    assert_equal(trained(model), by_keras("small"), 1e-9)
    region = {"layer_1/.*": "d_ff:model"}
    model, _ = distributed(mesh, MODELS["small"], regions=region, repeated=REPEATED)
    with pytest.raises(ArgumentError, match="d_ff:model"):
        trained(model)


def test_a_layout_of_layers_needs_repeated_ones() -> None:
    model, _ = distributed(mtf.Mesh("stage:2", "layers:stage"), MODELS["small"])
    with pytest.raises(LayoutError, match="repeated="):
        trained(model)
