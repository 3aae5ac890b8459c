"""Converts examples to the arrays that a model takes: static lengths, padded with zeros.

    LanguageModelFeatures(length)          targets -> tokens, targets, weights
    PrefixFeatures(length)                 inputs, targets -> tokens, targets, weights, prefix
    EncoderDecoderFeatures(inputs, targets)     inputs, targets -> inputs, tokens, targets, weights
    BertFeatures(length, predictions)      tokens, token_types, masked_positions, masked_ids,
                                           masked_weights, next_sentence_labels
    ClassifierFeatures(length)             tokens, token_types, labels

`tokens` of a decoder are its targets shifted right by one, after a 0; `weights` are 1.0
where a target counts. Packed examples also have `segments`, from 1, 0 for padding, and
`positions`.

>>> arrays = LanguageModelFeatures(5)({"targets": np.array([7, 8, 9])})
>>> {name: values.tolist() for name, values in arrays.items()}
{'tokens': [0, 7, 8, 0, 0], 'targets': [7, 8, 9, 0, 0], 'weights': [1.0, 1.0, 1.0, 0.0,
0.0]}
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np
import tensorflow as tf

from transformer.data.errors import DataError
from transformer.data.sources.base import Example

Arrays = dict[str, np.ndarray]


class Features(Protocol):
    """Converts an example to arrays of static shapes."""

    def shapes(self) -> dict[str, list[int]]:
        """Returns the shapes of the arrays by name."""

    def __call__(self, example: Example) -> Arrays:
        """Returns the arrays of an example. Raises DataError: it lacks a field, or is
        too long.
        """


_TYPES = {
    "weights": tf.float32,
    "masked_weights": tf.float32,
    "prefix": tf.bool,
}  # else int32


def specs(features: Features, batch_size: int) -> dict[str, tf.TensorSpec]:
    """Returns the shapes and dtypes of a batch by name."""
    return {
        name: tf.TensorSpec([batch_size, *shape], _TYPES.get(name, tf.int32), name)
        for name, shape in features.shapes().items()
    }


@dataclasses.dataclass(frozen=True)
class LanguageModelFeatures(Features):
    """Predicts each of `targets` from those before it.

    Attributes:
      length: the tokens of an example, padding included.
      packed: whether an example holds several texts.
    """

    length: int
    packed: bool = False

    def shapes(self) -> dict[str, list[int]]:
        names = ["tokens", "targets", "weights"]
        if self.packed:
            names += ["segments", "positions"]
        return dict.fromkeys(names, [self.length])

    def __call__(self, example: Example) -> Arrays:
        return _decoder(example, self.length, self.packed)


@dataclasses.dataclass(frozen=True)
class PrefixFeatures(Features):
    """One text, `inputs` and then `targets`; only the targets are predicted.

    `prefix` is true for tokens that all tokens may attend to: the 0 at the start and the
    inputs.

    Attributes:
      length: the tokens of an example, padding included.
    """

    length: int

    def shapes(self) -> dict[str, list[int]]:
        return dict.fromkeys(["tokens", "targets", "weights", "prefix"], [self.length])

    def __call__(self, example: Example) -> Arrays:
        inputs = _get(example, "inputs")
        text = np.concatenate([inputs, _get(example, "targets")])
        arrays = _decoder({"targets": text}, self.length, packed=False)
        position = np.arange(self.length)
        is_target = (position >= len(inputs)).astype(np.float32)
        return {
            **arrays,
            "weights": arrays["weights"] * is_target,
            "prefix": position <= len(inputs),
        }


@dataclasses.dataclass(frozen=True)
class EncoderDecoderFeatures(Features):
    """Predicts `targets` from `inputs` and the targets before.

    Attributes:
      inputs: the tokens of the inputs, padding included.
      targets: the tokens of the targets, padding included.
      packed: whether an example holds several pairs.
    """

    inputs: int
    targets: int
    packed: bool = False

    def shapes(self) -> dict[str, list[int]]:
        encoder_names = ["inputs"]
        if self.packed:
            encoder_names += ["input_segments", "input_positions"]
        decoder_shapes = LanguageModelFeatures(self.targets, self.packed).shapes()
        return {**dict.fromkeys(encoder_names, [self.inputs]), **decoder_shapes}

    def __call__(self, example: Example) -> Arrays:
        arrays = {"inputs": _padded(example, "inputs", self.inputs)}
        if self.packed:
            for kind in ("segments", "positions"):
                arrays[f"input_{kind}"] = _padded(
                    example, f"inputs_{kind}", self.inputs
                )
        return {**arrays, **_decoder(example, self.targets, self.packed)}


@dataclasses.dataclass(frozen=True)
class BertFeatures(Features):
    """Predicts masked tokens, and whether the second text follows the first.

    Attributes:
      length: the tokens of an example, padding included.
      predictions: the most masked tokens of an example.
    """

    length: int
    predictions: int

    def shapes(self) -> dict[str, list[int]]:
        masked = dict.fromkeys(
            ["masked_positions", "masked_ids", "masked_weights"], [self.predictions]
        )
        return {
            "tokens": [self.length],
            "token_types": [self.length],
            **masked,
            "next_sentence_labels": [],
        }

    def __call__(self, example: Example) -> Arrays:
        arrays = {
            name: _padded(example, name, shape[0])
            for name, shape in self.shapes().items()
            if shape and name != "masked_weights"
        }
        is_masked = np.arange(self.predictions) < len(example["masked_ids"])
        arrays["masked_weights"] = is_masked.astype(np.float32)
        return {
            **arrays,
            "next_sentence_labels": _scalar(example, "next_sentence_labels"),
        }


@dataclasses.dataclass(frozen=True)
class ClassifierFeatures(Features):
    """Predicts the class of one text or of a pair.

    Attributes:
      length: the tokens of an example, padding included.
    """

    length: int

    def shapes(self) -> dict[str, list[int]]:
        return {"tokens": [self.length], "token_types": [self.length], "labels": []}

    def __call__(self, example: Example) -> Arrays:
        arrays = {
            name: _padded(example, name, self.length)
            for name in ("tokens", "token_types")
        }
        return {**arrays, "labels": _scalar(example, "labels")}


def _decoder(example: Example, length: int, packed: bool) -> Arrays:
    """Returns tokens, targets and weights; if `packed`, also segments and positions."""
    targets = _padded(example, "targets", length)
    tokens = np.concatenate([np.zeros(1, np.int32), targets[:-1]])
    weights = (np.arange(length) < len(example["targets"])).astype(np.float32)
    tokens = tokens * (weights > 0)
    if not packed:
        return {"tokens": tokens, "targets": targets, "weights": weights}
    segments, positions = (
        _padded(example, f"targets_{kind}", length)
        for kind in ("segments", "positions")
    )
    return {
        "tokens": tokens * (positions > 0),
        "targets": targets,
        "weights": weights,
        "segments": segments,
        "positions": positions,
    }


def _get(example: Example, name: str) -> np.ndarray:
    if name not in example:
        raise DataError(
            f"an example has no {name!r}, but {', '.join(map(repr, example))}."
        )
    return np.asarray(example[name])


def _padded(example: Example, name: str, length: int) -> np.ndarray:
    """Returns a field of integers, padded with zeros: int32 [length]. Raises DataError."""
    values = _get(example, name)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise DataError(
            f"{name!r} of an example must be a list of integers, not {values!r:.60}."
        )
    if len(values) > length:
        raise DataError(
            f"{name!r} of an example has {len(values)} elements, more than {length}.\n"
            "  Allow more, or truncate it: preprocessors.trim."
        )
    padded = np.zeros(length, np.int32)
    padded[: len(values)] = values
    return padded


def _scalar(example: Example, name: str) -> np.ndarray:
    return _get(example, name).astype(np.int32).reshape(())
