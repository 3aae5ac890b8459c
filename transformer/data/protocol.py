"""What a training loop asks of data: `Data`, and nothing more.

Example:

    data = ByteText(python_library, length=128)            # or TaskData("span_corruption_stdlib")
    for batch in data.batches(16, first=examples_done):    # endless; dicts of tensors
      ...
    for batch in data.held_out(16):                        # the same at every evaluation
      ...
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import tensorflow as tf

from transformer.data.vocabularies.base import Vocabulary

Worker = tuple[int, int]


@runtime_checkable
class Data(Protocol):
    """Examples to learn from and examples held out, in batches of static shapes.

    A class whose datasets are made of TensorFlow's ops alone may say `anywhere = True`:
    any process can run these, and workers then read their own rows
    (`transformer.training.input_batches`).
    """

    @property
    def vocabulary(self) -> Vocabulary:
        """What tokens stand for; `vocabulary.size` is the model's."""

    def features(self, batch_size: int) -> dict[str, tf.TensorSpec]:
        """Returns names, shapes and types of a batch; reads no examples."""

    def batches(
        self, batch_size: int, first: int = 0, worker: Worker = (0, 1)
    ) -> tf.data.Dataset:
        """Returns an endless dataset of batches, made ahead of time: dicts of
        `features(batch)`.

        Best without TensorFlow's autotuner (`mtf.untuned`), which may delay the end of
        a run.

        Args:
          batch_size: examples in a batch, of all workers together.
          first: how many examples were learnt from already. That number is all there is
            to save: a run that goes on from it sees exactly what it would have seen.
          worker: (w, n): rows w * batch / n and on, batch / n of them, of each batch.
        """

    def held_out(
        self, batch_size: int, num_examples: int | None = None
    ) -> tf.data.Dataset:
        """Returns the held-out examples as batches, in a fixed order, each of them
        once.

        Each dict has one entry more, `counts`, float32 [batch]: 1.0 for examples, 0.0
        for the rows of zeros that fill up the last batch.

        Args:
          batch_size: rows in a batch.
          num_examples: how many examples to take, evenly spaced; None: all.
        """

    def __str__(self) -> str: ...
