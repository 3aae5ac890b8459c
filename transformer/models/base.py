"""What all models of the package share: a loss of a batch, and numbers that tell how
good it is.

    loss, reports = model.loss_and_reports(batch, training=True)
    sums = model.measure(batch)        # {"nats": ..., "correct": ..., "tokens": ...}

A batch is a dict of arrays; `features` says how each is called and what its dimensions
are, so a training step is `mtf.function(step, mesh=model.mesh, batch=model.features)`.
"""

from __future__ import annotations

from collections.abc import Mapping

import meshtf as mtf
from transformer.experts.moe_layer import Report
from transformer.models.architecture import Architecture

Batch = Mapping[str, mtf.Tensor]


class Model(mtf.Module):
    """A model that learns from batches.

    Args:
      mesh: where the variables lie.
      architecture: its sizes and kinds; None: what gin says of `Architecture`.
      name: the first part of the path of its variables.
    """

    features: Mapping[
        str, str
    ] = {}  # by name, the dimensions of all that a batch may have

    def __init__(
        self, mesh: mtf.Mesh, architecture: Architecture | None, name: str
    ) -> None:
        super().__init__(name)
        self.mesh, self.architecture = mesh, architecture or Architecture()

    def loss(self, batch: Batch, training: bool = False) -> mtf.Tensor:
        """Returns a scalar; in training with all that is added to be learned from."""
        return self.loss_and_reports(batch, training)[0]

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the loss, and what mixtures of experts report, by the names of their
        blocks.
        """
        raise NotImplementedError

    def measure(self, batch: Batch) -> dict[str, mtf.Tensor]:
        """Returns sums over a batch that tell how good the model is; each a float32
        scalar.
        """
        raise NotImplementedError


def with_reports(
    loss: mtf.Tensor, reports: Mapping[str, Report], training: bool
) -> mtf.Tensor:
    """Returns a loss with what mixtures of experts ask for in training."""
    if not training or not reports:
        return loss
    return mtf.add_n([loss, *(report.loss for report in reports.values())])


def sums(
    logits: mtf.Tensor,
    targets: mtf.Tensor,
    weights: mtf.Tensor | None,
    dim: str = "vocab",
) -> dict[str, mtf.Tensor]:
    """Returns nats, right guesses and number of targets, weighted: float32 scalars."""
    if weights is None:
        weights = mtf.ones(targets.mesh, targets.shape)
    right = mtf.cast(mtf.equal(mtf.argmax(logits, dim), targets), "float32")
    return {
        "nats": mtf.reduce_sum(mtf.cross_entropy(logits, targets, dim) * weights),
        "correct": mtf.reduce_sum(right * weights),
        "tokens": mtf.reduce_sum(mtf.broadcast(weights, targets.shape)),
    }


def row_weights(batch: Batch) -> mtf.Tensor | None:
    """Returns what each target counts: its weight, and 0 in rows that fill up the last
    batch.
    """
    weights, counts = batch.get("weights"), batch.get("counts")
    if weights is None or counts is None:
        return counts if weights is None else weights
    return weights * counts
