"""What a model thinks of given texts: the log-probability of each.

    for log_prob, tokens in Scorer(model, vocabulary, length=128)(["def f(x):", "def f(x)):"]):
      print(-log_prob / tokens)

A language model is asked for each token after those before it; the first is given. An
encoder-decoder is asked for targets, given inputs: pairs (input, target).
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
    """What a model thinks of a text."""

    log_prob: float  # in nats: the sum over tokens
    tokens: int  # that were asked for


class Scorer:
    """Scores texts, some at a time, by one program.

    Args:
      model: a language model or an encoder-decoder.
      vocabulary: text to ids.
      length: the most tokens of a text, and of an input.
      batch_size: texts at a time.
      ended: whether the end of a text is asked for, too.
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
        self.pairs, ask = (
            isinstance(model, EncoderDecoder),
            cast(Callable[..., mtf.Tensor], model),
        )

        @mtf.function(mesh=model.mesh, batch=model.features)
        def log_probs(batch: Batch) -> mtf.Tensor:
            given = [batch["inputs"]] if self.pairs else []
            logits = ask(*given, batch["tokens"])
            nats = (
                mtf.cross_entropy(logits, batch["targets"], "vocab") * batch["weights"]
            )
            return -mtf.reduce_sum(nats, LENGTH)

        self._log_probs = log_probs

    def __call__(self, texts: Sequence[Text]) -> Iterator[Score]:
        """Gives a score for each text, in their order.

        Raises:
          DataError: a text is too long, or has nothing to be asked for.
        """
        for first in range(0, len(texts), self.batch_size):
            rows = [
                self._row(number, text)
                for number, text in enumerate(
                    texts[first : first + self.batch_size], first + 1
                )
            ]
            found = self._log_probs(_stacked(rows, self.batch_size)).numpy()
            for row, log_prob in zip(rows, found):
                yield Score(float(log_prob), int(row["weights"].sum()))

    def _row(self, number: int, text: Text) -> dict[str, np.ndarray]:
        given, asked = text if isinstance(text, tuple) else ("", text)
        ids = self.vocabulary.encode(asked)
        if self.ended or self.pairs:
            ids = np.append(ids, self.vocabulary.eos_id)
        row = {}
        if self.pairs:
            row["inputs"] = self._filled(
                number, np.append(self.vocabulary.encode(given), self.vocabulary.eos_id)
            )
            before = np.append(0, ids[:-1])
        else:
            before, ids = ids[:-1], ids[1:]
        if not len(ids):
            raise DataError(
                f"text {number} is too short: a language model is told its first "
                "token, and asked for those after it."
            )
        return row | {
            "tokens": self._filled(number, before),
            "targets": self._filled(number, ids),
            "weights": self._filled(number, np.ones(len(ids), np.float32)),
        }

    def _filled(self, number: int, ids: np.ndarray) -> np.ndarray:
        if len(ids) > self.length:
            raise DataError(
                f"text {number} has {len(ids):,} tokens, and there is room for "
                f"{self.length:,}.\n  Give it more: --length={len(ids)}."
            )
        kind = np.float32 if ids.dtype == np.float32 else np.int32
        return np.pad(ids, (0, self.length - len(ids))).astype(kind)


def _stacked(
    rows: Sequence[dict[str, np.ndarray]], batch_size: int
) -> dict[str, np.ndarray]:
    """Returns rows one above another, filled up with rows of zeros."""
    return {
        name: np.pad(
            np.stack([row[name] for row in rows]), ((0, batch_size - len(rows)), (0, 0))
        )
        for name in rows[0]
    }
