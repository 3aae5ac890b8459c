"""Evaluation of a model on held-out examples.

    evaluation = Evaluation(model, data, batch_size=16, num_examples=256)
    evaluation()                 # {"loss": 1.54, "accuracy": 0.61, "bits_per_byte": 2.22}

`loss` is the mean of -ln p over the target tokens, in nats, and `perplexity` its
exponential; `accuracy` is the fraction of targets whose likeliest prediction is right.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import gin

import meshtf as mtf
from transformer.data import Data, RawBytes
from transformer.models.base import Batch, Model

_MAX_PERPLEXITY_LOSS = 20.0  # nats; above it the perplexity is not reported


@gin.configurable
class Evaluation:
    """Measures a model on held-out examples.

    Args:
      model: the model to evaluate.
      data: the data set; its held-out examples are used.
      batch_size: the count of examples of a batch.
      num_examples: the count of held-out examples, evenly spaced; None: all.
    """

    def __init__(
        self, model: Model, data: Data, batch_size: int, num_examples: int | None = 256
    ) -> None:
        self.num_examples = num_examples
        # A token of RawBytes is a byte, so the loss is also reported in bits per byte.
        self._tokens_are_bytes = isinstance(data.vocabulary, RawBytes)
        self._batches = data.held_out(batch_size, num_examples)

        @mtf.function(mesh=model.mesh, batch=model.features)
        def measure(batch: Batch) -> dict[str, mtf.Tensor]:
            """Returns the sums of a batch, as one program for the mesh."""
            return model.measure(batch)

        self._measure = measure

    def __call__(self) -> dict[str, float]:
        """Returns the metrics of the model with its current variables, by name."""
        totals: Counter[str] = Counter()  # its `update` adds values by name
        for batch in self._batches:
            sums = self._measure(dict(batch))
            totals.update({name: float(x) for name, x in sums.items()})
        return self._mean_metrics(totals)

    def _mean_metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Returns metrics per token.

        Args:
          sums: the sums of `Model.measure` over all batches: "nats", "correct", "tokens";
            for BERT also "next_sentence_correct" and "next_sentences".
        """
        num_tokens = sums["tokens"] or 1.0  # the sum of weights, which may be below 1
        loss = sums["nats"] / num_tokens
        metrics: dict[str, Any] = {"loss": loss}
        if self._tokens_are_bytes:
            metrics["bits_per_byte"] = loss / math.log(2.0)
        elif loss < _MAX_PERPLEXITY_LOSS:
            metrics["perplexity"] = math.exp(loss)
        metrics["accuracy"] = sums["correct"] / num_tokens
        if "next_sentences" in sums:
            num_pairs = sums["next_sentences"] or 1.0
            metrics["next_sentence_accuracy"] = (
                sums["next_sentence_correct"] / num_pairs
            )
        return metrics
