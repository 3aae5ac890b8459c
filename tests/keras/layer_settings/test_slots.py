"""Repeated layers with what optimizers and the trainer of Keras add to a step."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import meshtf as mtf
from tests.keras.layer_settings.encoder import Small, adam, batch, encoder
from tests.keras.models import Trained, assert_equal, compiled, train

layers = keras.layers
REPEATED = r"layer_\d"
PIPELINE = {"axes": "stage:2; data:2", "layout": "layers:stage; batch:data"}


def averaged() -> keras.optimizers.Optimizer:
    """Adam with moving averages of weights, which it writes back."""
    return keras.optimizers.Adam(
        0.01, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    )


def accumulating() -> keras.optimizers.Optimizer:
    """AdamW whose gradients are those of two batches."""
    return keras.optimizers.AdamW(0.01, gradient_accumulation_steps=2)


def clipping() -> keras.optimizers.Optimizer:
    """SGD with momentum, and gradients of bounded norm."""
    return keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.1)


class WithNamedLayer(Small):
    """A block with a layer of named operations."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.square = mtf.keras.Layer(
            lambda x: x * mtf.sigmoid(x), inputs="batch; length; d_model"
        )

    def call(self, x: Any) -> Any:
        return self.square(super().call(x))


def model() -> keras.Model:
    """Two blocks."""
    return encoder(Small)


def piped(build: Any, optimizer: Any, mesh: mtf.Mesh | None, **fit: Any) -> Trained:
    """Returns what four steps make of a model, on a mesh or on one device."""
    placed = compiled(build, optimizer)
    placed.optimizer.build(placed.trainable_variables)
    if mesh is not None:
        mtf.keras.distribute(placed, mesh, repeated=REPEATED)
    x, y = batch()
    return train(placed, x, y, batch_size=4, epochs=2, **fit)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
@pytest.mark.parametrize("optimizer", [averaged, accumulating, clipping])
def test_slots_of_all_layers(optimizer: Any, devices: str | None) -> None:
    mesh = mtf.Mesh(**PIPELINE, devices=devices, microbatches=2)
    expected = piped(model, optimizer, None)
    assert_equal(piped(model, optimizer, mesh), expected, 1e-9)


def test_weights_of_classes_and_examples() -> None:
    mesh = mtf.Mesh(**PIPELINE, microbatches=2)
    for fit in (
        {"class_weight": {0: 1.0, 1: 0.0, 2: 3.0, 3: 0.5}},
        {"sample_weight": np.linspace(0, 1, 8)},
    ):
        expected = piped(model, adam, None, **fit)
        assert_equal(piped(model, adam, mesh, **fit), expected, 1e-9)


def test_named_layers_in_repeated_ones() -> None:
    def build() -> keras.Model:
        return encoder(WithNamedLayer)

    mesh = mtf.Mesh(**PIPELINE, microbatches=2)
    assert_equal(piped(build, adam, mesh), piped(build, adam, None), 1e-9)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy: str) -> None:
    """With the scaling of losses, whose first steps would overflow by default."""

    def optimizer() -> keras.optimizers.Optimizer:
        if policy == "mixed_bfloat16":
            return adam()
        return keras.optimizers.LossScaleOptimizer(
            adam(), initial_scale=16.0, dynamic_growth_steps=2
        )

    def build() -> keras.Model:
        keras.config.set_dtype_policy(policy)
        return encoder(Small)

    mesh = mtf.Mesh(**PIPELINE, microbatches=2)
    results = [piped(build, optimizer, each).history["loss"] for each in (None, mesh)]
    assert results[1] == pytest.approx(results[0], rel=1e-2)
    assert results[1][1] < results[1][0]
