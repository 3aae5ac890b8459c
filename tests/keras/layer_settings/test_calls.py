"""Recomputation of layers of a Keras model: by their paths, and by `keras.remat`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.errors import ArgumentError
from tests.keras.layer_settings.encoder import (
    Block,
    adam,
    batch,
    distributed,
    encoder,
    trained,
)
from tests.keras.models import (
    Trained,
    assert_equal,
    batches,
    cnn,
    compiled,
    train,
)

layers = keras.layers
LAYOUTS = [
    ("data:8", "batch:data"),
    ("data:2; model:4", "batch:data; heads:model; d_ff:model"),
]


class Remat(Block):
    """A block that Keras computes again."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.again = keras.remat(super().call)

    def call(self, x: Any) -> Any:
        return self.again(x)


class RematTable(layers.Layer):
    """A table of embeddings, whose gradient is one of rows, computed again."""

    def __init__(self) -> None:
        super().__init__(name="tokens")
        self.table = layers.Embedding(16, 8)
        self.dense = layers.Dense(8)
        self.again = keras.remat(lambda ids: self.dense(self.table(ids)))

    def build(self, shape: Any) -> None:
        self.table.build(shape)
        self.dense.build((*shape, 8))

    def call(self, ids: Any) -> Any:
        return self.again(ids)


def with_table() -> keras.Model:
    """Ids `[batch, 8]` to 4 classes; many ids do not occur."""
    inputs = keras.Input((8,), dtype="int64")
    x = layers.GlobalAveragePooling1D()(RematTable()(inputs))
    return keras.Model(inputs, layers.Dense(4)(x))


def in_scope(mode: str | None = "full") -> keras.Model:
    """Dense layers in a `RematScope`."""
    inputs = keras.Input((8,))
    with keras.RematScope(mode):
        x = layers.Dense(64, "gelu")(inputs)
        x = layers.LayerNormalization()(layers.Dense(64, "gelu")(x))
        x = layers.Dense(64, "gelu")(x)
    return keras.Model(inputs, layers.Dense(4)(x))


@pytest.fixture
def without_remat(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Returns a function that makes `keras.remat` and `RematScope` do nothing."""

    def do_nothing() -> None:
        monkeypatch.setattr(keras, "remat", lambda fn: fn)
        monkeypatch.setattr(tf, "recompute_grad", lambda fn: fn)

    return do_nothing


@functools.cache
def by_keras() -> Trained:
    """Returns what Keras makes of two steps."""
    return trained(compiled(encoder, adam))


def activations(named: Any) -> float:
    """Returns the bytes of activations of a training step."""
    return named.explain(batch(), runtime="placed").memory.activations


@pytest.mark.sampled(2)
@pytest.mark.parametrize("axes,layout", LAYOUTS)
@pytest.mark.parametrize("recompute", [r"layer_\d", ["layer_0", "layer_1/(up|norm)"]])
@pytest.mark.parametrize("devices", [None, "spmd:cpu:8"])
def test_it_trains_as_on_one_device(axes, layout, recompute, devices) -> None:
    """To 1e-9 in float64."""
    mesh = mtf.Mesh(axes, layout, devices=devices)
    model, _ = distributed(mesh, recompute=recompute)
    assert_equal(trained(model), by_keras(), 1e-9)


def test_memory_falls() -> None:
    """What is stored is the layers' inputs: more layers need hardly more."""
    mesh = mtf.Mesh("data:2", "batch:data")
    _, plain = distributed(mesh)
    _, named = distributed(mesh, recompute=r"layer_\d")
    assert activations(named) < 0.7 * activations(plain)
    flops = [sum(op.flops for op in x.explain(batch()).ops) for x in (plain, named)]
    assert 1.15 * flops[0] < flops[1] < 1.4 * flops[0]


def residual() -> keras.Model:
    """Three blocks of convolutions that are no layers of their own."""
    x = inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(8, 3, padding="same", name="stem")(x)
    for k in range(3):
        y = layers.Conv2D(8, 3, padding="same", name=f"block{k}_conv")(x)
        y = layers.BatchNormalization(name=f"block{k}_norm")(y)
        y = layers.Activation("gelu", name=f"block{k}_gelu")(y)
        x = layers.Add(name=f"block{k}_add")([x, y])
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(4)(x))


def test_layers_of_a_group_are_computed_again_together() -> None:
    """Batch norm has the statistics of the batch again, and assigns them once."""
    mesh = mtf.Mesh("data:2; model:2", "batch:data; channels_2:model")
    x, y = batches(cnn, 8, 2)
    expected = train(compiled(residual, adam), x, y, batch_size=8)
    model, named = distributed(mesh, residual, recompute=r"(block\d)_.*")
    assert_equal(train(model, x, y, batch_size=8), expected, 1e-9)
    needed = []
    for recompute in (r"(block\d)_.*", r"block\d_.*", None):
        _, named = distributed(mesh, residual, recompute=recompute)
        forecast = named.explain((x[:8], y[:8]), runtime="placed")
        needed.append(forecast.memory.activations)
    assert needed[0] < 0.8 * min(needed[1:])


def test_an_outer_layer_is_computed_again_as_a_whole() -> None:
    """A pattern that matches layers within as well stores no more."""
    mesh = mtf.Mesh("data:2", "batch:data")
    _, outer = distributed(mesh, recompute="layer_.")
    _, both = distributed(mesh, recompute="layer_.*")
    assert activations(both) == activations(outer)


