"""How good a model is on examples that it has not seen.

    evaluation = Evaluation(model, data, batch_size=16, num_examples=256)
    evaluation()                 # {"loss": 1.54, "accuracy": 0.61, "bits_per_byte": 2.22}

A loss is the mean of -ln p of what is to be told, `perplexity` its exponential;
`accuracy` is the share of first guesses that are right.
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

_PERPLEXITY_UP_TO = 20.0  # nats; beyond it says nothing


@gin.configurable
class Evaluation:
    """Measures a model on held-out examples.

    Args:
      model: what is measured.
      data: whose held-out examples are taken.
      batch_size: the examples that are measured at a time.
      num_examples: how many of them to take, evenly spaced; None: all.
    """

    def __init__(
        self, model: Model, data: Data, batch_size: int, num_examples: int | None = 256
    ) -> None:
        self.num_examples = num_examples
        self.unit = "bits_per_byte" if isinstance(data.vocabulary, RawBytes) else None
        self._batches = data.held_out(batch_size, num_examples)

        @mtf.function(mesh=model.mesh, batch=model.features)
        def measure(batch: Batch) -> dict[str, mtf.Tensor]:
            return model.measure(batch)

        self._measure = measure

    def __call__(self) -> dict[str, float]:
        """Returns named numbers that tell how good the model is now."""
        total: Counter[str] = Counter()
        for batch in self._batches:
            total.update(
                {name: float(x) for name, x in self._measure(dict(batch)).items()}
            )
        return self._rates(total)

    def _rates(self, sums: Mapping[str, float]) -> dict[str, float]:
        loss = sums["nats"] / max(sums["tokens"], 1.0)
        found: dict[str, Any] = {"loss": loss}
        if self.unit:
            found[self.unit] = loss / math.log(2.0)
        elif loss < _PERPLEXITY_UP_TO:
            found["perplexity"] = math.exp(loss)
        found["accuracy"] = sums["correct"] / max(sums["tokens"], 1.0)
        if "next_sentences" in sums:
            found["next_sentence_accuracy"] = sums["next_sentence_correct"] / max(
                sums["next_sentences"], 1.0
            )
        return found
