"""Scoring: the log-probability of given texts under a model.

    for log_prob, tokens in Scorer(model, vocabulary, length=128)(["def f(x):", "def f(x)):"]):
      print(-log_prob / tokens)

A language model predicts each token from those before it, except for the first. An
encoder-decoder predicts targets from inputs: texts are pairs (input, target).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np

import meshtf as mtf
from transformer.data import DataError, Vocabulary
from transformer.models.attention_mask import LENGTH
from transformer.models.base import Batch, Model
from transformer.models.encoder_decoder import EncoderDecoder

Text = str | tuple[str, str]


class Score(NamedTuple):
    """The log-probability of a text.

    Attributes:
      log_prob: in nats: the sum over predicted tokens.
      tokens: the count of predicted tokens.
    """

    log_prob: float
    tokens: int


class Scorer:
    """Scores texts in batches, by one program.

    Args:
      model: a language model or an encoder-decoder.
      vocabulary: text to ids.
      length: the maximum count of tokens of a text, and of an input.
      batch_size: how many texts are scored at a time.
      ended: whether the end of a text is predicted, too.
    """

    def __init__(
        self,
        model: Model,
        vocabulary: Vocabulary,
        length: int,
        batch_size: int = 8,
        ended: bool = False,
    ) -> None:
        self.vocabulary = vocabulary
        self.length = length
        self.batch_size = batch_size
        self.ended = ended
        self.pairs = isinstance(model, EncoderDecoder)
        predict_logits = cast(Callable[..., mtf.Tensor], model)

        @mtf.function(mesh=model.mesh, batch=model.features)
        def log_probs(batch: Batch) -> mtf.Tensor:
            if self.pairs:
                logits = predict_logits(batch["inputs"], batch["tokens"])
            else:
                logits = predict_logits(batch["tokens"])
            nats = mtf.cross_entropy(logits, batch["targets"], "vocab")
            return -mtf.reduce_sum(nats * batch["weights"], LENGTH)

        self._log_probs = log_probs

    def __call__(self, texts: Sequence[Text]) -> Iterator[Score]:
        """Yields the score of each text, in their order.

        Raises:
          DataError: a text is too long, or has no token to predict.
        """
        for start in range(0, len(texts), self.batch_size):
            batch = texts[start : start + self.batch_size]
            examples = [
                self._example(index, text) for index, text in enumerate(batch, start)
            ]
            features = _stack(examples, self.batch_size)
            log_probs = self._log_probs(features).numpy()
            for example, log_prob in zip(examples, log_probs):
                num_tokens = int(example["weights"].sum())
                yield Score(float(log_prob), num_tokens)

    def _example(self, index: int, text: Text) -> dict[str, np.ndarray]:
        """Returns the features of a text, each [length]."""
        input_text, target_text = text if isinstance(text, tuple) else ("", text)
        targets = self.vocabulary.encode(target_text)
        if self.ended or self.pairs:
            targets = np.append(targets, self.vocabulary.end)
        example = {}
        if self.pairs:
            inputs = np.append(self.vocabulary.encode(input_text), self.vocabulary.end)
            example["inputs"] = self._pad(index, inputs)
            tokens = np.append(0, targets[:-1])
        else:
            tokens = targets[:-1]
            targets = targets[1:]
        if not len(targets):
            raise DataError(
                f"text {index + 1} is too short: a language model predicts the tokens "
                "after the first, and it has none."
            )
        example["tokens"] = self._pad(index, tokens)
        example["targets"] = self._pad(index, targets)
        weights = np.ones(len(targets), np.float32)
        example["weights"] = self._pad(index, weights)
        return example

    def _pad(self, index: int, values: np.ndarray) -> np.ndarray:
        """Returns a feature padded with 0 to [length], as float32 or int32. Raises
        DataError if it is longer.
        """
        count = len(values)
        if count > self.length:
            raise DataError(
                f"text {index + 1} has {count:,} tokens, and there is room for "
                f"{self.length:,}.\n  Give it more: --length={count}."
            )
        dtype = np.float32 if values.dtype == np.float32 else np.int32
        padding = (0, self.length - count)
        return np.pad(values, padding).astype(dtype)


def _stack(
    examples: Sequence[dict[str, np.ndarray]], batch_size: int
) -> dict[str, np.ndarray]:
    """Returns a batch [batch_size, length] of each feature, padded with examples of
    zeros.
    """
    padding = ((0, batch_size - len(examples)), (0, 0))
    batch = {}
    for name in examples[0]:
        feature = np.stack([example[name] for example in examples])
        batch[name] = np.pad(feature, padding)
    return batch
