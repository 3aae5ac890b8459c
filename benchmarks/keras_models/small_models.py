"""Small models in the manner of Keras' guides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers, ops


def bidirectional_lstm() -> keras.Model:
    """Classifies texts."""
    words = keras.Input((10,), dtype="int32")
    x = layers.Embedding(102, 24, mask_zero=True)(words)
    x = layers.Bidirectional(layers.LSTM(20, return_sequences=True))(x)
    return keras.Model(words, layers.Dense(8)(layers.LSTM(28)(x)))


def gru_forecast() -> keras.Model:
    """Forecasts a series of measurements."""
    series = keras.Input((10, 6))
    x = layers.GRU(20, return_sequences=True)(series)
    return keras.Model(series, layers.Dense(8)(layers.GRU(12)(x)))


def conv_lstm() -> keras.Model:
    """Predicts frames of a video."""
    video = keras.Input((5, 12, 12, 3))
    x = layers.ConvLSTM2D(8, 3, padding="same", return_sequences=True)(video)
    x = layers.BatchNormalization()(x)
    return keras.Model(video, layers.Conv3D(4, 3, padding="same")(x))


def volumes() -> keras.Model:
    """Classifies scans in three dimensions."""
    scan = keras.Input((8, 12, 12, 2))
    x = layers.MaxPooling3D()(layers.Conv3D(6, 3, activation="relu")(scan))
    return keras.Model(scan, layers.Dense(4)(layers.GlobalAveragePooling3D()(x)))


def text_in_images() -> keras.Model:
    """Reads the characters of an image."""
    image = keras.Input((48, 16, 1))
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(image)
    x = layers.Reshape((24, 64))(layers.MaxPooling2D()(x))
    x = layers.Dense(20, activation="relu")(x)
    x = layers.Bidirectional(layers.LSTM(12, return_sequences=True))(x)
    return keras.Model(image, layers.Dense(12, activation="softmax")(x))


def u_net() -> keras.Model:
    """Classifies each pixel."""
    image = keras.Input((32, 32, 3))
    skipped, x = [], image
    for filters in (8, 16):
        x = _convolution(x, filters)
        skipped.append(x)
        x = layers.MaxPooling2D()(x)
    x = _convolution(x, 20)
    x = layers.Conv2DTranspose(16, 2, strides=2)(x)
    x = _convolution(layers.Concatenate()([x, skipped.pop()]), 16)
    x = layers.UpSampling2D(interpolation="bilinear")(x)
    x = _convolution(layers.Concatenate()([x, skipped.pop()]), 8)
    return keras.Model(image, layers.Conv2D(6, 1, activation="softmax")(x))


def super_resolution() -> keras.Model:
    """Doubles the rows and columns of an image."""
    image = keras.Input((12, 12, 1))
    x = layers.Conv2D(16, 5, padding="same", activation="relu")(image)
    x = layers.Conv2D(8, 3, padding="same")(x)
    x = layers.Reshape((12, 12, 2, 2, 2))(x)
    x = layers.Reshape((24, 24, 2))(layers.Permute((1, 3, 2, 4, 5))(x))
    return keras.Model(image, layers.Conv2D(4, 3, padding="same")(x))


def siamese() -> keras.Model:
    """Compares two images."""
    embed = keras.Sequential([layers.Conv2D(6, 3), layers.Flatten(), layers.Dense(10)])
    first, second = keras.Input((10, 10, 1)), keras.Input((10, 10, 1))
    difference = ops.square(embed(first) - embed(second))
    distance = ops.sqrt(ops.sum(difference, 1, keepdims=True) + 1e-7)
    return keras.Model([first, second], layers.Dense(4, activation="sigmoid")(distance))


def separable() -> keras.Model:
    """Separable and grouped convolutions, and their norms."""
    image = keras.Input((20, 20, 4))
    x = layers.SeparableConv2D(12, 3, activation="swish")(image)
    x = layers.GroupNormalization(4)(x)
    x = layers.UnitNormalization()(layers.Conv2D(12, 3, groups=3)(x))
    return keras.Model(image, layers.Dense(4)(layers.GlobalMaxPooling2D()(x)))


def transformer() -> keras.Model:
    """Classifies texts by attention."""
    words = keras.Input((10,), dtype="int32")
    x = layers.Embedding(60, 24)(words) + layers.Embedding(10, 24)(ops.arange(10))
    attended = layers.MultiHeadAttention(4, 6)(x, x)
    x = layers.LayerNormalization()(x + attended)
    hidden = layers.Dense(40, activation="relu")(x)
    x = layers.LayerNormalization()(x + layers.Dense(24)(hidden))
    return keras.Model(words, layers.Dense(4)(layers.GlobalAveragePooling1D()(x)))


def mixer() -> keras.Model:
    """Mixes patches of images, then their channels."""
    patches = keras.Input((16, 24))
    x = patches
    for _ in range(2):
        y = layers.Permute((2, 1))(layers.LayerNormalization()(x))
        y = layers.Dense(16)(layers.Dense(20, activation="gelu")(y))
        x = x + layers.Permute((2, 1))(y)
        y = layers.Dense(40, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(24)(y)
    return keras.Model(patches, layers.Dense(6)(layers.GlobalAveragePooling1D()(x)))


def windows() -> keras.Model:
    """Attends within windows of an image."""
    image = keras.Input((16, 16, 12))
    x = ops.reshape(image, (-1, 4, 4, 4, 4, 12))
    x = ops.reshape(ops.transpose(x, (0, 1, 3, 2, 4, 5)), (-1, 16, 12))
    x = layers.MultiHeadAttention(4, 4)(x, x)
    x = ops.transpose(ops.reshape(x, (-1, 4, 4, 4, 4, 12)), (0, 1, 3, 2, 4, 5))
    x = layers.GlobalAveragePooling2D()(ops.reshape(x, (-1, 16, 16, 12)))
    return keras.Model(image, layers.Dense(4)(x))


def translation() -> keras.Model:
    """Translates by recurrent networks with attention."""
    source, target = keras.Input((10,), dtype="int32"), keras.Input((7,), dtype="int32")
    embedding = layers.Embedding(40, 16, mask_zero=True)
    keys = layers.GRU(16, return_sequences=True)(embedding(source))
    queries = layers.GRU(16, return_sequences=True)(embedding(target))
    attended = layers.AdditiveAttention()([queries, keys])
    x = layers.Concatenate()([queries, attended])
    return keras.Model([source, target], layers.Dense(40)(x))


def dilated_sound() -> keras.Model:
    """Dilated causal convolutions, which see far back."""
    sound = keras.Input((32, 8))
    x = sound
    for rate in (1, 2, 4):
        gates = [
            layers.Conv1D(12, 2, padding="causal", dilation_rate=rate, activation=name)
            for name in ("tanh", "sigmoid")
        ]
        x = layers.Conv1D(8, 1)(gates[0](x) * gates[1](x)) + x
    return keras.Model(sound, layers.Conv1D(20, 1)(x))


def points() -> keras.Model:
    """Classifies clouds of points, after it has turned them."""
    cloud = keras.Input((40, 3))
    x = cloud
    for filters in (12, 20):
        x = layers.BatchNormalization()(layers.Conv1D(filters, 1)(x))
        x = layers.ReLU()(x)
    turn = layers.Reshape((3, 3))(layers.Dense(9)(layers.GlobalMaxPooling1D()(x)))
    x = layers.Conv1D(16, 1)(layers.Dot((2, 1))([cloud, turn]))
    return keras.Model(cloud, layers.Dense(6)(layers.GlobalMaxPooling1D()(x)))


def wide_and_deep() -> keras.Model:
    """Recommends by categories and numbers."""
    categories = keras.Input((6,), dtype="int32")
    numbers = keras.Input((9,))
    x = [layers.Embedding(50, 12)(categories[:, k]) for k in range(6)]
    mean, variance = np.zeros(9), np.ones(9)
    x.append(layers.Normalization(mean=mean, variance=variance)(numbers))
    deep = layers.Concatenate()(x)
    for units in (64, 40):
        deep = layers.Dense(units, activation="relu")(deep)
    wide = layers.Flatten()(layers.CategoryEncoding(60, "one_hot")(categories))
    score = layers.Dense(4)(deep) + layers.Dense(4)(wide)
    return keras.Model([categories, numbers], ops.sigmoid(score))


def interactions() -> keras.Model:
    """Recommends by products of embeddings, as DLRM does."""
    categories, numbers = keras.Input((5,), dtype="int32"), keras.Input((6,))
    x = [layers.Embedding(40, 8)(categories[:, k]) for k in range(5)]
    x.append(layers.Dense(8, activation="relu")(numbers))
    stacked = ops.stack(x, 1)
    products = ops.matmul(stacked, ops.transpose(stacked, (0, 2, 1)))
    joined = layers.Concatenate()([ops.reshape(products, (-1, 36)), x[-1]])
    return keras.Model([categories, numbers], layers.Dense(4)(joined))


def radiance() -> keras.Model:
    """Renders colors along rays, as NeRF does."""
    places = keras.Input((20, 3))
    waves = [wave(2.0**k * places) for k in range(3) for wave in (ops.sin, ops.cos)]
    features = ops.concatenate([places, *waves], -1)
    x = layers.Dense(16, activation="relu")(features)
    x = layers.Dense(4)(layers.Concatenate()([x, features]))
    opacity = 1 - ops.exp(-ops.relu(x[..., 3]))
    passed = ops.cumprod(1 - opacity + 1e-6, axis=1)
    colors = ops.expand_dims(opacity * passed, -1) * ops.sigmoid(x[..., :3])
    return keras.Model(places, ops.sum(colors, 1))


def graph() -> keras.Model:
    """Classifies the nodes of a graph by messages along its edges."""
    nodes = keras.Input((7,))
    edges = keras.Input((2,), dtype="int32")
    senders, receivers = edges[:, 0], edges[:, 1]
    x = layers.Dense(16, activation="relu")(nodes)
    messages = layers.Dense(16, activation="relu")(ops.take(x, senders, axis=0))
    received = ops.segment_sum(messages, receivers, num_segments=32)
    return keras.Model([nodes, edges], layers.Dense(4)(ops.concatenate([x, received])))


def _convolution(x: Any, filters: int) -> Any:
    x = layers.Conv2D(filters, 3, padding="same")(x)
    return layers.ReLU()(layers.BatchNormalization()(x))


SMALL: dict[str, Callable[[], keras.Model]] = {
    f.__name__: f
    for f in (
        bidirectional_lstm,
        conv_lstm,
        dilated_sound,
        graph,
        gru_forecast,
        interactions,
        mixer,
        points,
        radiance,
        separable,
        siamese,
        super_resolution,
        text_in_images,
        transformer,
        translation,
        u_net,
        volumes,
        wide_and_deep,
        windows,
    )
}
