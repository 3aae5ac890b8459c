"""BERT: an encoder pretrained on masked tokens and pairs of sentences, and models
fine-tuned from it.

    model = Bert(mesh, bert_architecture(vocab=30522))           # BERT-base
    x, pooled = model.encoder(tokens, token_types)
    loss = model.loss(batch, training=True)         # masked tokens and next sentences

    Classifier(mesh, architecture, labels=2)        # of texts or pairs of texts
    SpanExtractor(mesh, architecture)               # the start and the end of an answer

Here x is [batch, length, d_model], and pooled [batch, d_pooled].

Devlin et al., 2018, arXiv 1810.04805. Tokens whose id is 0 are padding.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import gin

import meshtf as mtf
from transformer.experts.moe_layer import Report
from transformer.models.architecture import Architecture
from transformer.models.attention_mask import LENGTH, TokenInfo
from transformer.models.base import Batch, Model, add_auxiliary_losses, metric_sums
from transformer.models.embeddings import Embeddings, mask_padded_vocab
from transformer.models.stack import Stack

_TOKENS = "batch; length"
_MASKED = "batch; masked"
_POOLED = "d_pooled"
_TRANSFORM = "d_transform"


@gin.configurable
def bert_architecture(**sizes: Any) -> Architecture:
    """Returns the architecture of BERT-base, with other `sizes` where given."""
    base = Architecture(
        vocab=30522,
        d_model=768,
        d_ff=3072,
        heads=12,
        d_kv=64,
        blocks=12,
        activation="gelu_exact",
        dropout=0.1,
        norm="layer",
        norm_place="after",
        epsilon=1e-12,
        use_bias=True,
        positions="learned",
        max_length=512,
        token_types=2,
        tied=True,
        scaled_logits=False,
    )
    return dataclasses.replace(base, **sizes)


class BertEncoder(mtf.Module):
    """Embeddings, blocks whose tokens attend to all of their example, and a pooler of the
    first token.

    Args:
      mesh: the mesh of the variables.
      architecture: sizes and kinds.
      pooled: whether there is a pooler.
    """

    def __init__(
        self, mesh: mtf.Mesh, architecture: Architecture, pooled: bool = True
    ) -> None:
        super().__init__("bert")
        self.architecture = architecture
        a = architecture
        with self.scope():
            self.embeddings = Embeddings(mesh, a)
            self.dropout = mtf.layers.Dropout(a.dropout)
            self.stack = Stack(mesh, a, causal=False, name="encoder")
            self.pooler = (
                mtf.layers.Dense(
                    mesh,
                    a.dim("d_model"),
                    mtf.Dimension(_POOLED, a.d_model),
                    name="pooler",
                )
                if pooled
                else None
            )

    def __call__(
        self,
        tokens: mtf.Tensor,
        token_types: mtf.Tensor | None = None,
        training: bool = False,
    ) -> tuple[mtf.Tensor, Any, dict[str, Report]]:
        """Returns the outputs of all tokens [batch, length, d_model], of the pooler [batch,
        d_pooled] (None without one), and the reports of mixtures of experts.

        Args:
          tokens: integers [batch, length].
          token_types: integers [batch, length]: 0 in the first, 1 in the second text of
            an example; None: all are 0.
          training: whether dropout is applied.
        """
        token_info = TokenInfo.of(tokens, segments=mtf.cast(tokens != 0, "int32"))
        x = self.dropout(
            self.embeddings(tokens, token_info.positions, token_types), training
        )
        x, reports = self.stack(x, token_info, training)
        if self.pooler is None:
            return x, None, reports
        first_token = mtf.gather(x, mtf.zeros(tokens.mesh, "", "int32"), LENGTH)
        return x, mtf.tanh(self.pooler(first_token)), reports


class _BertModel(Model):
    """A model with a BERT encoder, whose variables have the same paths in all models."""

    def __init__(
        self,
        mesh: mtf.Mesh,
        architecture: Architecture | None,
        name: str,
        pooled: bool = True,
    ) -> None:
        if architecture is None:
            architecture = bert_architecture()
        # Before `super().__init__()`, so that their paths do not depend on the model.
        encoder = BertEncoder(mesh, architecture, pooled)
        dropout = mtf.layers.Dropout(architecture.dropout, name="pooled_dropout")
        super().__init__(mesh, architecture, name)
        self.encoder = encoder
        self.dropout = dropout

    def encode(self, batch: Batch, training: bool) -> tuple[mtf.Tensor, Any, Any]:
        """Returns the encoder's results for `tokens` and `token_types`."""
        tokens = batch["tokens"]
        token_types = batch.get("token_types")
        return self.encoder(tokens, token_types, training)


