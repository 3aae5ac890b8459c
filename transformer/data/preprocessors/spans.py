"""Span corruption: the inputs are a text in which sentinels replace random spans, and the
targets are these spans (Raffel et al. 2019).

    inputs    Thank you <X> me to your party <Y> week.
    targets   <X> for inviting <Y> last

The counts of corrupted tokens and of spans depend only on the length of the text. So all
texts of one length have inputs of one length, and targets of one length: `span_lengths`
computes them.

>>> span_lengths(512)    # a text of 568 tokens becomes inputs of 512 and targets of 114
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
      example: an example with tokens.
      seed: the seed of the positions of the spans.
      vocabulary: the vocabulary of the tokens, which has sentinels.
      noise_density: the fraction of tokens that is corrupted.
      mean_span: the mean count of tokens of a span.
      field: the field of the example that has the tokens.
    """
    tokens = np.asarray(example[field])
    is_noise = noise_mask(
        len(tokens), seed, noise_density=noise_density, mean_span=mean_span
    )
    other_fields = {
        name: value for name, value in example.items() if name not in ("inputs", field)
    }
    return {
        **other_fields,
        "inputs": _insert_sentinels(tokens, is_noise, vocabulary),
        "targets": _insert_sentinels(tokens, ~is_noise, vocabulary),
    }


def span_lengths(
    inputs: int, noise_density: float = 0.15, mean_span: float = 3.0
) -> tuple[int, int]:
    """Returns the maximum length of a text whose inputs have at most `inputs` tokens, and
    the length of the targets of this text. Inputs and targets include `eos_id`.

    Args:
      inputs: the maximum count of tokens of the inputs.
      noise_density: the fraction of tokens that is corrupted.
      mean_span: the mean count of tokens of a span.

    Raises:
      DataError: the inputs of a text of two tokens are longer.
    """

    def input_length(length: int) -> int:
        """Returns the length of the inputs of a text of `length` tokens: its tokens outside
        of spans, a sentinel for each span, and `eos_id`.
        """
        num_noise, num_spans = _noise_counts(length, noise_density, mean_span)
        return length - num_noise + num_spans + 1

    min_length = 2  # one token in a span, and one outside
    if inputs < input_length(min_length):
        raise DataError(
            f"{inputs} inputs are too few: two tokens, one of them in a span, make "
            f"{input_length(min_length)}."
        )
    length = min_length
    while input_length(length + 1) <= inputs:
        length += 1
    num_noise, num_spans = _noise_counts(length, noise_density, mean_span)
    target_length = num_noise + num_spans + 1  # spans, a sentinel for each, `eos_id`
    return length, target_length


def noise_mask(
    length: int, seed: Seed, noise_density: float = 0.15, mean_span: float = 3.0
) -> np.ndarray:
    """Returns whether each token is corrupted: bool [length]; the first token never is.

    Args:
      length: the count of tokens of the text.
      seed: the seed of the positions of the spans.
      noise_density: the fraction of tokens that is corrupted.
      mean_span: the mean count of tokens of a span.
    """
    if length < 2:
        return np.zeros(length, bool)
    rng = generator(seed)
    num_noise, num_spans = _noise_counts(length, noise_density, mean_span)
    text_sizes = _random_sizes(length - num_noise, count=num_spans, rng=rng)
    noise_sizes = _random_sizes(num_noise, count=num_spans, rng=rng)
    # Sections of the text and corrupted spans alternate: text, span, text, span, ...
    sizes = np.stack([text_sizes, noise_sizes], axis=1).reshape(-1)
    is_span = np.arange(2 * num_spans) % 2 == 1
    return np.repeat(is_span, sizes)


def _noise_counts(
    length: int, noise_density: float, mean_span: float
) -> tuple[int, int]:
    """Returns the count of corrupted tokens of a text of `length` tokens, and the count of
    corrupted spans.

    Raises:
      DataError: a setting is out of its range.
    """
    if not 0.0 < noise_density < 1.0 or mean_span < 1.0:
        raise DataError(
            "the noise density must lie between 0 and 1, and the mean span be at least "
            f"1; they are {noise_density} and {mean_span}."
        )
    # At least one token is corrupted, and one is not; each span follows a token that is not.
    num_noise = min(max(round(length * noise_density), 1), length - 1)
    num_spans = max(min(round(num_noise / mean_span), length - num_noise), 1)
    return num_noise, num_spans


def _random_sizes(total: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Returns `count` random sizes of at least 1 that sum to `total`; all such sequences
    are equally likely.
    """
    # `count` - 1 distinct boundaries, from 1 to `total` - 1, split 0 .. total.
    unsorted_boundaries = rng.choice(total - 1, count - 1, replace=False) + 1
    boundaries = np.sort(unsorted_boundaries)
    return np.diff(boundaries, prepend=0, append=total)


def _insert_sentinels(
    tokens: np.ndarray, is_replaced: np.ndarray, vocabulary: Vocabulary
) -> np.ndarray:
    """Returns the tokens with a sentinel in place of each replaced span, then `eos_id`: int32.

    Args:
      tokens: the tokens of the text, int32 [length].
      is_replaced: whether each token is in a span that is replaced, bool [length].
      vocabulary: the vocabulary of the tokens.
    """
    is_start = is_replaced & ~np.concatenate([[False], is_replaced[:-1]])
    num_spans = int(is_start.sum())
    if num_spans:
        # A check: this raises an error if the vocabulary has too few sentinels.
        vocabulary.sentinel(num_spans - 1)
    # The last ids are sentinels: at the start of span k, counted from 1, this is size - k.
    sentinels = vocabulary.size - np.cumsum(is_start)
    # The sentinel at the start of each span; the other tokens of spans are left out.
    is_output = ~is_replaced | is_start
    ids = np.where(is_start, sentinels, tokens)[is_output]
    return np.append(ids, vocabulary.eos_id).astype(np.int32)
