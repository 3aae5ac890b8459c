"""The list of models: small sizes, random weights, nothing is downloaded."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import keras
import numpy as np

from benchmarks.keras_models.small_models import SMALL

BATCH = 8
# Of recommenders' many small examples a batch has more: with 8, a fifth of the work would be
# the update of the weights, which a data axis does not shard.
_BATCHES = {"interactions": 32, "wide_and_deep": 32}
_LENGTH = 10
# Rows and columns of images; 32 for all others.
_APPLICATIONS = {
    "ConvNeXtTiny": 32,
    "DenseNet121": 32,
    "EfficientNetB0": 32,
    "EfficientNetV2B0": 32,
    "InceptionV3": 75,
    "MobileNet": 32,
    "MobileNetV2": 32,
    "MobileNetV3Large": 32,
    "MobileNetV3Small": 32,
    "NASNetMobile": 32,
    "ResNet50": 32,
    "ResNet50V2": 32,
    "VGG16": 32,
    "Xception": 71,
}
_SIZES = {
    "vocabulary_size": 102,
    "num_layers": 2,
    "hidden_dim": 32,
    "intermediate_dim": 52,
    "num_heads": 4,
    "num_query_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_sequence_length": 16,
    "embedding_dim": 28,
    "num_groups": 1,
    "dropout": 0.0,
    "bucket_size": 8,
    "num_experts": 5,
    "drop_path": 0.0,
    "top_k": 2,
    "patch_size": 16,
    "mlp_dim": 52,
    "sliding_window_size": 8,
}
# By name of the class without "Backbone", what differs from `_SIZES`.
_KERAS_HUB: dict[str, dict[str, Any]] = {
    "Albert": {},
    "Bart": {},
    "Bert": {},
    "Bloom": {},
    "DINOV2": {
        "num_register_tokens": 2,
        "image_shape": (48, 48, 3),
        "position_embedding_shape": (48, 48),
    },
    "DebertaV3": {},
    "DistilBert": {},
    "ESM2": {},
    "FNet": {},
    "Falcon": {"num_attention_heads": 4},
    "GPT2": {},
    "GPTNeoX": {},
    "Gemma": {},
    "Gemma3": {"image_size": 48},
    "Llama": {},
    "Mistral": {},
    "Mixtral": {},
    "OPT": {},
    "Phi3": {},
    "Qwen": {},
    "Qwen3": {},
    "Roberta": {},
    "SwinTransformer": {
        "image_shape": (64, 64, 3),
        "embed_dim": 16,
        "depths": [2, 2],
        "num_heads": [2, 4],
        "window_size": 4,
        "patch_size": 4,
    },
    "T5": {},
    "ViT": {"image_shape": (48, 48, 3)},
    "Whisper": {
        "num_mels": 8,
        "max_encoder_sequence_length": 26,
        "max_decoder_sequence_length": 16,
    },
    "XLNet": {},
}


# Mixtral mixes the two types if it should run in float64; TensorFlow has no MaxPool3D of it.
IN_FLOAT32 = ("Mixtral", "volumes")


class Configuration(NamedTuple):
    """A model of the list: where it comes from, and its name."""

    source: str
    name: str


CONFIGURATIONS = [
    *(Configuration("keras.applications", name) for name in _APPLICATIONS),
    *(Configuration("keras_hub", name) for name in _KERAS_HUB),
    *(Configuration("guide", name) for name in SMALL),
]


def build(configuration: Configuration) -> tuple[keras.Model, list[Any], list[Any]]:
    """Returns a model that classifies, its inputs and its labels, for three batches."""
    keras.utils.set_random_seed(1)
    source, name = configuration
    if source == "guide":
        body = SMALL[name]()
    elif source == "keras_hub":
        body = _backbone(name)
    else:
        size = _APPLICATIONS[name]
        make = getattr(keras.applications, name)
        body = make(weights=None, input_shape=(size, size, 3), classes=12)
    without_dropout(body)
    random = np.random.default_rng(0)
    inputs = [_example(body, name, random) for _ in range(3)]
    model = Classifier(body)
    model(inputs[0])
    for variable in model.trainable_variables:
        if len(variable.shape) == 1:
            # Initial zeros would hide errors.
            noise = 0.05 * np.abs(random.normal(size=variable.shape))
            variable.assign_add(noise.astype(variable.dtype))
    count = len(_flat(inputs[0])[0])
    return model, inputs, [random.integers(0, 8, count) for _ in range(3)]


class Classifier(keras.Model):
    """A model, and as many scores as there are classes."""

    def __init__(self, body: keras.Model) -> None:
        super().__init__()
        self.body = body
        self.scores = keras.layers.Dense(8, name="scores")

    def call(self, x: Any, training: bool = False) -> Any:
        y = self.body(x, training=training)
        y = _flat(y)[0]
        if len(y.shape) > 2:
            y = keras.ops.mean(y, axis=list(range(1, len(y.shape) - 1)))
        return self.scores(y)


def without_dropout(model: keras.Model) -> None:
    """Sets all rates of dropout to 0, so that runs can be compared."""
    for layer in model._flatten_layers():
        for name in ("rate", "_dropout", "dropout_rate", "drop_rate", "drop_prob"):
            if isinstance(layer.__dict__.get(name), float):
                setattr(layer, name, 0.0)


def _backbone(name: str) -> keras.Model:
    import keras_hub

    cls = getattr(keras_hub.models, f"{name}Backbone")
    parameters = inspect.signature(cls.__init__).parameters
    options = {
        key: value
        for key, value in (_SIZES | _KERAS_HUB[name]).items()
        if key in parameters
    }
    return cls(**options)


def _example(model: keras.Model, name: str, random: np.random.Generator) -> Any:
    """Returns inputs for a batch."""
    if name == "graph":
        return [
            random.normal(size=(32, 7)),
            random.integers(0, 32, (48, 2)).astype("int32"),
        ]
    arrays = {}
    for tensor in model.inputs:
        key = tensor.name.split(":")[0]
        batch = _BATCHES.get(name, BATCH)
        shape = [batch, *(_LENGTH if n is None else n for n in tensor.shape[1:])]
        if name == "Whisper" and key == "encoder_features":
            shape = [BATCH, 26, 8]
        arrays[key] = _array(key, shape, tensor.dtype, random)
    if isinstance(model.input, dict):
        return arrays
    values = list(arrays.values())
    return values if len(values) > 1 else values[0]


def _array(key: str, shape: list[int], dtype: str, random: np.random.Generator) -> Any:
    if "int" in dtype or dtype == "bool":
        limit = 2 if "mask" in key or "segment" in key else 30
        return random.integers(1, limit, shape).astype(dtype)
    return random.normal(size=shape).astype(dtype)


def _flat(x: Any) -> list[Any]:
    return keras.tree.flatten(x)
