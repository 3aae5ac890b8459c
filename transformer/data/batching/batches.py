"""Batches whose order is a pure function of (seed, step), and windows that never
change.

Row r of step s begins at hash(seed, s, r) in the text, so a run that resumes at step s
goes on with exactly what it would have seen, and nothing needs to be saved:

    all_steps = batches(text, batch_size=8, length=256, seed=0)
    from_1000 = batches(text, batch_size=8, length=256, seed=0, first_step=1000)   # the same, later
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import meshtf as mtf
from transformer.data.datasets.corpus import CorpusError

_ODD = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of splitmix64


def batches(
    text: np.ndarray, batch_size: int, length: int, seed: int = 0, first_step: int = 0
) -> tf.data.Dataset:
    """Returns an endless dataset of (inputs, targets), int32 [batch, length] each.

    The targets are the inputs one byte later. The dataset begins with the batch of
    step `first_step`: after restoring a checkpoint taken after 1000 steps, that is
    1000.

    Raises:
      CorpusError: the text is shorter than one window.
    """
    places = _places(text, length)
    with tf.device("/CPU:0"):  # where tf.data runs, also on a machine with a GPU
        held, reach = tf.constant(text), tf.range(length + 1, dtype=tf.int64)

    def at(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        first = starts(step, batch_size, places, seed)
        return _pair(tf.gather(held, first[:, None] + reach))

    steps = tf.data.Dataset.range(first_step, np.iinfo(np.int64).max)
    return mtf.untuned(
        steps.map(at, num_parallel_calls=2, deterministic=True).prefetch(4)
    )


def starts(
    step: tf.Tensor | int, batch_size: int, places: int, seed: int = 0
) -> tf.Tensor:
    """Returns where the rows of a step begin: int64 [batch], each from 0 to `places` -
    1.
    """
    number = tf.constant(seed % 2**63, tf.uint64)
    for word in (tf.cast(step, tf.uint64), tf.cast(tf.range(batch_size), tf.uint64)):
        number = _mix(number + tf.constant(_ODD[0], tf.uint64)) ^ word
    return tf.cast(
        tf.math.floormod(_mix(number), tf.constant(places, tf.uint64)), tf.int64
    )


def windows(text: np.ndarray, length: int, number: int | None = None) -> np.ndarray:
    """Returns fixed windows of a text: uint8 [windows, length + 1], in the order of the
    text.

    A window's targets are its last `length` bytes. Without a number, every byte is a
    target once, except the first, and less than one window at the end. Else `number` of
    these windows, evenly spaced.

    Raises:
      CorpusError: the text is shorter than one window.
    """
    every = np.arange(0, _places(text, length), length)
    if number is not None and number < every.size:
        every = every[(np.arange(number) * every.size + every.size // 2) // number]
    return np.lib.stride_tricks.sliding_window_view(text, length + 1)[every]


def evaluation_batches(fixed: np.ndarray, batch_size: int) -> tf.data.Dataset:
    """Returns the windows as a dataset of (inputs, targets, counts), in their order.

    Inputs and targets are int32 [batch, length]. The last batch is filled up with
    zeros, so that all have one shape; counts, float32 [batch], are 1.0 for windows and
    0.0 for what was filled up.
    """
    missing = -len(fixed) % batch_size
    rows = np.pad(fixed, ((0, missing), (0, 0)))
    counts = np.arange(len(rows)) < len(fixed)
    both = tf.data.Dataset.from_tensor_slices((rows, counts.astype(np.float32)))
    both = both.batch(batch_size, drop_remainder=True)
    return mtf.untuned(both.map(lambda row, count: (*_pair(row), count)))


def _places(text: np.ndarray, length: int) -> int:
    if text.size <= length:
        raise CorpusError(
            f"a text of {text.size:,} bytes has no window of {length:,} + 1 bytes.\n"
            "  Give more text, or a shorter length."
        )
    return int(text.size) - length


def _mix(word: tf.Tensor) -> tf.Tensor:
    """Returns 64 bits of which each depends on all of those of `word` (the end of
    splitmix64).
    """
    shift = tf.bitwise.right_shift
    for by, odd in ((30, _ODD[1]), (27, _ODD[2])):
        word = (word ^ shift(word, tf.constant(by, tf.uint64))) * tf.constant(
            odd, tf.uint64
        )
    return word ^ shift(word, tf.constant(31, tf.uint64))


def _pair(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    rows = tf.cast(rows, tf.int32)
    return rows[:, :-1], rows[:, 1:]