def test_random_numbers_are_the_same_again() -> None:
    """Dropout keeps the same elements in the backward pass."""

    def dropped() -> keras.Model:
        inputs = keras.Input((8,))
        x = layers.Dense(64, "gelu", name="wide")(inputs)
        x = layers.Dropout(0.5, seed=1, name="dropout")(x)
        return keras.Model(inputs, layers.Dense(4)(x))

    results = []
    for recompute in (None, "wide|dropout"):
        mesh = mtf.Mesh("data:2; model:4", "batch:data")
        model, _ = distributed(mesh, dropped, recompute=recompute)
        results.append(trained(model))
    assert_equal(results[1], results[0], 1e-12)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("build", [functools.partial(encoder, Remat, 1), with_table])
@pytest.mark.parametrize("devices", [None, "spmd:cpu:8"])
def test_remat(build, devices, without_remat) -> None:
    """Loss and weights are those without `keras.remat`."""
    mesh = mtf.Mesh("data:2; model:4", "batch:data; d_model:model", devices=devices)
    model, _ = distributed(mesh, build)
    weights = model.get_weights()
    result = trained(model)
    without_remat()
    plain = compiled(build, adam)
    plain.set_weights(weights)
    assert_equal(result, trained(plain), 1e-9)


def test_memory_falls_by_remat(without_remat) -> None:
    """As by a pattern for the same layers."""
    mesh = mtf.Mesh("data:2", "batch:data")
    build = functools.partial(encoder, Remat)
    needed = activations(distributed(mesh, build)[1])
    without_remat()
    by_pattern = activations(distributed(mesh, build, recompute=r"layer_\d")[1])
    assert by_pattern == needed
    assert needed < 0.7 * activations(distributed(mesh, build)[1])


def test_remat_scope() -> None:
    """Keras on TensorFlow refuses most layers in such a scope; on a mesh they train."""
    mesh = mtf.Mesh("data:2; model:4", "batch:data")
    model, named = distributed(mesh, in_scope)
    plain = functools.partial(in_scope, None)
    assert_equal(trained(model), trained(compiled(plain, adam)), 1e-9)
    specs = (tf.TensorSpec([512, 8], tf.float64), tf.TensorSpec([512], tf.int64))
    needed = [
        each.explain(specs, runtime="placed").memory.activations
        for each in (named, distributed(mesh, plain)[1])
    ]
    assert needed[0] < 0.8 * needed[1]


class Traced(layers.Layer):
    """A layer whose call is a function of its own."""

    def __init__(self) -> None:
        super().__init__(name="traced")
        self.inner = layers.Dense(8, name="inner")

    def build(self, shape: Any) -> None:
        self.inner.build(shape)

    @tf.function
    def call(self, x: Any) -> Any:
        return self.inner(x)


class Passing(layers.Layer):
    """A layer that passes its input to the method of another one."""

    def __init__(self) -> None:
        super().__init__(name="passing")
        self.inner = layers.Dense(8, name="inner")

    def build(self, shape: Any) -> None:
        self.inner.build(shape)

    def call(self, x: Any) -> Any:
        return self.inner.call(x)


class Cell(layers.Layer):
    """A cell of a recurrent layer, with a dense layer within."""

    def __init__(self) -> None:
        super().__init__(name="cell")
        self.state_size = 8
        self.dense = layers.Dense(8, "tanh", name="dense")

    def build(self, shape: Any) -> None:
        self.dense.build((shape[0], 16))

    def call(self, x: Any, states: Any, training: bool = False) -> Any:
        y = self.dense(keras.ops.concatenate([x, states[0]], -1))
        return y, [y]


def with_layer(layer: Any) -> keras.Model:
    """Ids to classes, through a layer of vectors or of sequences."""
    inputs = keras.Input((8,), dtype="int64")
    x = layer()(layers.Embedding(16, 8)(inputs))
    if len(x.shape) == 3:
        x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(4)(x))


def test_a_layer_within_a_loop() -> None:
    """A layer of a cell is one in the body of a loop."""

    def build() -> keras.Model:
        return with_layer(lambda: layers.RNN(Cell(), name="rnn"))

    expected = trained(compiled(build, adam))
    mesh = mtf.Mesh("data:2; model:4", "batch:data")
    settings = {"regions": {"rnn/cell/dense": "dense:model"}, "recompute": "rnn/cell"}
    model, named = distributed(mesh, build, names={}, **settings)
    assert_equal(trained(model), expected, 1e-9)


def test_a_layer_within_a_function_of_its_own() -> None:
    """It is part of the step as others are."""
    mesh = mtf.Mesh("data:2", "batch:data")
    for pattern in ("traced", "traced/inner"):
        _, named = distributed(mesh, lambda: with_layer(Traced), recompute=pattern)
        assert "traced/inner" in str(named.explain(batch()))


def test_a_layer_that_is_not_called() -> None:
    """One whose method `call` is called can be matched from outside."""
    mesh = mtf.Mesh("data:2", "batch:data")

    def build() -> keras.Model:
        return with_layer(Passing)

    _, named = distributed(mesh, build, recompute="passing")
    named.explain(batch())
    _, named = distributed(mesh, build, recompute="passing/inner")
    with pytest.raises(
        ArgumentError, match='match "passing/inner", .*not called as layers'
    ):
        named.explain(batch())
