"""Data of which only the shapes are known: enough to explain and to export a step of
training.

    train.data = @ShapesOnly()
    ShapesOnly.features = @LanguageModelFeatures()
    LanguageModelFeatures.length = 1024

So a configuration of a large model needs neither its texts nor its vocabulary to be
planned. To train it, bind `train.data` to data with texts.
"""

from __future__ import annotations

from typing import NoReturn

import gin
import numpy as np
import tensorflow as tf

from transformer.data.batching import features as made
from transformer.data.errors import DataError
from transformer.data.protocol import Worker
from transformer.data.vocabularies.base import Vocabulary

for _kind in (
    made.LanguageModelFeatures,
    made.PrefixFeatures,
    made.EncoderDecoderFeatures,
    made.BertFeatures,
    made.ClassifierFeatures,
):
    gin.external_configurable(_kind)


class _NoVocabulary(Vocabulary):
    """A vocabulary without ids, which fits any model."""

    size, end, unknown = 0, 0, None

    def encode(self, text: str) -> np.ndarray:
        _refuse()

    def decode(self, ids: np.ndarray) -> str:
        _refuse()

    def fingerprint(self) -> str:
        return "none"


@gin.configurable
class ShapesOnly:
    """Data without texts.

    Args:
      features: what a model takes, such as
        `EncoderDecoderFeatures(inputs=512, targets=114)`.
    """

    def __init__(self, features: made.Features) -> None:
        self._features, self.vocabulary = features, _NoVocabulary()

    def features(self, batch_size: int) -> dict[str, tf.TensorSpec]:
        """Returns names, shapes and types of a batch."""
        return made.specs(self._features, batch_size)

    def batches(
        self, batch_size: int, first: int = 0, worker: Worker = (0, 1)
    ) -> tf.data.Dataset:
        """Raises DataError: there are none."""
        _refuse()

    def held_out(
        self, batch_size: int, num_examples: int | None = None
    ) -> tf.data.Dataset:
        """Raises DataError: there are none."""
        _refuse()

    def __str__(self) -> str:
        return f"no texts, but the shapes of {self._features}"


def _refuse() -> NoReturn:
    raise DataError(
        "this configuration has no texts: it is there to be explained.\n  To train, "
        "bind "
        "train.data to data with texts, such as @TaskData()."
    )
