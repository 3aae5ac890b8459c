"""Span corruption: spans are cut out of a text, and are what is to be told (Raffel et
al. 2019).

    inputs    Thank you <X> me to your party <Y> week.
    targets   <X> for inviting <Y> last

How much is cut out and into how many spans is settled by the length of the text alone,
so texts of one length give inputs of one length, and targets of one length:
`span_lengths` says which.

>>> span_lengths(512)            # that many tokens make 512 inputs, and that many targets
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
    """Returns `inputs`, in which a sentinel stands for each span that is cut out, and
    `targets`, in which each span stands after its sentinel; an end is put after both.

    Args:
      example: has the tokens, in `field`.
      seed: of where the spans are.
      vocabulary: has the sentinels and the end.
      noise_density: the part of all tokens that is cut out.
      mean_span: the mean number of tokens in a span.
      field: where the tokens are.
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
    """Returns the most tokens that make no more than so many inputs, and how many
    targets they make, ends included.

    Raises:
      DataError: not even two tokens fit.
    """

    def made(length: int) -> tuple[int, int]:
        noise, spans = _counts(length, noise_density, mean_span)
        return length - noise + spans + 1, noise + spans + 1

    if inputs < made(2)[0]:
        raise DataError(
            f"{inputs} inputs are too few: two tokens, one of them cut out, make "
            f"{made(2)[0]}."
        )
    length = 2
    while made(length + 1)[0] <= inputs:
        length += 1
    return length, made(length)[1]


def noise_mask(
    length: int, seed: Seed, noise_density: float = 0.15, mean_span: float = 3.0
) -> np.ndarray:
    """Returns which tokens are cut out: bool [length]; the first one never is."""
    if length < 2:
        return np.zeros(length, bool)
    draw = generator(seed)
    noise, spans = _counts(length, noise_density, mean_span)
    kept_sizes, noise_sizes = (
        _parts(length - noise, spans, draw),
        _parts(noise, spans, draw),
    )
    sizes = np.stack([kept_sizes, noise_sizes], axis=1).reshape(-1)
    return np.repeat(np.arange(2 * spans) % 2 == 1, sizes)


def _counts(length: int, noise_density: float, mean_span: float) -> tuple[int, int]:
    """Returns how many tokens are cut out, and in how many spans."""
    if not 0.0 < noise_density < 1.0 or mean_span < 1.0:
        raise DataError(
            "the part cut out must lie between 0 and 1, and the mean span be at least "
            f"1; they are {noise_density} and {mean_span}."
        )
    noise = min(max(round(length * noise_density), 1), length - 1)
    return noise, max(min(round(noise / mean_span), length - noise), 1)


def _parts(total: int, parts: int, draw: np.random.Generator) -> np.ndarray:
    """Returns sizes of at least 1 that sum to `total`; every such division is as
    likely.
    """
    cuts = np.sort(draw.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=total)


def _with_sentinels(
    tokens: np.ndarray, gone: np.ndarray, vocabulary: Vocabulary
) -> np.ndarray:
    """Returns the tokens with one sentinel in the place of each span that is gone, and
    an end.
    """
    first = gone & ~np.concatenate([[False], gone[:-1]])
    number = int(first.sum())
    if number:
        vocabulary.sentinel(number - 1)  # refuses if there are too few
    marks = vocabulary.size - np.cumsum(first)
    kept = np.where(first, marks, tokens)[~gone | first]
    return np.append(kept, vocabulary.eos_id).astype(np.int32)
