"""From an example to what a model takes: arrays of static lengths, filled up with
zeros.

    LanguageModelFeatures(length)          targets -> tokens, targets, weights
    PrefixFeatures(length)                 inputs, targets -> tokens, targets, weights, prefix
    EncoderDecoderFeatures(inputs, targets)     inputs, targets -> inputs, tokens, targets, weights
    BertFeatures(length, predictions)      tokens, token_types, masked_positions, masked_ids,
                                           masked_weights, next_sentence_labels
    ClassifierFeatures(length)             tokens, token_types, labels

`tokens` of a decoder are its targets one place later, after a 0; `weights` are 1.0
where a target counts. Rows that hold several examples (`packed`) have `segments`, 1 and
on, 0 where they are filled up, and `positions` besides.

>>> made = LanguageModelFeatures(5)({"targets": np.array([7, 8, 9])})
>>> {name: values.tolist() for name, values in made.items()}
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
    """Makes arrays of static shapes of an example."""

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
    """Returns the shapes and types of a batch by name."""
    return {
        name: tf.TensorSpec([batch_size, *shape], _TYPES.get(name, tf.int32), name)
        for name, shape in features.shapes().items()
    }


@dataclasses.dataclass(frozen=True)
class LanguageModelFeatures(Features):
    """All `targets` are told, each from those before it."""

    length: int
    packed: bool = False

    def shapes(self) -> dict[str, list[int]]:
        names = [
            "tokens",
            "targets",
            "weights",
            *(["segments", "positions"] if self.packed else []),
        ]
        return dict.fromkeys(names, [self.length])

    def __call__(self, example: Example) -> Arrays:
        return _decoder(example, self.length, self.packed)


@dataclasses.dataclass(frozen=True)
class PrefixFeatures(Features):
    """One text, `inputs` and then `targets`; only the targets are told.

    `prefix` is true for tokens that all others may see: the 0 at the beginning and the
    inputs.
    """

    length: int

    def shapes(self) -> dict[str, list[int]]:
        return dict.fromkeys(["tokens", "targets", "weights", "prefix"], [self.length])

    def __call__(self, example: Example) -> Arrays:
        given, told = _get(example, "inputs"), _get(example, "targets")
        both = _decoder(
            {"targets": np.concatenate([given, told])}, self.length, packed=False
        )
        place = np.arange(self.length)
        return {
            **both,
            "weights": both["weights"] * (place >= len(given)).astype(np.float32),
            "prefix": place <= len(given),
        }


@dataclasses.dataclass(frozen=True)
class EncoderDecoderFeatures(Features):
    """`targets` are told from `inputs` and the targets before."""

    inputs: int
    targets: int
    packed: bool = False

    def shapes(self) -> dict[str, list[int]]:
        given = [
            "inputs",
            *(["input_segments", "input_positions"] if self.packed else []),
        ]
        told = LanguageModelFeatures(self.targets, self.packed).shapes()
        return {**dict.fromkeys(given, [self.inputs]), **told}

    def __call__(self, example: Example) -> Arrays:
        made = {"inputs": _filled(example, "inputs", self.inputs)}
        if self.packed:
            for kind in ("segments", "positions"):
                made[f"input_{kind}"] = _filled(example, f"inputs_{kind}", self.inputs)
        return {**made, **_decoder(example, self.targets, self.packed)}


@dataclasses.dataclass(frozen=True)
class BertFeatures(Features):
    """Tokens that were hidden are told, and whether the second part goes on from the
    first.
    """

    length: int
    predictions: int

    def shapes(self) -> dict[str, list[int]]:
        hidden = dict.fromkeys(
            ["masked_positions", "masked_ids", "masked_weights"], [self.predictions]
        )
        return {
            "tokens": [self.length],
            "token_types": [self.length],
            **hidden,
            "next_sentence_labels": [],
        }

    def __call__(self, example: Example) -> Arrays:
        made = {
            name: _filled(example, name, shape[0])
            for name, shape in self.shapes().items()
            if shape and name != "masked_weights"
        }
        number = len(example["masked_ids"])
        made["masked_weights"] = (np.arange(self.predictions) < number).astype(
            np.float32
        )
        return {
            **made,
            "next_sentence_labels": _number(example, "next_sentence_labels"),
        }


@dataclasses.dataclass(frozen=True)
class ClassifierFeatures(Features):
    """The class of a text, or of two, is told."""

    length: int

    def shapes(self) -> dict[str, list[int]]:
        return {"tokens": [self.length], "token_types": [self.length], "labels": []}

    def __call__(self, example: Example) -> Arrays:
        made = {
            name: _filled(example, name, self.length)
            for name in ("tokens", "token_types")
        }
        return {**made, "labels": _number(example, "labels")}


def _decoder(example: Example, length: int, packed: bool) -> Arrays:
    """Returns tokens, targets, weights, and segments and positions where they are asked
    for.
    """
    targets = _filled(example, "targets", length)
    tokens = np.concatenate([np.zeros(1, np.int32), targets[:-1]])
    weights = (np.arange(length) < len(example["targets"])).astype(np.float32)
    tokens = tokens * (weights > 0)
    if not packed:
        return {"tokens": tokens, "targets": targets, "weights": weights}
    segments, positions = (
        _filled(example, f"targets_{kind}", length)
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


def _filled(example: Example, name: str, length: int) -> np.ndarray:
    values = _get(example, name)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise DataError(
            f"{name!r} of an example must be whole numbers in a row, not "
            f"{values!r:.60}."
        )
    if len(values) > length:
        raise DataError(
            f"{name!r} of an example has {len(values)} entries; {length} fit.\n"
            "  Make room for more, or cut it: preprocessors.trim."
        )
    filled = np.zeros(length, np.int32)
    filled[: len(values)] = values
    return filled


def _number(example: Example, name: str) -> np.ndarray:
    return _get(example, name).astype(np.int32).reshape(())