@gin.configurable
class Bert(_BertModel):
    """BERT for pretraining: predicts masked tokens, and whether the second text follows
    the first.

    Args:
      mesh: the mesh of the variables.
      architecture: sizes and kinds; None: gin's `bert_architecture`.
    """

    features = {
        "tokens": _TOKENS,
        "token_types": _TOKENS,
        "masked_positions": _MASKED,
        "masked_ids": _MASKED,
        "masked_weights": _MASKED,
        "next_sentence_labels": "batch",
        "counts": "batch",
    }

    def __init__(
        self, mesh: mtf.Mesh, architecture: Architecture | None = None
    ) -> None:
        super().__init__(mesh, architecture, "pretraining")
        a = self.architecture
        d_model = a.dim("d_model")
        d_transform = mtf.Dimension(_TRANSFORM, a.d_model)
        with self.scope():
            self.transform = mtf.layers.DenseProduct(
                mesh, d_model, d_transform, [a.activation], name="transform"
            )
            self.transform_norm = a.make_norm(mesh, "transform_norm", d_transform)
            self.logits_bias = mtf.Variable(
                mesh,
                [a.dim("vocab")],
                mtf.layers.initializers.zeros,
                name="logits_bias",
            )
            self.next_sentence = mtf.layers.Dense(
                mesh,
                mtf.Dimension(_POOLED, a.d_model),
                mtf.Dimension("classes", 2),
                name="next_sentence",
            )

    def __call__(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, mtf.Tensor, dict[str, Report]]:
        """Returns logits of masked tokens [batch, masked, vocab] and of the next sentence
        [batch, classes], and the reports of mixtures of experts.

        Args:
          batch: int32 `tokens`, `token_types` [batch, length], `masked_positions` [batch,
            masked].
          training: whether dropout is applied.
        """
        x, pooled, reports = self.encode(batch, training)
        masked = mtf.gather(x, batch["masked_positions"], LENGTH)
        return self.predict(masked), self.next_sentence(pooled), reports

    def predict(self, x: mtf.Tensor) -> mtf.Tensor:
        """Returns logits [..., vocab] for outputs of the encoder, [..., d_model]."""
        x = self.transform_norm(self.transform(x))
        logits = self.encoder.embeddings.attend(mtf.rename(x, _TRANSFORM, "d_model"))
        logits = logits + mtf.cast(self.logits_bias.tensor(), logits.dtype)
        return mask_padded_vocab(logits, self.architecture)

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the mean of -ln p over masked tokens, plus that over pairs of texts;
        and the reports of mixtures of experts.

        Args:
          batch: what `__call__` takes, `masked_ids` [batch, masked], optionally their
            weights `masked_weights`, and `next_sentence_labels` [batch]; without these
            labels the loss is that of masked tokens.
          training: whether dropout is applied.
        """
        masked_logits, pair_logits, reports = self(batch, training)
        loss = mtf.layers.softmax_cross_entropy(
            masked_logits,
            batch["masked_ids"],
            "vocab",
            weights=batch.get("masked_weights"),
        )
        if "next_sentence_labels" in batch:
            loss = loss + mtf.layers.softmax_cross_entropy(
                pair_logits, batch["next_sentence_labels"], "classes"
            )
        return add_auxiliary_losses(loss, reports, training), reports

    def measure(self, batch: Batch) -> dict[str, mtf.Tensor]:
        """Returns the sums of nats, of correct predictions and of masked tokens, and the
        sums of correct predictions and of pairs of texts.
        """
        masked_logits, pair_logits, _ = self(batch)
        weights = batch.get("masked_weights")
        counts = batch.get("counts")
        if weights is not None and counts is not None:
            weights = weights * counts
        result = metric_sums(masked_logits, batch["masked_ids"], weights)
        if "next_sentence_labels" in batch:
            labels = batch["next_sentence_labels"]
            pair_sums = metric_sums(pair_logits, labels, counts, "classes")
            result["next_sentence_correct"] = pair_sums["correct"]
            result["next_sentences"] = pair_sums["tokens"]
        return result


@gin.configurable
class Classifier(_BertModel):
    """Classes of texts, or of pairs of texts.

    Args:
      mesh: the mesh of the variables.
      architecture: sizes and kinds; None: gin's `bert_architecture`.
      labels: the count of classes.
    """

    features = {
        "tokens": _TOKENS,
        "token_types": _TOKENS,
        "labels": "batch",
        "counts": "batch",
    }

    def __init__(
        self, mesh: mtf.Mesh, architecture: Architecture | None = None, labels: int = 2
    ) -> None:
        super().__init__(mesh, architecture, "classifier")
        with self.scope():
            self.classes = mtf.layers.Dense(
                mesh,
                mtf.Dimension(_POOLED, self.architecture.d_model),
                mtf.Dimension("classes", labels),
                name="classes",
            )

    def __call__(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns logits [batch, classes] for `tokens`, `token_types` [batch, length],
        and the reports of mixtures of experts.
        """
        _, pooled, reports = self.encode(batch, training)
        return self.classes(self.dropout(pooled, training)), reports

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the mean of -ln p of `labels` [batch], and the reports of mixtures of
        experts.
        """
        logits, reports = self(batch, training)
        loss = mtf.layers.softmax_cross_entropy(
            logits, batch["labels"], "classes", weights=batch.get("counts")
        )
        return add_auxiliary_losses(loss, reports, training), reports

    def measure(self, batch: Batch) -> dict[str, mtf.Tensor]:
        """Returns the sums of nats, of correct predictions and of texts of a batch."""
        logits, _ = self(batch)
        return metric_sums(logits, batch["labels"], batch.get("counts"), "classes")


@gin.configurable
class SpanExtractor(_BertModel):
    """Predicts the first and the last token of the answer to a question in a text.

    Args:
      mesh: the mesh of the variables.
      architecture: sizes and kinds; None: gin's `bert_architecture`.
    """

    features = {
        "tokens": _TOKENS,
        "token_types": _TOKENS,
        "start": "batch",
        "end": "batch",
        "counts": "batch",
    }

    def __init__(
        self, mesh: mtf.Mesh, architecture: Architecture | None = None
    ) -> None:
        super().__init__(mesh, architecture, "span_extractor", pooled=False)
        with self.scope():
            self.ends = mtf.layers.Dense(
                mesh,
                self.architecture.dim("d_model"),
                mtf.Dimension("ends", 2),
                name="ends",
            )

    def __call__(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, mtf.Tensor, dict[str, Report]]:
        """Returns logits [batch, length] of the first and of the last token of the answer;
        and the reports of mixtures of experts.
        """
        x, _, reports = self.encode(batch, training)
        start_logits, end_logits = mtf.unstack(self.ends(x), "ends")
        return start_logits, end_logits, reports

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the mean of -ln p of `start` and of `end`, each [batch], and the reports
        of mixtures of experts.
        """
        start_logits, end_logits, reports = self(batch, training)
        losses = [
            mtf.layers.softmax_cross_entropy(
                logits, batch[name], LENGTH, weights=batch.get("counts")
            )
            for logits, name in ((start_logits, "start"), (end_logits, "end"))
        ]
        return add_auxiliary_losses(mtf.add_n(losses) * 0.5, reports, training), reports

    def measure(self, batch: Batch) -> dict[str, mtf.Tensor]:
        """Returns the sums of nats, of correct predictions and of targets, over starts
        and ends together.
        """
        start_logits, end_logits, _ = self(batch)
        counts = batch.get("counts")
        start_sums = metric_sums(start_logits, batch["start"], counts, LENGTH)
        end_sums = metric_sums(end_logits, batch["end"], counts, LENGTH)
        return {name: start_sums[name] + end_sums[name] for name in start_sums}
