"""Data with shapes and without examples: enough to forecast or export a training step.

    train.data = @ShapesOnly()
    ShapesOnly.features = @LanguageModelFeatures()
    LanguageModelFeatures.length = 1024

So the cost of a large model can be forecast without its texts and its vocabulary. To train
it, bind `train.data` to data with texts.
"""

from __future__ import annotations

from typing import NoReturn

import gin
import numpy as np
import tensorflow as tf

from transformer.data.array_spec import ArraySpec
from transformer.data.batching import features as feature_kinds
from transformer.data.errors import DataError
from transformer.data.protocol import Worker
from transformer.data.vocabularies.base import Vocabulary

# Registered with gin here, since only `ShapesOnly` needs their names in gin files.
for _kind in (
    feature_kinds.LanguageModelFeatures,
    feature_kinds.PrefixFeatures,
    feature_kinds.EncoderDecoderFeatures,
    feature_kinds.BertFeatures,
    feature_kinds.ClassifierFeatures,
):
    gin.external_configurable(_kind)


class _NoVocabulary(Vocabulary):
    """A vocabulary without ids. Its size, 0, fits every model: a model must have at least
    as many ids as its data.
    """

    size = 0
    eos_id = 0
    unk_id = None

    def encode(self, text: str) -> np.ndarray:
        _raise_no_texts()

    def decode(self, ids: np.ndarray) -> str:
        _raise_no_texts()

    def fingerprint(self) -> str:
        return "none"  # `transformer.training.run_record` tests for this text


@gin.configurable
class ShapesOnly:
    """Data without texts.

    Args:
      features: the features of the model, such as
        `EncoderDecoderFeatures(inputs=512, targets=114)`.
    """

    def __init__(self, features: feature_kinds.Features) -> None:
        self._features = features
        self.vocabulary = _NoVocabulary()

    def features(self, batch_size: int) -> dict[str, ArraySpec]:
        """Returns the shape and dtype of each feature of a batch, by name."""
        return feature_kinds.specs(self._features, batch_size)

    def batches(
        self, batch_size: int, start: int = 0, worker: Worker = (0, 1)
    ) -> tf.data.Dataset:
        """Raises DataError: there are no texts."""
        _raise_no_texts()

    def held_out(
        self, batch_size: int, num_examples: int | None = None
    ) -> tf.data.Dataset:
        """Raises DataError: there are no texts."""
        _raise_no_texts()

    def __str__(self) -> str:
        return f"no texts, but the shapes of {self._features}"


def _raise_no_texts() -> NoReturn:
    """Raises DataError: these data can be explained or exported, but not read."""
    raise DataError(
        "this configuration has no texts: it can only be explained or exported.\n  To train, "
        "bind train.data to data with texts, such as @TaskData()."
    )
