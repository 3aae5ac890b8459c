"""The interface of all models: the loss of a batch, and sums from which metrics come.

    loss, reports = model.loss_and_reports(batch, training=True)
    sums = model.measure(batch)        # {"nats": ..., "correct": ..., "tokens": ...}

A batch is a dict of arrays. `features` names the dimensions of each array, so a training
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
      architecture: sizes and kinds of layers; None: gin's `Architecture`.
      name: the first component of the paths of the variables.
    """

    # Name of each array that a batch may have -> its dimensions, such as "batch; length".
    features: Mapping[str, str] = {}

    def __init__(
        self, mesh: mtf.Mesh, architecture: Architecture | None, name: str
    ) -> None:
        super().__init__(name)
        self.mesh = mesh
        self.architecture = architecture or Architecture()

    def loss(self, batch: Batch, training: bool = False) -> mtf.Tensor:
        """Returns the loss of a batch, a scalar; in training, with auxiliary losses."""
        loss, _ = self.loss_and_reports(batch, training)
        return loss

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the loss, and by name of the block the report of its mixture of experts:
        the auxiliary losses and statistics of the router.
        """
        raise NotImplementedError

    def measure(self, batch: Batch) -> dict[str, mtf.Tensor]:
        """Returns sums over a batch, such as those of `metric_sums`: float32 scalars."""
        raise NotImplementedError


def add_auxiliary_losses(
    loss: mtf.Tensor, reports: Mapping[str, Report], training: bool
) -> mtf.Tensor:
    """Returns the loss; in training, plus the auxiliary losses of mixtures of experts."""
    if not training or not reports:
        return loss
    return mtf.add_n([loss, *(report.loss for report in reports.values())])


def metric_sums(
    logits: mtf.Tensor,
    targets: mtf.Tensor,
    weights: mtf.Tensor | None,
    dim: str = "vocab",
) -> dict[str, mtf.Tensor]:
    """Returns sums over all targets, float32 scalars: "nats", of the cross entropy;
    "correct", of correct predictions; "tokens", of the weights.

    Args:
      logits: [..., dim].
      targets: integers [...].
      weights: the weight of each target, [...] or a subset of these dimensions; None: 1.
      dim: the name of the dimension of classes.
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
    """Returns the weight of each target, [batch, length] or [batch]; None: all are 1.

    A batch may have "weights", for each target, and "counts", for each example: how many
    examples of the data it stands for, which is 0 if it only fills up the last batch.
    """
    weights = batch.get("weights")
    counts = batch.get("counts")
    if weights is None:
        return counts
    if counts is None:
        return weights
    return weights * counts
