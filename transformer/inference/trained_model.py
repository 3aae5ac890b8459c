"""A trained model, with what generation of texts needs besides: its data and vocabulary."""

from __future__ import annotations

from typing import NamedTuple

from transformer.data import Data
from transformer.models.base import Model


class TrainedModel(NamedTuple):
    """A trained model; `transformer.training.load_trained` reads one from a run.

    Attributes:
      model: the model, with variables from a checkpoint.
      data: the data it was trained on.
      step: the count of steps done when the checkpoint was written.
    """

    model: Model
    data: Data
    step: int
