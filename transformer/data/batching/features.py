"""Converts examples to the arrays that a model takes: of static lengths, padded with zeros.

    LanguageModelFeatures(length)
        targets -> tokens, targets, weights
    PrefixFeatures(length)
        inputs, targets -> tokens, targets, weights, prefix
    EncoderDecoderFeatures(inputs, targets)
        inputs, targets -> inputs, tokens, targets, weights
    BertFeatures(length, predictions)
        tokens, token_types, masked_positions, masked_ids, next_sentence_labels ->
        tokens, token_types, masked_positions, masked_ids, masked_weights, next_sentence_labels
    ClassifierFeatures(length)
        tokens, token_types, labels -> tokens, token_types, labels
    RegressorFeatures(length)
        tokens, token_types, scores -> tokens, token_types, scores

Left of an arrow are the fields of an example, right of it the arrays. An array with the name
of a field is that field, padded if it is a list; only the `targets` of PrefixFeatures are the
inputs followed by the targets. The other arrays are computed. The `tokens` of a decoder are
its targets shifted right by one, after a 0; `weights` are 1.0 for targets that count in the
loss, else 0.0; `masked_weights` are 1.0 for masked tokens, 0.0 for padding.

A packed example has several texts, and so also `segments`, the index of each token's text,
counted from 1 (0: padding), and `positions`, from 0 in each text.

>>> arrays = LanguageModelFeatures(5)({"targets": np.array([7, 8, 9])})
>>> {name: values.tolist() for name, values in arrays.items()}
{'tokens': [0, 7, 8, 0, 0], 'targets': [7, 8, 9, 0, 0], 'weights': [1.0, 1.0, 1.0, 0.0,
0.0]}
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np

from transformer.data.array_spec import ArraySpec
from transformer.data.errors import DataError
from transformer.data.sources.base import Example

Arrays = dict[str, np.ndarray]


class Features(Protocol):
    """Converts an example to arrays of static shapes."""

    def shapes(self) -> dict[str, list[int]]:
        """Returns the shape of each array of an example, by name."""

    def __call__(self, example: Example) -> Arrays:
        """Returns the arrays of an example, by name.

        Raises:
          DataError: the example lacks a field, or is too long.
        """


# The dtypes of arrays, by name; all other arrays are int32.
_DTYPES = {
    "weights": np.float32,
    "masked_weights": np.float32,
    "scores": np.float32,
    "prefix": np.bool_,
}


def specs(features: Features, batch_size: int) -> dict[str, ArraySpec]:
    """Returns the shape and dtype of each array of a batch, by name."""
    return {
        name: ArraySpec(
            (batch_size, *shape), np.dtype(_DTYPES.get(name, np.int32)), name
        )
        for name, shape in features.shapes().items()
    }


@dataclasses.dataclass(frozen=True)
class LanguageModelFeatures(Features):
    """The features of a language model, which predicts each of `targets` from the targets
    before it.

    Attributes:
      length: the count of tokens of an example, padding included.
      packed: whether an example has several texts.
    """

    length: int
    packed: bool = False

    def shapes(self) -> dict[str, list[int]]:
        names = ["tokens", "targets", "weights"]
        if self.packed:
            names += ["segments", "positions"]
        return dict.fromkeys(names, [self.length])

    def __call__(self, example: Example) -> Arrays:
        return _decoder_arrays(example, self.length, packed=self.packed)


@dataclasses.dataclass(frozen=True)
class PrefixFeatures(Features):
    """The features of a prefix language model: one text of `inputs` followed by `targets`.
    Only the targets are predicted.

    `prefix` is True for tokens that all tokens attend to: the 0 at the start and the
    inputs.

    Attributes:
      length: the count of tokens of an example, padding included.
    """

    length: int

    def shapes(self) -> dict[str, list[int]]:
        return dict.fromkeys(["tokens", "targets", "weights", "prefix"], [self.length])

    def __call__(self, example: Example) -> Arrays:
        inputs = _get(example, "inputs")
        text = np.concatenate([inputs, _get(example, "targets")])
        arrays = _decoder_arrays({"targets": text}, self.length, packed=False)
        positions = np.arange(self.length)
        # The inputs have the weight 0: they are not predicted.
        arrays["weights"] = arrays["weights"] * (positions >= len(inputs))
        # `tokens` are shifted right by one, so the inputs end at position len(inputs).
        arrays["prefix"] = positions <= len(inputs)
        return arrays


@dataclasses.dataclass(frozen=True)
class EncoderDecoderFeatures(Features):
    """The features of an encoder-decoder, which predicts each of `targets` from `inputs` and
    the targets before it.

    The attributes `inputs` and `targets` are lengths; gin files bind them by these names.

    Attributes:
      inputs: the length of the feature "inputs" in tokens, padding included.
      targets: the length of the feature "targets" in tokens, padding included.
      packed: whether an example has several pairs of inputs and targets.
    """

    inputs: int
    targets: int
    packed: bool = False

    def shapes(self) -> dict[str, list[int]]:
        encoder_names = ["inputs"]
        if self.packed:
            encoder_names += ["input_segments", "input_positions"]
        input_length = self.inputs
        encoder_shapes = dict.fromkeys(encoder_names, [input_length])
        decoder_features = LanguageModelFeatures(
            length=self.targets, packed=self.packed
        )
        return {**encoder_shapes, **decoder_features.shapes()}

    def __call__(self, example: Example) -> Arrays:
        input_length = self.inputs
        target_length = self.targets
        encoder_arrays = {"inputs": _pad(example, "inputs", input_length)}
        if self.packed:
            # The features "input_segments" and "input_positions". In a packed example,
            # their names start with the name of their field: "inputs_segments".
            for name in ("segments", "positions"):
                array = _pad(example, f"inputs_{name}", input_length)
                encoder_arrays[f"input_{name}"] = array
        decoder_arrays = _decoder_arrays(example, target_length, packed=self.packed)
        return {**encoder_arrays, **decoder_arrays}


@dataclasses.dataclass(frozen=True)
class BertFeatures(Features):
    """The features of BERT, which predicts masked tokens, and whether the second text of an
    example follows the first.

    Attributes:
      length: the count of tokens of an example, padding included.
      predictions: the maximum count of masked tokens of an example.
    """

    length: int
    predictions: int

    def shapes(self) -> dict[str, list[int]]:
        return {
            "tokens": [self.length],
            "token_types": [self.length],
            "masked_positions": [self.predictions],
            "masked_ids": [self.predictions],
            "masked_weights": [self.predictions],
            "next_sentence_labels": [],
        }

    def __call__(self, example: Example) -> Arrays:
        max_masked = self.predictions
        masked_ids = _pad(example, "masked_ids", max_masked)
        is_masked = np.arange(max_masked) < len(example["masked_ids"])
        return {
            "tokens": _pad(example, "tokens", self.length),
            "token_types": _pad(example, "token_types", self.length),
            "masked_positions": _pad(example, "masked_positions", max_masked),
            "masked_ids": masked_ids,
            "masked_weights": is_masked.astype(np.float32),
            "next_sentence_labels": _scalar(example, "next_sentence_labels"),
        }


@dataclasses.dataclass(frozen=True)
class ClassifierFeatures(Features):
    """The features of a classifier, which predicts the class of a text or of a pair of texts.

    Attributes:
      length: the count of tokens of an example, padding included.
    """

    length: int

    def shapes(self) -> dict[str, list[int]]:
        return {"tokens": [self.length], "token_types": [self.length], "labels": []}

    def __call__(self, example: Example) -> Arrays:
        return {
            "tokens": _pad(example, "tokens", self.length),
            "token_types": _pad(example, "token_types", self.length),
            "labels": _scalar(example, "labels"),
        }


@dataclasses.dataclass(frozen=True)
class RegressorFeatures(Features):
    """The features of a regressor, which predicts a number for a text or a pair of texts.

    Attributes:
      length: the count of tokens of an example, padding included.
    """

    length: int

    def shapes(self) -> dict[str, list[int]]:
        return {"tokens": [self.length], "token_types": [self.length], "scores": []}

    def __call__(self, example: Example) -> Arrays:
        return {
            "tokens": _pad(example, "tokens", self.length),
            "token_types": _pad(example, "token_types", self.length),
            "scores": np.asarray(_get(example, "scores"), np.float32).reshape(()),
        }


def _decoder_arrays(example: Example, length: int, packed: bool) -> Arrays:
    """Returns the arrays of a decoder: tokens, targets and weights, each [length]; if
    `packed`, also segments and positions.
    """
    targets = _pad(example, "targets", length)
    tokens = np.concatenate([np.zeros(1, np.int32), targets[:-1]])  # shifted right
    is_target = np.arange(length) < len(example["targets"])
    weights = is_target.astype(np.float32)
    # The last target, shifted right, is not an input: no target comes after it.
    tokens = tokens * is_target
    if not packed:
        return {"tokens": tokens, "targets": targets, "weights": weights}
    segments = _pad(example, "targets_segments", length)
    positions = _pad(example, "targets_positions", length)
    return {
        # The first token of each text is 0, not the last target of the text before.
        "tokens": tokens * (positions > 0),
        "targets": targets,
        "weights": weights,
        "segments": segments,
        "positions": positions,
    }


def _get(example: Example, name: str) -> np.ndarray:
    """Returns a field of an example as an array.

    Raises:
      DataError: the example lacks the field.
    """
    if name not in example:
        raise DataError(
            f"an example has no {name!r}, but {', '.join(map(repr, example))}."
        )
    return np.asarray(example[name])


def _pad(example: Example, name: str, length: int) -> np.ndarray:
    """Returns a field of integers, padded with zeros: int32 [length].

    Raises:
      DataError: the field is absent, is not a list of integers, or is longer.
    """
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
    """Returns a field of one integer: int32 []."""
    return _get(example, name).astype(np.int32).reshape(())
