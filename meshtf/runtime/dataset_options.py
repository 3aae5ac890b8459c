"""Datasets that end when they are told to.

TensorFlow's autotuner has a thread for each iterator, which sleeps between two looks
for up to 60 seconds. When an iterator is deleted, it is woken before it can see that it
is to end (TensorFlow 2.21, cancellation.cc: StartCancel calls back first and is
cancelled after), so on a busy machine it sleeps on, and whoever deletes waits for it: a
worker answers nobody until then, and a driver that registers a function with it stands
still.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.names.arguments import refuse


def without_autotuning(dataset: Any) -> Any:
    """Returns a `tf.data.Dataset` whose buffers and threads stay as it was given them.

    Where it says `tf.data.AUTOTUNE`, `map` takes as many threads as there are
    processors, and `prefetch` finds its number by itself, as it does without the
    autotuner.
    """
    if not hasattr(dataset, "with_options"):
        refuse("dataset", dataset, "a tf.data.Dataset")
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
