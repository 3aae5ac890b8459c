"""Span corruption: spans of a text are replaced by sentinels in the inputs, and are the
targets (Raffel et al. 2019).

    inputs    Thank you <X> me to your party <Y> week.
    targets   <X> for inviting <Y> last

The counts of corrupted tokens and of spans depend only on the length of the
text. So texts of one length give inputs of one length, and targets of one length:
`span_lengths` returns them.

>>> span_lengths(512)            # (tokens of a text with 512 inputs, its targets)
(568, 114)
"""

from __future__ import annotations

import numpy as np

from transformer.data.batching.seeds import Seed, generator
from transformer.data.errors import DataError
from transformer.data.sources.base import Example
from transformer.data.vocabularies import Vocabulary


def corrupt_spans(
    example: Example,
    seed: Seed,
    *,
    vocabulary: Vocabulary,
    noise_density: float = 0.15,
    mean_span: float = 3.0,
    field: str = "targets",
) -> Example:
    """Returns `inputs`, in which a sentinel replaces each corrupted span, and `targets`, in
    which each span follows its sentinel; `eos_id` is appended to both.

    Args:
      example: has the tokens, in `field`.
      seed: of the positions of the spans.
      vocabulary: has the sentinels and `eos_id`.
      noise_density: the fraction of tokens that is corrupted.
      mean_span: the mean count of tokens in a span.
      field: the field that has the tokens.
    """
    tokens = np.asarray(example[field])
    noise = noise_mask(len(tokens), seed, noise_density, mean_span)
    rest = {
        name: value for name, value in example.items() if name not in ("inputs", field)
    }
    return {
        **rest,
        "inputs": _with_sentinels(tokens, noise, vocabulary),
        "targets": _with_sentinels(tokens, ~noise, vocabulary),
    }


def span_lengths(
    inputs: int, noise_density: float = 0.15, mean_span: float = 3.0
) -> tuple[int, int]:
    """Returns the maximum length of a text that gives at most `inputs` inputs, and the
    length of its targets, both including `eos_id`.

    Raises:
      DataError: not even two tokens fit.
    """

    def lengths(length: int) -> tuple[int, int]:
        noise, spans = _counts(length, noise_density, mean_span)
        return length - noise + spans + 1, noise + spans + 1

    if inputs < lengths(2)[0]:
        raise DataError(
            f"{inputs} inputs are too few: two tokens, one of them in a span, make "
            f"{lengths(2)[0]}."
        )
    length = 2
    while lengths(length + 1)[0] <= inputs:
        length += 1
    return length, lengths(length)[1]


def noise_mask(
    length: int, seed: Seed, noise_density: float = 0.15, mean_span: float = 3.0
) -> np.ndarray:
    """Returns which tokens are corrupted: bool [length]; the initial one never is."""
    if length < 2:
        return np.zeros(length, bool)
    rng = generator(seed)
    noise, spans = _counts(length, noise_density, mean_span)
    text_sizes = _random_sizes(length - noise, spans, rng)
    noise_sizes = _random_sizes(noise, spans, rng)
    # Text and noise alternate: text, span, text, span, ...
    sizes = np.stack([text_sizes, noise_sizes], axis=1).reshape(-1)
    return np.repeat(np.arange(2 * spans) % 2 == 1, sizes)


def _counts(length: int, noise_density: float, mean_span: float) -> tuple[int, int]:
    """Returns the counts of corrupted tokens and of spans. Raises DataError."""
    if not 0.0 < noise_density < 1.0 or mean_span < 1.0:
        raise DataError(
            "the noise density must lie between 0 and 1, and the mean span be at least "
            f"1; they are {noise_density} and {mean_span}."
        )
    noise = min(max(round(length * noise_density), 1), length - 1)
    spans = max(min(round(noise / mean_span), length - noise), 1)
    return noise, spans


def _random_sizes(total: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Returns `count` sizes of at least 1 that sum to `total`, uniformly distributed."""
    gaps = rng.choice(total - 1, count - 1, replace=False)
    boundaries = np.sort(gaps) + 1
    return np.diff(boundaries, prepend=0, append=total)


def _with_sentinels(
    tokens: np.ndarray, is_replaced: np.ndarray, vocabulary: Vocabulary
) -> np.ndarray:
    """Returns the tokens with each replaced span as one sentinel, and `eos_id`."""
    is_start = is_replaced & ~np.concatenate([[False], is_replaced[:-1]])
    num_spans = int(is_start.sum())
    if num_spans:
        vocabulary.sentinel(num_spans - 1)  # raises if there are too few sentinels
    sentinels = vocabulary.size - np.cumsum(is_start)
    ids = np.where(is_start, sentinels, tokens)[~is_replaced | is_start]
    return np.append(ids, vocabulary.eos_id).astype(np.int32)
