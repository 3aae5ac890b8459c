"""A small use of each layer of Keras, by the shape of one example and a function of the input.

An input "int 6" has integers below 10, and "image 8 8 3" numbers between 0 and 1. What stands
behind a class's name tells its cases apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

layers = keras.layers

Case = tuple[str, Callable[[Any], Any]]

VECTOR = "8"
SEQUENCE = "6 8"
IMAGE = "8 8 4"
VIDEO = "6 6 6 4"
INTEGERS = "int 6"
PICTURE = "image 8 8 3"
_BY_RANK = {1: SEQUENCE, 2: IMAGE, 3: VIDEO}


def _layer(name: str, *arguments: Any, **settings: Any) -> Callable[[Any], Any]:
    return lambda x: getattr(layers, name)(*arguments, **settings)(x)


def _with_dense(name: str, **settings: Any) -> Callable[[Any], Any]:
    """A layer of two operands."""
    return lambda x: getattr(layers, name)(**settings)([x, layers.Dense(8)(x)])


def _of_spatial_dims(rank: int) -> dict[str, Case]:
    shape = _BY_RANK[rank]
    arguments: dict[str, Any] = {
        "AveragePooling": (2,),
        "Conv": (6, 3, 2),
        "ConvTranspose": (6, 3, 2),
        "Cropping": (1,),
        "GlobalAveragePooling": (),
        "GlobalMaxPooling": (),
        "MaxPooling": (2, 1),
        "SpatialDropout": (0.3,),
        "UpSampling": (2,),
        "ZeroPadding": (1,),
        "AdaptiveAveragePooling": (3,),
        "AdaptiveMaxPooling": (3,),
    }
    if rank < 3:
        arguments |= {"DepthwiseConv": (3,), "SeparableConv": (6, 3)}
    cases = {}
    for stem, values in arguments.items():
        kind, transposed, _ = stem.partition("Transpose")
        name = f"{kind}{rank}D{transposed}"
        cases[name] = (shape, _layer(name, *values))
    frames = " ".join(["3", *["5"] * rank, "3"])
    cases[f"ConvLSTM{rank}D"] = (frames, _layer(f"ConvLSTM{rank}D", 4, 3))
    return cases


def _of_recurrent(name: str) -> dict[str, Case]:
    layer = getattr(layers, name)
    return {
        name: (SEQUENCE, lambda x: layer(4)(x)),
        f"{name} masked": (SEQUENCE, lambda x: layer(4)(layers.Masking(0.5)(x))),
        f"{name} unrolled": (
            SEQUENCE,
            lambda x: layer(4, go_backwards=True, unroll=True)(x),
        ),
        f"Bidirectional {name}": (
            SEQUENCE,
            lambda x: layers.Bidirectional(layer(4, return_sequences=True))(x),
        ),
    }


def _embedded(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: function(layers.Embedding(10, 8, mask_zero=True)(x))


def _tied(x: Any) -> Any:
    embedding = layers.ReversibleEmbedding(10, 8)
    return embedding(embedding(x), reverse=True)


_PICTURES: dict[str, dict[str, Any]] = {
    "AugMix": {"num_chains": 2},
    "AutoContrast": {},
    "ContrastLimitedAdaptiveHistogramEqualization": {"tile_grid_size": (2, 2)},
    "Equalization": {},
    "RandomBrightness": {"factor": 0.2},
    "RandomColorDegeneration": {"factor": 0.3},
    "RandomColorJitter": {"brightness_factor": 0.2, "hue_factor": 0.1},
    "RandomContrast": {"factor": 0.2},
    "RandomErasing": {},
    "RandomGaussianBlur": {},
    "RandomHue": {"factor": 0.2},
    "RandomInvert": {},
    "RandomPosterization": {"factor": 4},
    "RandomSaturation": {"factor": 0.3},
    "RandomSharpness": {"factor": 0.3},
    "Solarization": {"threshold_factor": 0.5},
}
_MOVED_PICTURES: dict[str, dict[str, Any]] = {
    "CutMix": {},
    "MixUp": {},
    "RandomFlip": {},
    "RandomGrayscale": {},
    "RandomPerspective": {},
    "RandomRotation": {"factor": 0.2},
    "RandomShear": {"x_factor": 0.2, "y_factor": 0.2},
    "RandomTranslation": {"height_factor": 0.2, "width_factor": 0.2},
    "RandomZoom": {"height_factor": 0.2},
}
_BOTH = ("Add", "Average", "Concatenate", "Maximum", "Minimum", "Multiply", "Subtract")
CASES: dict[str, Case] = {
    **_of_spatial_dims(1),
    **_of_spatial_dims(2),
    **_of_spatial_dims(3),
    **_of_recurrent("GRU"),
    **_of_recurrent("LSTM"),
    **_of_recurrent("SimpleRNN"),
    **{name: (SEQUENCE, _with_dense(name)) for name in _BOTH},
    **{
        name: (PICTURE, _layer(name, value_range=(0, 1), **settings))
        for name, settings in _PICTURES.items()
    },
    **{
        name: (PICTURE, _layer(name, **settings))
        for name, settings in _MOVED_PICTURES.items()
    },
    # Keras crops in training only.
    "RandomCrop": (
        PICTURE,
        lambda x: layers.GlobalAveragePooling2D()(layers.RandomCrop(6, 6)(x)),
    ),
    "Dot": (SEQUENCE, _with_dense("Dot", axes=(2, 2))),
    "AdditiveAttention": (SEQUENCE, _with_dense("AdditiveAttention", use_scale=True)),
    "Attention": (SEQUENCE, _with_dense("Attention", score_mode="concat")),
    "MultiHeadAttention": (
        SEQUENCE,
        lambda x: layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True),
    ),
    "MultiHeadAttention masked": (
        INTEGERS,
        _embedded(lambda x: layers.MultiHeadAttention(2, 4)(x, x)),
    ),
    "GroupQueryAttention": (
        SEQUENCE,
        lambda x: layers.GroupQueryAttention(4, 4, 2)(x, x),
    ),
    "LSTM dropout": (
        SEQUENCE,
        _layer("LSTM", 4, dropout=0.2, recurrent_dropout=0.2),
    ),
    "RNN": (
        SEQUENCE,
        lambda x: layers.RNN(
            [layers.LSTMCell(4), layers.GRUCell(3)], return_state=True
        )(x)[0],
    ),
    "StackedRNNCells": (
        SEQUENCE,
        lambda x: layers.RNN(
            layers.StackedRNNCells(
                [layers.SimpleRNNCell(4), layers.GRUCell(3, reset_after=False)]
            )
        )(x),
    ),
    "LSTM of embeddings": (INTEGERS, _embedded(_layer("LSTM", 4))),
    "Embedding": (INTEGERS, _embedded(_layer("Dense", 4))),
    "ReversibleEmbedding": (INTEGERS, _tied),
    "Activation": (SEQUENCE, _layer("Activation", "gelu")),
    "ActivityRegularization": (SEQUENCE, _layer("ActivityRegularization", 0.01, 0.01)),
    "AlphaDropout": (SEQUENCE, _layer("AlphaDropout", 0.3)),
    "Dropout": (SEQUENCE, _layer("Dropout", 0.3)),
    "GaussianDropout": (SEQUENCE, _layer("GaussianDropout", 0.3)),
    "GaussianNoise": (SEQUENCE, _layer("GaussianNoise", 0.3)),
    "BatchNormalization": (SEQUENCE, _layer("BatchNormalization", momentum=0.9)),
    "GroupNormalization": (IMAGE, _layer("GroupNormalization", 2)),
    "LayerNormalization": (SEQUENCE, _layer("LayerNormalization")),
    "RMSNormalization": (SEQUENCE, _layer("RMSNormalization")),
    "UnitNormalization": (SEQUENCE, _layer("UnitNormalization")),
    "SpectralNormalization": (
        IMAGE,
        lambda x: layers.SpectralNormalization(layers.Conv2D(4, 3))(x),
    ),
    "Dense": (SEQUENCE, _layer("Dense", 4, "relu")),
    "EinsumDense": (
        SEQUENCE,
        _layer("EinsumDense", "abc,cde->abde", (6, 2, 3), bias_axes="de"),
    ),
    "ELU": (SEQUENCE, _layer("ELU")),
    "LeakyReLU": (SEQUENCE, _layer("LeakyReLU")),
    "PReLU": (SEQUENCE, _layer("PReLU")),
    "ReLU": (SEQUENCE, _layer("ReLU", 2.0, 0.1, 0.2)),
    "Softmax": (SEQUENCE, _layer("Softmax")),
    "Flatten": (SEQUENCE, _layer("Flatten")),
    "Identity": (SEQUENCE, _layer("Identity")),
    "Lambda": (SEQUENCE, _layer("Lambda", lambda x: x * x, output_shape=(6, 8))),
    "Permute": (SEQUENCE, _layer("Permute", (2, 1))),
    "RepeatVector": (VECTOR, _layer("RepeatVector", 3)),
    "Reshape": (SEQUENCE, _layer("Reshape", (4, 12))),
    "Pipeline": (
        SEQUENCE,
        lambda x: layers.Pipeline([layers.Rescaling(0.5), layers.Dense(4)])(x),
    ),
    "TimeDistributed": (
        "3 8 8 4",
        lambda x: layers.TimeDistributed(layers.Conv2D(4, 3))(x),
    ),
    "Normalization": (SEQUENCE, _layer("Normalization", mean=0.5, variance=2.0)),
    "Rescaling": (IMAGE, _layer("Rescaling", 0.3, 0.1)),
    "Resizing": (IMAGE, _layer("Resizing", 6, 10)),
    "Resizing nearest": (IMAGE, _layer("Resizing", 6, 10, "nearest")),
    "Resizing bicubic": (IMAGE, _layer("Resizing", 6, 10, "bicubic")),
    "CenterCrop": (IMAGE, _layer("CenterCrop", 4, 6)),
    "CategoryEncoding": (INTEGERS, _layer("CategoryEncoding", 10, "multi_hot")),
    "CategoryEncoding count": (INTEGERS, _layer("CategoryEncoding", 10, "count")),
    "CategoryEncoding one hot": ("int 1", _layer("CategoryEncoding", 10, "one_hot")),
    "Discretization": (
        SEQUENCE,
        lambda x: layers.Embedding(4, 3)(layers.Discretization([-0.5, 0.0, 0.5])(x)),
    ),
    "STFTSpectrogram": (
        "64 1",
        _layer("STFTSpectrogram", frame_length=16, frame_step=8, fft_length=16),
    ),
    "MelSpectrogram": (
        "64",
        _layer(
            "MelSpectrogram",
            fft_length=16,
            sequence_stride=8,
            num_mel_bins=4,
            sampling_rate=100,
            min_freq=1,
            max_freq=50,
        ),
    ),
}
