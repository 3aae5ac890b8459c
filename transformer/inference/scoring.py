"""Scores of texts: the log-probabilities that a model gives them.

    scorer = Scorer(model, vocabulary, length=128)
    for score in scorer(["def f(x):", "def f(x)):"]):
      print(-score.log_prob / score.num_tokens)

A language model predicts each token from the tokens before it, so the first token is not
scored. An encoder-decoder predicts a target from an input: a text is a pair (input,
target).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np

import meshtf as mtf
from transformer.data import DataError, Vocabulary
from transformer.inference.padded_lengths import round_up_batch
from transformer.models.base import Batch, Model
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.token_info import LENGTH

Text = str | tuple[str, str]  # a text, or the input and target of an encoder-decoder


class Score(NamedTuple):
    """The score of a text.

    Attributes:
      log_prob: the sum of ln p over the scored tokens.
      num_tokens: the count of scored tokens.
    """

    log_prob: float
    num_tokens: int


class Scorer:
    """Scores texts in batches of one size, so that one program is traced.

    Args:
      model: a language model or an encoder-decoder.
      vocabulary: encodes texts.
      length: the maximum count of tokens of a text; for an encoder-decoder, of an input and
        of a target.
      batch_size: the count of texts of a batch.
      score_eos: whether `eos_id` at the end of a text is scored, too. An encoder-decoder
        always scores it.
    """

    def __init__(
        self,
        model: Model,
        vocabulary: Vocabulary,
        length: int,
        batch_size: int = 8,
        score_eos: bool = False,
    ) -> None:
        self.vocabulary = vocabulary
        self.length = length
        self.batch_size = round_up_batch(batch_size, model.mesh)
        self.has_encoder = isinstance(model, EncoderDecoder)
        self.score_eos = score_eos or self.has_encoder

        @mtf.function(mesh=model.mesh, batch=model.features)
        def log_probs(batch: Batch) -> mtf.Tensor:
            """Returns the log-probability of each text, [batch]."""
            logits = _logits(model, batch)
            nats = mtf.cross_entropy(logits, batch["targets"], "vocab")
            return -mtf.reduce_sum(nats * batch["weights"], LENGTH)

        self._log_probs = log_probs

    def __call__(self, texts: Sequence[Text]) -> Iterator[Score]:
        """Yields the score of each text, in order.

        Raises:
          DataError: a text is too long, or has no token to score.
        """
        for start in range(0, len(texts), self.batch_size):
            batch_texts = texts[start : start + self.batch_size]
            examples = [
                self._example(index, text)
                for index, text in enumerate(batch_texts, start)
            ]
            log_probs = self._log_probs(_stack(examples, self.batch_size)).numpy()
            for example, log_prob in zip(examples, log_probs):
                yield Score(float(log_prob), int(example["weights"].sum()))

    def _example(self, index: int, text: Text) -> dict[str, np.ndarray]:
        """Returns the features of a text, each [length].

        Args:
          index: the index of the text, from 0, for messages.
          text: the text, or the input and the target of an encoder-decoder.

        Raises:
          DataError: the text is too long, or has no token to score.
        """
        # A text of a language model is a target without an input.
        source, target = text if isinstance(text, tuple) else ("", text)
        target_ids = self.vocabulary.encode(target)
        if self.score_eos:
            target_ids = np.append(target_ids, self.vocabulary.eos_id)
        features = {}
        if self.has_encoder:
            source_ids = self.vocabulary.encode(source)
            features["inputs"] = np.append(source_ids, self.vocabulary.eos_id)
            # The decoder's input: the target, shifted right by one.
            features["tokens"] = np.append(0, target_ids[:-1])
            features["targets"] = target_ids
        else:
            features["tokens"] = target_ids[:-1]
            features["targets"] = target_ids[1:]
        num_tokens = len(features["targets"])
        if not num_tokens:
            raise DataError(
                f"text {index + 1} is too short: a language model scores tokens after "
                "the initial one, so it must have at least two."
            )
        features["weights"] = np.ones(num_tokens, np.float32)
        return {name: self._pad(index, x) for name, x in features.items()}

    def _pad(self, index: int, x: np.ndarray) -> np.ndarray:
        """Returns a feature padded with zeros, [length].

        Raises:
          DataError: the feature is longer.
        """
        if len(x) > self.length:
            raise DataError(
                f"text {index + 1} has {len(x):,} tokens, more than "
                f"length={self.length:,}.\n  Allow longer texts: --length={len(x)}."
            )
        dtype = np.float32 if x.dtype == np.float32 else np.int32
        return np.pad(x, (0, self.length - len(x))).astype(dtype)


def _logits(model: Model, batch: Batch) -> mtf.Tensor:
    """Returns logits [batch, length, vocab]. Mixtures of experts are told what is padding, so
    that a score does not depend on how much of it there is.
    """
    if isinstance(model, EncoderDecoder):
        logits, _ = model.logits_and_reports(batch)
        return logits
    segments = None
    if model.architecture.moe_every:
        segments = mtf.cast(batch["weights"] > 0.0, "int32")
    # The base class `Model` does not declare the arguments of `__call__`.
    return cast(Callable[..., mtf.Tensor], model)(batch["tokens"], segments=segments)


def _stack(
    examples: Sequence[dict[str, np.ndarray]], batch_size: int
) -> dict[str, np.ndarray]:
    """Returns a batch, each feature as [batch_size, length], with zeros after the last
    example.
    """
    # Before and after each dimension: only the end of the batch is padded.
    padding = ((0, batch_size - len(examples)), (0, 0))
    return {
        name: np.pad(np.stack([example[name] for example in examples]), padding)
        for name in examples[0]
    }
