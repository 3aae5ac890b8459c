"""Datasets without TensorFlow's autotuner, so that deleting an iterator never blocks.

The autotuner has a thread for each iterator, which sleeps for up to 60 seconds between
two checks. When an iterator is deleted, the thread is woken before the cancelled flag is
set (TensorFlow 2.21, cancellation.cc: StartCancel runs its callbacks first). So on a busy
machine it goes back to sleep, and the deletion waits for it: a worker answers no request
until then, and a driver that registers a function with that worker blocks.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.names.arguments import refuse


def without_autotuning(dataset: Any) -> Any:
    """Returns a `tf.data.Dataset` whose buffer sizes and threads are not autotuned.

    With `tf.data.AUTOTUNE`, `map` then uses one thread per core, and `prefetch` enlarges its
    buffer whenever it is empty.

    Raises:
      ArgumentError: the argument is no dataset.
    """
    if not hasattr(dataset, "with_options"):
        refuse("dataset", dataset, "a tf.data.Dataset")
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
