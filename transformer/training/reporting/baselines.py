"""Two baselines for a byte language model, in bits per byte: a bigram model and gzip.

Model and baselines are scored on the same bytes: the concatenated held-out files
(`Corpus.held_out`), without the first byte, truncated to a multiple of `length` bytes.
These bytes are the targets of `transformer.data.windows(held_out, length)`: successive
windows of `length` bytes.

    model    the mean of -log2 p(byte | the bytes before it in its window)
    bigram   the mean of -log2 p(byte | the one byte before it), counted on the training bytes
    gzip     8 * (compressed size of the bytes, as one zlib stream of level 9) / (their count)

Zlib has not learned from training bytes, but sees up to 32,768 bytes back, across windows
and files; the model sees only its window. An evaluation on a sample of the windows is good
enough to watch a run, but not to compare with zlib.

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
    """Bits per byte of the baselines.

    Attributes:
      bigram: the bits per byte of the bigram model.
      gzip: the bits per byte of zlib.
      scored: the count of bytes that are scored.
    """

    bigram: float
    gzip: float
    scored: int


def compare(train: np.ndarray, held_out: np.ndarray, length: int) -> Baselines:
    """Returns the baselines on the bytes that windows of `length` score.

    Args:
      train: the training bytes, uint8 [train bytes].
      held_out: the held-out bytes, uint8 [held-out bytes].
      length: the length of the windows on which the model is scored.
    """
    num_scored = (held_out.size - 1) // length * length
    # The first byte is not scored: the bigram model predicts the second byte from it.
    text = held_out[: num_scored + 1]
    return Baselines(
        bigram=bigram_bits(train, text),
        gzip=gzip_bits(text[1:]),
        scored=num_scored,
    )


def bigram_bits(train: np.ndarray, text: np.ndarray, smoothing: float = 0.01) -> float:
    """Returns the mean of -log2 p(byte | byte before) over all bytes of a text except the
    first.

    p is the fraction of a pair among the training pairs with the same first byte, after
    `smoothing` is added to the count of every pair. (On Python source, 0.01 is better than
    1 by 0.002 bits.)

    Args:
      train: the training bytes, uint8 [train bytes].
      text: the bytes to score, uint8 [text bytes].
      smoothing: the number added to each count, so that no probability is 0.
    """
    counts = _pair_counts(train) + smoothing
    probabilities = counts / counts.sum(axis=1, keepdims=True)
    bits = _pair_counts(text) * -np.log2(probabilities)
    num_pairs = text.size - 1
    return float(bits.sum() / num_pairs)


def gzip_bits(text: np.ndarray) -> float:
    """Returns the bits per byte of a text, compressed as one zlib stream of level 9."""
    return 8.0 * len(zlib.compress(text.tobytes(), level=9)) / text.size


def _pair_counts(text: np.ndarray) -> np.ndarray:
    """Returns the count of each pair of successive bytes: int64 [256 first, 256 second]."""
    first = text[:-1].astype(np.int64)
    second = text[1:]
    counts = np.bincount(first * 256 + second, minlength=256 * 256)
    return counts.reshape(256, 256)
