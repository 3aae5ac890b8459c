"""The bytes of text files as `Data`: windows at random places, and fixed ones that are
held out.

    data = ByteText(python_library, length=128)
    data.batches(16, first=1600)        # {"tokens", "targets"}: int32 [16, 128] each

Row r of step s begins at hash(seed, s, r) in the text (`transformer.data.batching.batches`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import gin
import tensorflow as tf

from transformer.data.batching.batches import batches, evaluation_batches, windows
from transformer.data.batching.task_batches import worker_slice
from transformer.data.datasets.corpus import Corpus, python_library
from transformer.data.protocol import Worker
from transformer.data.vocabularies import RawBytes


@gin.configurable
class ByteText:
    """Windows of the bytes of a corpus; what is told is the next byte.

    Args:
      corpus: called when text is first needed; in gin without brackets,
        `@data.python_library`.
      length: the bytes of a window.
      seed: of where windows begin.
    """

    anywhere = True

    def __init__(
        self,
        corpus: Callable[[], Corpus] = python_library,
        length: int = 128,
        seed: int = 0,
    ) -> None:
        self._read, self.length, self.seed, self.vocabulary = (
            corpus,
            length,
            seed,
            RawBytes(),
        )

    @functools.cached_property
    def corpus(self) -> Corpus:
        """The text, read when it is first asked for."""
        return self._read()

    def features(self, batch_size: int) -> dict[str, tf.TensorSpec]:
        """Returns names, shapes and types of a batch; reads no text."""
        return {
            name: tf.TensorSpec([batch_size, self.length], tf.int32, name)
            for name in ("tokens", "targets")
        }

    def batches(
        self, batch_size: int, first: int = 0, worker: Worker = (0, 1)
    ) -> tf.data.Dataset:
        """Returns an endless dataset of batches, after the first `first` examples; see
        `Data`.

        Windows belong to batches: `first` is rounded up to whole ones.
        """
        here = worker_slice(batch_size, worker)
        every = batches(
            self.corpus.train,
            batch_size,
            self.length,
            self.seed,
            -(-first // batch_size),
        )
        mine = every.map(
            lambda *pair: _named(*(x[here.start : here.stop] for x in pair))
        )
        return mine.prefetch(
            1
        )  # so that the loop does not wait for what the map does, either

    def held_out(
        self, batch_size: int, num_examples: int | None = None
    ) -> tf.data.Dataset:
        """Returns fixed windows that cover the held-out text, with `counts`; see
        `Data`.
        """
        fixed = windows(self.corpus.held_out, self.length, num_examples)
        return evaluation_batches(fixed, batch_size).map(
            lambda tokens, targets, counts: {
                **_named(tokens, targets),
                "counts": counts,
            }
        )

    def __str__(self) -> str:
        return str(self.corpus)


def _named(tokens: tf.Tensor, targets: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"tokens": tokens, "targets": targets}
