"""Two baselines for a byte language model, in bits per byte: a bigram model and gzip.

All are scored on the same bytes: the held-out files one after another
(`Corpus.held_out`), without the first byte, truncated to a multiple of `length` bytes.
Those are the targets of `transformer.data.windows(held_out, length)`,
each of them once.

    model    the mean of -log2 p(byte | the bytes before it in its window)
    bigram   the mean of -log2 p(byte | the one byte before it), counted on the training bytes
    gzip     8 * (size of those bytes as one stream under zlib level 9) / (number of bytes)

Zlib has learned nothing before, but sees up to 32,768 bytes back, across windows and
files; the model sees its own window only. Fewer windows, far apart, are a sample of
these bytes: good enough to watch a run, not to compare with zlib.

>>> text = np.tile(np.arange(4, dtype=np.uint8), 100)       # 0 1 2 3 0 1 2 3 ...
>>> compare(text, text, length=7)
Baselines(bigram=0.036..., gzip=0.34..., scored=399)
"""

from __future__ import annotations

import dataclasses
import zlib

import numpy as np


@dataclasses.dataclass(frozen=True)
class Baselines:
    """Bits per byte of the baselines on `scored` bytes."""

    bigram: float
    gzip: float
    scored: int


def compare(train: np.ndarray, held_out: np.ndarray, length: int) -> Baselines:
    """Returns the baselines on the bytes that windows of `length` score.

    Args:
      train: the training bytes, uint8 [train bytes].
      held_out: the held-out bytes, uint8 [held-out bytes].
      length: of the windows on which the model is scored.
    """
    scored = (held_out.size - 1) // length * length
    text = held_out[: scored + 1]
    return Baselines(bigram_bits(train, text), gzip_bits(text[1:]), scored)


def bigram_bits(train: np.ndarray, text: np.ndarray, smoothing: float = 0.01) -> float:
    """Returns the mean of -log2 p(byte | byte before) over all bytes of a text but the
    first.

    p is the share of a pair among the training pairs with the same first byte, after adding
    `smoothing` to the count of every pair. (On Python source 0.01 is better than 1 by
    0.002 bits.)
    """
    counts = _pair_counts(train) + smoothing
    probabilities = counts / counts.sum(axis=1, keepdims=True)
    bits = _pair_counts(text) * -np.log2(probabilities)
    num_pairs = text.size - 1
    return float(bits.sum() / num_pairs)


def gzip_bits(text: np.ndarray) -> float:
    """Returns bits per byte of a text, as one stream under zlib level 9."""
    return 8.0 * len(zlib.compress(text.tobytes(), 9)) / text.size


def _pair_counts(text: np.ndarray) -> np.ndarray:
    """Returns how often each byte follows each other one: int64 [256 before, 256
    after].
    """
    before = text[:-1].astype(np.int64)
    after = text[1:]
    counts = np.bincount(before * 256 + after, minlength=256 * 256)
    return counts.reshape(256, 256)
