"""A model of several equal layers, with layers within, and what it trains to."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import meshtf as mtf
from tests.keras.models import Trained, compiled, train

layers = keras.layers


class Block(layers.Layer):
    """Attention and two dense layers."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.attention = layers.MultiHeadAttention(2, 4, name="attention")
        self.norm = layers.LayerNormalization(name="norm")
        self.up = layers.Dense(16, activation="gelu", name="up")
        self.down = layers.Dense(8, name="down")

    def build(self, shape: Any) -> None:
        self.attention.build(shape, shape)
        self.norm.build(shape)
        self.up.build(shape)
        self.down.build((*shape[:-1], 16))

    def call(self, x: Any) -> Any:
        x = self.norm(x + self.attention(x, x))
        return x + self.down(self.up(x))


class Small(layers.Layer):
    """Two dense layers."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.up = layers.Dense(16, activation="gelu", name="up")
        self.down = layers.Dense(8, name="down")

    def build(self, shape: Any) -> None:
        self.up.build(shape)
        self.down.build((*shape[:-1], 16))

    def call(self, x: Any) -> Any:
        return x + self.down(self.up(x))


def encoder(block: Any = Block, blocks: int = 2) -> keras.Model:
    """Ids `[batch, 8]` of 16 tokens to 4 classes, through blocks."""
    inputs = keras.Input((8,), dtype="int64", name="ids")
    x = layers.Embedding(16, 8, name="tokens")(inputs)
    for k in range(blocks):
        x = block(name=f"layer_{k}")(x)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(4, name="head")(x))


def batch() -> Any:
    """Ids and labels of 8 examples."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 16, (8, 8)), rng.integers(0, 4, 8)


def adam() -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(0.01)


def trained(model: keras.Model) -> Trained:
    """Returns what two steps of `fit` make of a model."""
    x, y = batch()
    return train(model, x, y, batch_size=4)


def distributed(mesh: mtf.Mesh, build: Any = encoder, **settings: Any) -> Any:
    """Returns a compiled model on a mesh, and what `distribute` returns."""
    model = compiled(build, adam)
    return model, mtf.keras.distribute(model, mesh, **settings)
