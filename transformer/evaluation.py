"""Bits per byte on text that the model has not seen.

    evaluation = Evaluation(model, corpus.held_out, length=128, batch=16, windows=256)
    bits = evaluation()
"""

from __future__ import annotations

import math

import gin
import numpy as np

import meshtf as mtf
from transformer import data
from transformer.model import LanguageModel


@gin.configurable
class Evaluation:
  """Scores a model on fixed windows of a text: the mean of -log2 p(byte | those before it).

  Args:
    model: what is scored.
    text: uint8 [bytes].
    length: the bytes of a window.
    batch: the windows that are scored at a time.
    windows: how many there are, evenly spaced over the text; None: as many as cover it.
  """

  def __init__(self, model: LanguageModel, text: np.ndarray, length: int, batch: int,
               windows: int | None = 256) -> None:
    self.windows = data.windows(text, length, windows)
    self.of = len(data.windows(text, length))
    self._batches = data.evaluation_batches(self.windows, batch)

    @mtf.function(mesh=model.mesh, tokens="batch;length", targets="batch;length", counts="batch")
    def nats(tokens: mtf.Tensor, targets: mtf.Tensor, counts: mtf.Tensor) -> mtf.Tensor:
      return model.measure({"tokens": tokens, "targets": targets, "counts": counts})["nats"]

    self._nats = nats

  def __call__(self) -> float:
    """Returns bits per byte of the model as it is now."""
    total = sum(float(self._nats(*batch)) for batch in self._batches)
    return total / math.log(2.0) / self.windows[:, 1:].size
