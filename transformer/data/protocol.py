"""The interface between data and a training loop: `Data`.

Example:

    data = ByteText(python_library, length=128)            # or TaskData("span_corruption_stdlib")
    for batch in data.batches(16, start=examples_done):    # endless; dicts of tensors
      ...
    for batch in data.held_out(16):                        # the same at every evaluation
      ...
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import tensorflow as tf

from transformer.data.array_spec import ArraySpec
from transformer.data.vocabularies.base import Vocabulary

# A worker, a process of a cluster that reads data: its index, and the count of workers.
Worker = tuple[int, int]


@runtime_checkable
class Data(Protocol):
    """Training and held-out examples, in batches of static shapes.

    A class whose datasets use only TensorFlow ops may set `uses_only_tf_ops = True`: then
    each worker of a cluster reads its slice of a batch itself
    (`transformer.training.input_batches`).
    """

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the tokens; the model has `vocabulary.size` ids."""

    def features(self, batch_size: int) -> dict[str, ArraySpec]:
        """Returns the shape and dtype of each feature of a batch, by name; reads no
        examples.
        """

    def batches(
        self, batch_size: int, start: int = 0, worker: Worker = (0, 1)
    ) -> tf.data.Dataset:
        """Returns an endless dataset of prefetched batches: dicts with a tensor for each of
        `features(batch_size)`.

        The dataset should be made by `mtf.cluster.without_autotuning`: otherwise TensorFlow's
        autotuner may delay the end of a run.

        Args:
          batch_size: the count of examples of a batch, of all workers together.
          start: the count of examples consumed before. This is the only state to save: a
            run that resumes with it gets the batches of an uninterrupted run.
          worker: the index w of a worker, and the count n of workers: the worker reads the
            examples from w * batch_size / n to (w + 1) * batch_size / n of each batch.
        """

    def held_out(
        self, batch_size: int, num_examples: int | None = None
    ) -> tf.data.Dataset:
        """Returns a dataset of batches that has each held-out example once, in a fixed
        order.

        Each dict also has `counts`, float32 [batch]: 1.0 for examples, 0.0 for the padding
        of the last batch.

        Args:
          batch_size: the count of examples of a batch.
          num_examples: the count of examples to take, evenly spaced; None: all.
        """

    def __str__(self) -> str: ...
