"""The interface of all models: the loss of a batch, and the sums that metrics need.

    loss, reports = model.loss_and_reports(batch, training=True)
    sums = model.measure(batch)        # {"nats": ..., "correct": ..., "tokens": ...}

A batch is a dict of tensors, such as "tokens" and "targets". `features` names the
dimensions of each, so a training step is
`mtf.function(step, mesh=model.mesh, batch=model.features)`.
"""

from __future__ import annotations

from collections.abc import Mapping

import meshtf as mtf
from transformer.experts.moe_layer import Report
from transformer.models.architecture import Architecture

Batch = Mapping[str, mtf.Tensor]


class Model(mtf.Module):
    """The base class of models that are trained on batches.

    Args:
      mesh: the mesh of the variables.
      architecture: sizes and kinds of layers; None: `Architecture()`, as gin configures
        it.
      name: the first component of the paths of the variables.
    """

    # Name of each tensor that a batch may have -> its dimensions, such as "batch; length".
    features: Mapping[str, str] = {}
    # The files, but for tensors, of the folder that the model was converted from, by name: see
    # `transformer.training.weights.source_files`.
    source_files: Mapping[str, bytes] = {}

    def __init__(
        self, mesh: mtf.Mesh, architecture: Architecture | None, name: str
    ) -> None:
        super().__init__(name)
        self.mesh = mesh
        self.architecture = architecture or Architecture()

    def loss(self, batch: Batch, training: bool = False) -> mtf.Tensor:
        """Returns the loss of a batch, a scalar; in training, it includes the auxiliary
        losses of mixtures of experts.
        """
        loss, _ = self.loss_and_reports(batch, training)
        return loss

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the loss, and a dict of block name -> report of the block's mixture of
        experts: the auxiliary losses and statistics of its router.
        """
        raise NotImplementedError

    def measure(self, batch: Batch) -> dict[str, mtf.Tensor]:
        """Returns sums over a batch, float32 scalars by name: see `metric_sums`. An evaluation
        adds them over all batches, and divides by the count of tokens.
        """
        raise NotImplementedError


def add_auxiliary_losses(
    loss: mtf.Tensor, reports: Mapping[str, Report], training: bool
) -> mtf.Tensor:
    """Returns the loss; in training, plus the auxiliary losses of mixtures of experts.

    Args:
      loss: the loss of a batch, a scalar.
      reports: the reports of mixtures of experts by block name, with their losses.
      training: whether the losses are added.
    """
    if not training or not reports:
        return loss
    return mtf.add_n([loss, *(report.loss for report in reports.values())])


def metric_sums(
    logits: mtf.Tensor,
    targets: mtf.Tensor,
    weights: mtf.Tensor | None,
    dim: str = "vocab",
) -> dict[str, mtf.Tensor]:
    """Returns weighted sums over all targets, float32 scalars: "nats", the cross entropy;
    "correct", the count of correct predictions; "tokens", the count of targets.

    Args:
      logits: the logits of each target, [..., dim].
      targets: the correct class of each target, integers [...]; negative ones are ignored.
      weights: the weight of each target, [...] or a subset of these dimensions; None: 1.
      dim: the name of the dimension of classes.
    """
    if weights is None:
        weights = mtf.ones(targets.mesh, targets.shape)
    # Negative targets have weight 0.
    weights = mtf.cast(targets >= 0, "float32") * mtf.cast(weights, "float32")
    predictions = mtf.argmax(logits, dim)
    is_correct = mtf.cast(mtf.equal(predictions, targets), "float32")
    nats = mtf.cross_entropy(logits, targets, dim)
    return {
        "nats": mtf.reduce_sum(nats * weights),
        "correct": mtf.reduce_sum(is_correct * weights),
        "tokens": mtf.reduce_sum(mtf.broadcast(weights, targets.shape)),
    }


def target_weights(batch: Batch, name: str = "weights") -> mtf.Tensor | None:
    """Returns the weight of each target, [batch, length] or [batch]; None: all are 1.

    The weight is the product of two tensors that a batch may have: "weights", one for
    each target, and "counts", one for each example: 1, or 0 if the example only pads the
    last batch.

    Args:
      batch: the batch.
      name: the name of the first tensor.
    """
    weights = batch.get(name)
    counts = batch.get("counts")
    if weights is None:
        return counts
    if counts is None:
        return weights
    return weights * counts
