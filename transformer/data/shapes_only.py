"""Data of which only the shapes are known: enough to explain and to export a step of training.

    train.data = @data.ShapesOnly()
    data.ShapesOnly.features = @data.LanguageModelFeatures()
    LanguageModelFeatures.length = 1024

So a configuration of a large model needs neither its texts nor its vocabulary to be planned. To
train it, bind `train.data` to data with texts.
"""

from __future__ import annotations

from typing import NoReturn

import gin
import tensorflow as tf

from transformer.data import features as made
from transformer.data.errors import DataError
from transformer.data.protocol import Worker
from transformer.data.vocabularies.base import Vocabulary

for _kind in (made.LanguageModelFeatures, made.PrefixFeatures, made.EncoderDecoderFeatures,
              made.BertFeatures, made.ClassifierFeatures):
  gin.external_configurable(_kind, module="data")


@gin.configurable(module="data")
class ShapesOnly:
  """Data that has no texts.

  Args:
    features: what a model takes, such as `EncoderDecoderFeatures(inputs=512, targets=114)`.
  """

  def __init__(self, features: made.Features) -> None:
    self._features = features

  @property
  def vocabulary(self) -> Vocabulary:
    """There is none. Raises DataError."""
    self._refuse()

  def features(self, batch: int) -> dict[str, tf.TensorSpec]:
    """Returns names, shapes and types of a batch."""
    return made.specs(self._features, batch)

  def batches(self, batch: int, first: int = 0, worker: Worker = (0, 1)) -> tf.data.Dataset:
    """There are none. Raises DataError."""
    self._refuse()

  def held_out(self, batch: int, number: int | None = None) -> tf.data.Dataset:
    """There are none. Raises DataError."""
    self._refuse()

  def __str__(self) -> str:
    return f"shapes only, {self._features}"

  def _refuse(self) -> NoReturn:
    raise DataError(f"this configuration has no texts, but {self}.\n  It is there to be explained; "
                    "to train, bind train.data to data with texts, such as @data.TaskData().")
