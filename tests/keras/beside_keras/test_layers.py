"""All of Keras' layers, by a loop over the module: two steps of training and a prediction."""

from __future__ import annotations

import collections
import functools
import random
import zlib
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest

import meshtf as mtf
from tests.keras.beside_keras.layer_cases import CASES
from tests.keras.models import weights_of

layers = keras.layers
BATCH = 8
# Layers whose random numbers are not TensorFlow's: layouts are compared with each other.
DRAWING = (
    "Dropout",
    "Gaussian",
    "Random",
    "MixUp",
    "CutMix",
    "AugMix",
    "RandAugment",
    "Solarization",
)
# Kernels of TensorFlow for the CPU that take no float64.
IN_FLOAT32 = ("Pooling3D", "Resizing", "MelSpectrogram", "image ")
NOT_TRIED = {
    "Layer": "the base class",
    "Masking": "with recurrent layers",
    "Wrapper": "a base class",
    "InputLayer": "what `keras.Input` makes, in all cases",
    "InputSpec": "no layer",
    "FlaxLayer": "of another framework",
    "JaxLayer": "of another framework",
    "TorchModuleWrapper": "of another framework",
    "TFSMLayer": "of a SavedModel: see docs/learn/keras.md",
    "StringLookup": "of strings, which belong into the dataset",
    "TextVectorization": "of strings, which belong into the dataset",
    "IntegerLookup": "of a lookup table, which belongs into the dataset",
    "Hashing": "of strings, which belong into the dataset",
    "HashedCrossing": "of strings, which belong into the dataset",
    "RandAugment": "of histograms, whose sizes depend on values",
    "RandomElasticTransform": "of kernels, whose sizes depend on values",
    "MaxNumBoundingBoxes": "of boxes, which belong into the dataset",
}


class Trained(NamedTuple):
    """What two steps have made: losses, variables, predictions, and the names of dimensions."""

    losses: list[float]
    weights: dict[str, np.ndarray]
    predictions: np.ndarray
    dims: dict[str, int]


def test_all_layers_have_a_case() -> None:
    used = set(" ".join(CASES).split())
    names: dict[type, set[str]] = collections.defaultdict(set)
    for name, cls in vars(layers).items():
        if isinstance(cls, type) and not name.endswith("Cell"):
            names[cls].add(name)
    tried = used | NOT_TRIED.keys()
    assert not [aliases for aliases in names.values() if not aliases & tried]


def floating_type(name: str) -> str:
    """Returns the type of a case's numbers."""
    text = f"{name} {CASES[name][0]}"
    return "float32" if any(word in text for word in IN_FLOAT32) else "float64"


@functools.cache
def examples(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns a batch of a case, and its labels."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    *kinds, last = CASES[name][0].split()
    kind = kinds[0] if kinds and not kinds[0].isdigit() else ""
    sizes = [int(size) for size in (*kinds, last) if size.isdigit()]
    labels = rng.integers(0, 3, BATCH)
    if kind == "int":
        return rng.integers(0, 10, (BATCH, *sizes)).astype("int32"), labels
    if kind == "image":
        x = rng.uniform(size=(BATCH, *sizes))
    else:
        x = rng.normal(size=(BATCH, *sizes))
    return x.astype(floating_type(name)), labels


def build(name: str) -> keras.Model:
    """Returns a model of a layer between two dense ones."""
    x, _ = examples(name)
    inputs = y = keras.Input(x.shape[1:], dtype=str(x.dtype))
    if x.dtype.kind == "f" and not CASES[name][0].startswith("image"):
        y = layers.Dense(x.shape[-1])(y)
    y = CASES[name][1](y)
    if not keras.backend.is_float_dtype(y.dtype):
        y = layers.Embedding(10, 3)(y)
    return keras.Model(inputs, layers.Dense(3)(layers.Flatten()(y)))


def trained(name: str, mesh: mtf.Mesh | None) -> Trained:
    """Trains a case's model."""
    keras.config.set_floatx(floating_type(name))
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    model = build(name)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False)
    named = None if mesh is None else mtf.keras.distribute(model, mesh)
    x, labels = examples(name)
    losses = [float(model.train_on_batch(x, labels)) for _ in range(2)]
    predictions = model.predict_on_batch(x)
    sizes: dict[str, int] = {}
    if named is not None:
        sizes = {row.name: max(row.sizes) for row in named.dimensions}
    return Trained(losses, weights_of(model), predictions, sizes)


def assert_equal(result: Trained, expected: Trained, tolerance: float) -> None:
    """Fails unless two runs are equal, up to rounding."""
    close: Any = functools.partial(
        np.testing.assert_allclose, rtol=tolerance, atol=tolerance
    )
    close(result.losses, expected.losses)
    close(result.predictions, expected.predictions)
    assert result.weights.keys() == expected.weights.keys()
    for path, value in expected.weights.items():
        if "seed_generator" not in path:
            close(result.weights[path], value, err_msg=path)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CASES)
def test_layers(name: str) -> None:
    one = trained(name, mtf.Mesh("data:1"))
    draw = random.Random(name)
    others = [n for n, size in one.dims.items() if n != "batch" and size > 1]
    rule = f"; {draw.choice(others)}:model" if others else ""
    mesh = mtf.Mesh("data:2; model:2", f"batch:data{rule}")
    tolerance = 1e-9 if floating_type(name) == "float64" else 1e-5
    many = trained(name, mesh)
    assert_equal(many, one, tolerance)
    if not any(word in name for word in DRAWING) and "dropout" not in name.lower():
        assert_equal(many, trained(name, None), tolerance)
