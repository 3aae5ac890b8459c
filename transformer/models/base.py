"""The interface of all models of the package: the loss of a batch, and sums for metrics.

    loss, reports = model.loss_and_reports(batch, training=True)
    sums = model.measure(batch)        # {"nats": ..., "correct": ..., "tokens": ...}

A batch is a dict of arrays; `features` has the dimensions of each by name, so a training
step is `mtf.function(step, mesh=model.mesh, batch=model.features)`.
"""

from __future__ import annotations

from collections.abc import Mapping

import meshtf as mtf
from transformer.experts.moe_layer import Report
from transformer.models.architecture import Architecture

Batch = Mapping[str, mtf.Tensor]


class Model(mtf.Module):
    """A model that is trained on batches.

    Args:
      mesh: the mesh of the variables.
      architecture: its sizes and kinds; None: gin's `Architecture`.
      name: the first component of the path of its variables.
    """

    # The dimensions of each array that a batch may have, by name.
    features: Mapping[str, str] = {}

    def __init__(
        self, mesh: mtf.Mesh, architecture: Architecture | None, name: str
    ) -> None:
        super().__init__(name)
        self.mesh = mesh
        self.architecture = architecture or Architecture()

    def loss(self, batch: Batch, training: bool = False) -> mtf.Tensor:
        """Returns the loss, a scalar; in training with auxiliary losses."""
        loss, _ = self.loss_and_reports(batch, training)
        return loss

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the loss, and the reports of mixtures of experts by block name."""
        raise NotImplementedError

    def measure(self, batch: Batch) -> dict[str, mtf.Tensor]:
        """Returns sums over a batch from which metrics are computed, by name; float32
        scalars.
        """
        raise NotImplementedError


def with_reports(
    loss: mtf.Tensor, reports: Mapping[str, Report], training: bool
) -> mtf.Tensor:
    """Returns the loss, in training plus the losses of mixtures of experts."""
    if not training or not reports:
        return loss
    return mtf.add_n([loss, *(report.loss for report in reports.values())])


def sums(
    logits: mtf.Tensor,
    targets: mtf.Tensor,
    weights: mtf.Tensor | None,
    dim: str = "vocab",
) -> dict[str, mtf.Tensor]:
    """Returns weighted sums of nats, of correct predictions and of targets: float32
    scalars.

    Args:
      logits: [..., dim].
      targets: integers [...].
      weights: of targets, [...] or a subset of these dimensions; None: 1.
      dim: the name of the classes.
    """
    if weights is None:
        weights = mtf.ones(targets.mesh, targets.shape)
    predictions = mtf.argmax(logits, dim)
    is_correct = mtf.cast(mtf.equal(predictions, targets), "float32")
    nats = mtf.cross_entropy(logits, targets, dim)
    return {
        "nats": mtf.reduce_sum(nats * weights),
        "correct": mtf.reduce_sum(is_correct * weights),
        "tokens": mtf.reduce_sum(mtf.broadcast(weights, targets.shape)),
    }


def target_weights(batch: Batch) -> mtf.Tensor | None:
    """Returns the weight of each target, [batch, length] or [batch]; it is 0 in examples
    that pad the last batch. None: all weights are 1.

    A batch has `weights` of targets, `counts` of examples (0 for padding), both, or none.
    """
    weights = batch.get("weights")
    counts = batch.get("counts")
    if weights is None:
        return counts
    if counts is None:
        return weights
    return weights * counts
