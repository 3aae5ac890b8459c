"""The bytes of text files as `Data`: random windows for training, fixed windows for
evaluation.

    data = ByteText(python_library, length=128)
    data.batches(16, start=1600)        # {"tokens", "targets"}: int32 [16, 128] each

Example i of step s starts at byte hash(seed, s, i) of the text: see
`transformer.data.batching.batches`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import gin
import numpy as np
import tensorflow as tf

from transformer.data.array_spec import ArraySpec
from transformer.data.batching.batches import batches, evaluation_batches, windows
from transformer.data.batching.task_batches import worker_slice
from transformer.data.datasets.corpus import Corpus, python_library
from transformer.data.protocol import Worker
from transformer.data.vocabularies import RawBytes


@gin.configurable
class ByteText:
    """Windows of the bytes of a corpus; the target of each byte is the next byte.

    Args:
      corpus: a function that returns the corpus, called when text is first needed; in gin
        without brackets, `@data.python_library`.
      length: the count of bytes of an example.
      seed: the seed of the starts of windows.
    """

    uses_only_tf_ops = True

    def __init__(
        self,
        corpus: Callable[[], Corpus] = python_library,
        length: int = 128,
        seed: int = 0,
    ) -> None:
        self._read_corpus = corpus
        self.length = length
        self.seed = seed
        self.vocabulary = RawBytes()

    @functools.cached_property
    def corpus(self) -> Corpus:
        """The corpus, read at first use."""
        return self._read_corpus()

    def features(self, batch_size: int) -> dict[str, ArraySpec]:
        """Returns the shape and dtype of each feature of a batch, by name; reads no text."""
        return {
            name: ArraySpec((batch_size, self.length), np.dtype("int32"), name)
            for name in ("tokens", "targets")
        }

    def batches(
        self, batch_size: int, start: int = 0, worker: Worker = (0, 1)
    ) -> tf.data.Dataset:
        """Returns an endless dataset of batches, after `start` examples: see
        `Data.batches`.

        `start` is rounded up to a multiple of `batch_size`, since the windows of a step
        depend on the index of the step.
        """
        # The slice of each batch that this worker reads.
        local_range = worker_slice(batch_size, worker)
        local_slice = slice(local_range.start, local_range.stop)
        first_step = -(-start // batch_size)  # start / batch_size, rounded up
        global_batches = batches(
            self.corpus.train,
            batch_size=batch_size,
            length=self.length,
            seed=self.seed,
            first_step=first_step,
        )
        local_batches = global_batches.map(
            lambda tokens, targets: _features(tokens[local_slice], targets[local_slice])
        )
        return local_batches.prefetch(1)  # so that the loop does not wait for the map

    def held_out(
        self, batch_size: int, num_examples: int | None = None
    ) -> tf.data.Dataset:
        """Returns a dataset of batches of fixed windows of the held-out text, with `counts`:
        see `Data.held_out`.
        """
        fixed_windows = windows(
            self.corpus.held_out, length=self.length, num_windows=num_examples
        )
        return evaluation_batches(fixed_windows, batch_size).map(
            lambda tokens, targets, counts: {
                **_features(tokens, targets),
                "counts": counts,
            }
        )

    def __str__(self) -> str:
        return str(self.corpus)


def _features(tokens: tf.Tensor, targets: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the features of a batch, by name."""
    return {"tokens": tokens, "targets": targets}
