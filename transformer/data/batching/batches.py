"""Windows of the bytes of a text: random ones for training, as a pure function of (seed,
step), and fixed ones for evaluation.

A window is `length` + 1 successive bytes: the inputs are all but the last byte, the targets
all but the first. Window i of step s starts at byte hash(seed, s, i) of the text. So a run
that resumes at step s gets the batches of an uninterrupted run, and no state needs to be
saved:

    all_steps = batches(text, batch_size=8, length=256, seed=0)
    resumed = batches(text, batch_size=8, length=256, seed=0, first_step=1000)
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import meshtf as mtf
from transformer.data.datasets.corpus import CorpusError

# The constants of splitmix64 (Steele et al. 2014): an increment, factors and shifts.
_INCREMENT = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27)
_LAST_SHIFT = 31


def batches(
    text: np.ndarray, batch_size: int, length: int, seed: int = 0, first_step: int = 0
) -> tf.data.Dataset:
    """Returns an endless dataset of (inputs, targets), int32 [batch, length] each.

    Args:
      text: the bytes, uint8 [bytes].
      batch_size: the count of windows of a batch.
      length: the count of bytes of inputs, and of targets.
      seed: the seed of the starts of windows.
      first_step: the step of the first batch: 1000 after restoring the checkpoint of step
        1000.

    Raises:
      CorpusError: the text is shorter than one window.
    """
    num_starts = _num_starts(text, length)
    # tf.data runs on the CPU; without this, the text would be copied to a GPU and back.
    with tf.device("/CPU:0"):
        text_tensor = tf.constant(text)
        offsets = tf.range(length + 1, dtype=tf.int64)

    def batch(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the inputs and targets of a step, int32 [batch, length] each."""
        window_starts = starts(
            step, batch_size=batch_size, num_starts=num_starts, seed=seed
        )
        byte_indices = window_starts[:, None] + offsets  # [batch, length + 1]
        return _inputs_and_targets(tf.gather(text_tensor, byte_indices))

    steps = tf.data.Dataset.range(first_step, np.iinfo(np.int64).max)
    return mtf.cluster.without_autotuning(
        steps.map(batch, num_parallel_calls=2, deterministic=True).prefetch(4)
    )


def starts(
    step: tf.Tensor | int, batch_size: int, num_starts: int, seed: int = 0
) -> tf.Tensor:
    """Returns the start of each window of a step: int64 [batch], each from 0 to
    `num_starts` - 1.

    Args:
      step: the index of the step.
      batch_size: the count of windows of a batch.
      num_starts: the count of possible starts.
      seed: the seed of the starts.
    """
    increment = tf.constant(_INCREMENT, tf.uint64)
    step_word = tf.cast(step, tf.uint64)
    example_words = tf.cast(tf.range(batch_size), tf.uint64)
    # Mixes seed, step and example one after the other: at the end, a hash for each example
    # of the batch, uint64 [batch].
    state = tf.constant(seed % 2**63, tf.uint64)
    state = _mix(state + increment) ^ step_word
    state = _mix(state + increment) ^ example_words
    hashes = _mix(state)
    window_starts = tf.math.floormod(hashes, tf.constant(num_starts, tf.uint64))
    return tf.cast(window_starts, tf.int64)


def windows(
    text: np.ndarray, length: int, num_windows: int | None = None
) -> np.ndarray:
    """Returns fixed windows of a text: uint8 [windows, length + 1], in the order of the
    text.

    A window starts at the last byte of the window before. So each byte is a target once,
    except the first byte of the text, and the bytes of an incomplete last window.

    Args:
      text: the bytes, uint8 [bytes].
      length: the count of targets of a window.
      num_windows: the count of windows, evenly spaced; None: all.

    Raises:
      CorpusError: the text is shorter than one window.
    """
    window_starts = np.arange(0, _num_starts(text, length), length)
    total = window_starts.size
    if num_windows is not None and num_windows < total:
        # Window k of n is in the middle of the k-th of n equal sections:
        # (k * total + total / 2) / n, rounded down.
        indices = (np.arange(num_windows) * total + total // 2) // num_windows
        window_starts = window_starts[indices]
    all_windows = np.lib.stride_tricks.sliding_window_view(text, length + 1)
    return all_windows[window_starts]


def evaluation_batches(fixed: np.ndarray, batch_size: int) -> tf.data.Dataset:
    """Returns fixed windows as a dataset of (inputs, targets, counts), in order.

    Inputs and targets are int32 [batch, length]. The last batch is padded with zeros to
    the full batch size; counts, float32 [batch], are 1.0 for windows and 0.0 for padding.

    Args:
      fixed: the windows, from `windows`: uint8 [windows, length + 1].
      batch_size: the count of windows of a batch.
    """
    num_padding = -len(fixed) % batch_size
    padded_windows = np.pad(fixed, ((0, num_padding), (0, 0)))
    is_window = np.arange(len(padded_windows)) < len(fixed)
    counts = is_window.astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((padded_windows, counts))
    dataset = dataset.batch(batch_size, drop_remainder=True)

    def split(
        batch_windows: tf.Tensor, batch_counts: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the inputs, targets and counts of a batch of windows."""
        inputs, targets = _inputs_and_targets(batch_windows)
        return inputs, targets, batch_counts

    return mtf.cluster.without_autotuning(dataset.map(split))


def _num_starts(text: np.ndarray, length: int) -> int:
    """Returns the count of positions at which a window of length + 1 bytes can start.

    Raises:
      CorpusError: the text is shorter than one window.
    """
    if text.size <= length:
        raise CorpusError(
            f"a text of {text.size:,} bytes has no window of {length:,} + 1 bytes.\n"
            "  Give more text, or a shorter length."
        )
    return int(text.size) - length


def _mix(word: tf.Tensor) -> tf.Tensor:
    """Returns a 64-bit hash of each word, uint64 (the finalizer of splitmix64)."""
    for shift, factor in zip(_SHIFTS, _FACTORS):
        shifted = tf.bitwise.right_shift(word, tf.constant(shift, tf.uint64))
        word = (word ^ shifted) * tf.constant(factor, tf.uint64)
    return word ^ tf.bitwise.right_shift(word, tf.constant(_LAST_SHIFT, tf.uint64))


def _inputs_and_targets(batch_windows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns inputs and targets, int32 [batch, length], of windows [batch, length + 1]."""
    token_ids = tf.cast(batch_windows, tf.int32)
    inputs = token_ids[:, :-1]
    targets = token_ids[:, 1:]
    return inputs, targets
