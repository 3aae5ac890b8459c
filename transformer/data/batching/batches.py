"""Random windows of a text as a pure function of (seed, step), and fixed windows for
evaluation.

Example i of step s starts at hash(seed, s, i) in the text. So a run that resumes at step s
gets the batches of an uninterrupted run, and no state needs to be saved:

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

    The targets are the inputs shifted by one byte. The dataset starts with the batch of
    step `first_step`: 1000 after restoring the checkpoint of step 1000.

    Raises:
      CorpusError: the text is shorter than one window.
    """
    num_starts = _num_starts(text, length)
    with tf.device("/CPU:0"):  # where tf.data runs, also on a machine with a GPU
        text_tensor = tf.constant(text)
        offsets = tf.range(length + 1, dtype=tf.int64)

    def batch(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        start = starts(step, batch_size, num_starts, seed)
        return _pair(tf.gather(text_tensor, start[:, None] + offsets))

    steps = tf.data.Dataset.range(first_step, np.iinfo(np.int64).max)
    return mtf.cluster.without_autotuning(
        steps.map(batch, num_parallel_calls=2, deterministic=True).prefetch(4)
    )


def starts(
    step: tf.Tensor | int, batch_size: int, num_starts: int, seed: int = 0
) -> tf.Tensor:
    """Returns the start of each window of a step: int64 [batch], each from 0 to
    `num_starts` - 1.
    """
    bits = tf.constant(seed % 2**63, tf.uint64)
    for word in (tf.cast(step, tf.uint64), tf.cast(tf.range(batch_size), tf.uint64)):
        bits = _mix(bits + tf.constant(_ODD[0], tf.uint64)) ^ word
    return tf.cast(
        tf.math.floormod(_mix(bits), tf.constant(num_starts, tf.uint64)), tf.int64
    )


def windows(
    text: np.ndarray, length: int, num_windows: int | None = None
) -> np.ndarray:
    """Returns fixed windows of a text: uint8 [windows, length + 1], in the order of the
    text.

    The targets of a window are its last `length` bytes. If `num_windows` is None, each byte is
    a target once, except the initial one and those of an incomplete last window. Otherwise
    that count of these windows, evenly spaced.

    Raises:
      CorpusError: the text is shorter than one window.
    """
    starts = np.arange(0, _num_starts(text, length), length)
    total = starts.size
    if num_windows is not None and num_windows < total:
        indices = np.arange(num_windows) * total + total // 2
        starts = starts[indices // num_windows]
    return np.lib.stride_tricks.sliding_window_view(text, length + 1)[starts]


def evaluation_batches(fixed: np.ndarray, batch_size: int) -> tf.data.Dataset:
    """Returns the windows as a dataset of (inputs, targets, counts), in order.

    Inputs and targets are int32 [batch, length]. The last batch is padded with zeros
    to the full batch size; counts, float32 [batch], are 1.0 for windows and 0.0 for
    padding.
    """
    num_padding = -len(fixed) % batch_size
    padded = np.pad(fixed, ((0, num_padding), (0, 0)))
    counts = np.arange(len(padded)) < len(fixed)
    dataset = tf.data.Dataset.from_tensor_slices((padded, counts.astype(np.float32)))
    dataset = dataset.batch(batch_size, drop_remainder=True)
    return mtf.cluster.without_autotuning(
        dataset.map(lambda window, count: (*_pair(window), count))
    )


def _num_starts(text: np.ndarray, length: int) -> int:
    """Returns the number of windows of length + 1 bytes. Raises CorpusError: none."""
    if text.size <= length:
        raise CorpusError(
            f"a text of {text.size:,} bytes has no window of {length:,} + 1 bytes.\n"
            "  Give more text, or a shorter length."
        )
    return int(text.size) - length


def _mix(word: tf.Tensor) -> tf.Tensor:
    """Returns a 64-bit hash of a word (the finalizer of splitmix64)."""
    shift = tf.bitwise.right_shift
    for by, odd in ((30, _ODD[1]), (27, _ODD[2])):
        word = (word ^ shift(word, tf.constant(by, tf.uint64))) * tf.constant(
            odd, tf.uint64
        )
    return word ^ shift(word, tf.constant(31, tf.uint64))


def _pair(windows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns inputs and targets of windows [batch, length + 1]."""
    windows = tf.cast(windows, tf.int32)
    inputs = windows[:, :-1]
    targets = windows[:, 1:]
    return inputs, targets
