"""BERT's encoder with less around it than in `Bert`, or with a number to predict.

    TextEncoder(mesh, architecture)           # the encoder alone
    MaskedBert(mesh, architecture)            # masked tokens only, without a pooler
    Regressor(mesh, architecture)             # a number for a text or a pair of texts

The encoder's variables have the same names as in the models of `bert`.
"""

from __future__ import annotations

import gin

import meshtf as mtf
from transformer.experts.moe_layer import Report
from transformer.models.architecture import Architecture
from transformer.models.base import Batch, add_auxiliary_losses
from transformer.models.bert import Bert, BertModel, Classifier


@gin.configurable
class TextEncoder(BertModel):
    """BERT's encoder alone: an output for each token, and one for each text. It has no loss.

    Args:
      mesh: the mesh of the variables.
      architecture: sizes and kinds of layers; None: `bert_architecture()`, as gin
        configures it.
      has_pooler: whether the encoder has a pooler.
    """

    features = {"tokens": "batch; length", "token_types": "batch; length"}

    def __init__(
        self,
        mesh: mtf.Mesh,
        architecture: Architecture | None = None,
        has_pooler: bool = True,
    ) -> None:
        super().__init__(mesh, architecture, name="encoder", has_pooler=has_pooler)

    def __call__(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, mtf.Tensor | None, dict[str, Report]]:
        """Returns the output of each token [batch, length, d_model], that of the pooler
        [batch, d_pooled] (None without one), and the reports of mixtures of experts by block
        name, for the batch's `tokens` and `token_types` [batch, length].
        """
        return self.encode(batch, training)

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Raises ArgumentError: an encoder alone predicts nothing."""
        raise mtf.ArgumentError(
            "TextEncoder predicts nothing, so it has no loss.\n  Train a Classifier, "
            "MaskedBert or another model of BERT from its checkpoint, which has the variables "
            "of the encoder."
        )


@gin.configurable
class MaskedBert(Bert):
    """BERT that predicts masked tokens, and has neither a pooler nor next sentences.

    Args:
      mesh: the mesh of the variables.
      architecture: sizes and kinds of layers; None: `bert_architecture()`, as gin
        configures it.
    """

    has_next_sentence = False
    features = {
        name: dims
        for name, dims in Bert.features.items()
        if name != "next_sentence_labels"
    }


@gin.configurable
class Regressor(Classifier):
    """Predicts a number for each text, or pair of texts, such as how similar two texts are.

    Args:
      mesh: the mesh of the variables.
      architecture: sizes and kinds of layers; None: `bert_architecture()`, as gin
        configures it.
    """

    # `scores` is the number of each example.
    features = {
        "tokens": "batch; length",
        "token_types": "batch; length",
        "scores": "batch",
        "counts": "batch",
    }

    def __init__(
        self, mesh: mtf.Mesh, architecture: Architecture | None = None
    ) -> None:
        super().__init__(mesh, architecture, labels=1)

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the mean squared error of the numbers for the batch's `scores` [batch], in
        training plus auxiliary losses, and the reports of mixtures of experts by block name.
        """
        errors, counts, reports = self._squared_errors(batch, training)
        loss = mtf.layers.weighted_mean(errors, counts)
        return add_auxiliary_losses(loss, reports, training), reports

    def measure(self, batch: Batch) -> dict[str, mtf.Tensor]:
        """Returns sums over texts: "squared_error", and "tokens", the count of texts."""
        errors, counts, _ = self._squared_errors(batch, training=False)
        return {
            "squared_error": mtf.reduce_sum(errors * counts),
            "tokens": mtf.reduce_sum(counts),
        }

    def _squared_errors(
        self, batch: Batch, training: bool
    ) -> tuple[mtf.Tensor, mtf.Tensor, dict[str, Report]]:
        """Returns squared errors [batch], 1 for each text that counts [batch], and reports."""
        outputs, reports = self(batch, training)
        scores = batch["scores"]
        # The sum over one class.
        errors = mtf.square(mtf.reduce_sum(outputs, "classes") - scores)
        counts = batch.get("counts")
        if counts is None:
            counts = mtf.ones(scores.mesh, scores.shape)
        return errors, mtf.cast(counts, "float32"), reports
