"""BERT: an encoder pretrained on masked tokens and pairs of sentences, and models
fine-tuned from it.

    model = Bert(mesh, bert_architecture(vocab=30522))           # BERT-base
    x, pooled = model.encoder(tokens, token_types)
    loss = model.loss(batch, training=True)         # masked tokens and next sentences

    Classifier(mesh, architecture, labels=2)        # of texts or pairs of texts
    SpanExtractor(mesh, architecture)               # the start and the end of an answer

Here x is the output of each token, [batch, length, d_model], and `pooled` one vector for
each example, [batch, d_pooled]: tanh of a dense layer of the first token's output.

Devlin et al., 2018, arXiv 1810.04805. Tokens with id 0 are padding, and negative labels do not
count. In a batch, `counts` is 1 for each example, or 0 if it only pads the last batch.
"""

from __future__ import annotations

from typing import Any

import gin

import meshtf as mtf
from transformer.experts.moe_layer import Report
from transformer.models.architecture import Architecture, bert_architecture
from transformer.models.base import (
    Batch,
    Model,
    add_auxiliary_losses,
    metric_sums,
    target_weights,
)
from transformer.models.embeddings import Embeddings, mask_padded_vocab
from transformer.models.stack import Stack
from transformer.models.token_info import LENGTH, TokenInfo

_TOKENS = "batch; length"
_MASKED = "batch; masked"
# Names of dimensions of the size of d_model: a dense layer needs two, for inputs and outputs.
_POOLED = "d_pooled"
_TRANSFORM = "d_transform"


class BertEncoder(mtf.Module):
    """Embeddings, blocks in which every token attends to all tokens of its example, and
    a pooler of the first token.

    Args:
      mesh: the mesh of the variables.
      architecture: sizes and kinds of layers.
      has_pooler: whether there is a pooler.
    """

    def __init__(
        self, mesh: mtf.Mesh, architecture: Architecture, has_pooler: bool = True
    ) -> None:
        super().__init__("bert")
        self.architecture = architecture
        # In this scope, paths of variables start with the path of this module.
        with self.scope():
            self.embeddings = Embeddings(mesh, architecture)
            self.dropout = mtf.layers.Dropout(architecture.dropout)
            self.stack = Stack(mesh, architecture, causal=False, name="encoder")
            self.pooler = None
            if has_pooler:
                self.pooler = mtf.layers.Dense(
                    mesh,
                    architecture.dim("d_model"),
                    mtf.Dimension(_POOLED, architecture.d_model),
                    name="pooler",
                )

    def __call__(
        self,
        tokens: mtf.Tensor,
        token_types: mtf.Tensor | None = None,
        training: bool = False,
        counts: mtf.Tensor | None = None,
    ) -> tuple[mtf.Tensor, Any, dict[str, Report]]:
        """Returns the output of each token [batch, length, d_model], that of the pooler
        [batch, d_pooled] (None without a pooler), and reports of mixtures by block name.

        Args:
          tokens: token ids, integers [batch, length].
          token_types: [batch, length], 1 in the second text of an example; None: all 0.
          training: whether dropout is applied.
          counts: 1 for each example, or 0 if it is padding, [batch].
        """
        segments = mtf.cast(tokens != 0, "int32")  # id 0 is padding
        token_info = TokenInfo.of(tokens, segments=segments, counts=counts)
        x = self.embeddings(tokens, token_info.positions, token_types)
        x = self.dropout(x, training)
        x, reports = self.stack(x, token_info, training)
        if self.pooler is None:
            return x, None, reports
        first_token = mtf.gather(x, mtf.zeros(tokens.mesh, "", "int32"), LENGTH)
        return x, mtf.tanh(self.pooler(first_token)), reports


class BertModel(Model):
    """A model with a BERT encoder. The encoder's variables have the same paths in all
    subclasses, so that a fine-tuned model can read them from a pretraining checkpoint.

    Args:
      mesh: the mesh of the variables.
      architecture: sizes and kinds of layers; None: `bert_architecture()`.
      name: the first component of the paths of the variables after the encoder.
      has_pooler: whether the encoder has a pooler.
    """

    def __init__(
        self,
        mesh: mtf.Mesh,
        architecture: Architecture | None,
        name: str,
        has_pooler: bool = True,
    ) -> None:
        architecture = architecture or bert_architecture()
        # Paths of variables made after `super().__init__()` start with the model's name. The
        # encoder is made before, as its paths must be the same in all models.
        encoder = BertEncoder(mesh, architecture, has_pooler=has_pooler)
        dropout = mtf.layers.Dropout(architecture.dropout, name="pooled_dropout")
        super().__init__(mesh, architecture, name)
        self.encoder = encoder
        self.dropout = dropout

    def encode(self, batch: Batch, training: bool) -> tuple[mtf.Tensor, Any, Any]:
        """Returns the results of `BertEncoder` for a batch's `tokens` [batch, length]."""
        token_types = batch.get("token_types")
        counts = batch.get("counts")
        return self.encoder(batch["tokens"], token_types, training, counts)


@gin.configurable
class Bert(BertModel):
    """BERT for pretraining: predicts masked tokens, and whether the second text of an
    example follows the first in the data.

    Args:
      mesh: the mesh of the variables.
      architecture: sizes and kinds of layers; None: `bert_architecture()`, as gin
        configures it.
    """

    has_next_sentence = True  # False: only masked tokens, and no pooler
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
        has_pooler = self.has_next_sentence
        super().__init__(mesh, architecture, "pretraining", has_pooler)
        architecture = self.architecture  # the default, if the argument is None
        d_model = architecture.dim("d_model")
        vocab_dim = architecture.dim("vocab")
        d_transform = mtf.Dimension(_TRANSFORM, architecture.d_model)
        activations = [architecture.activation]  # of a dense layer
        with self.scope():
            self.transform = mtf.layers.DenseProduct(
                mesh, d_model, d_transform, activations=activations, name="transform"
            )
            self.transform_norm = architecture.make_norm(
                mesh, "transform_norm", dim=d_transform
            )
            self.logits_bias = mtf.Variable(
                mesh, [vocab_dim], mtf.layers.initializers.zeros, name="logits_bias"
            )
            if self.has_next_sentence:
                self.next_sentence = mtf.layers.Dense(
                    mesh,
                    mtf.Dimension(_POOLED, architecture.d_model),
                    mtf.Dimension("classes", 2),
                    name="next_sentence",
                )

    def __call__(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, Any, dict[str, Report]]:
        """Returns logits of masked tokens [batch, masked, vocab], logits of the next
        sentence [batch, classes] or None, and the reports of mixtures by block name.

        Args:
          batch: int32 `tokens` and `token_types` [batch, length], and the positions of
            masked tokens, `masked_positions` [batch, masked].
          training: whether dropout is applied.
        """
        x, pooled, reports = self.encode(batch, training)
        masked_outputs = mtf.gather(x, batch["masked_positions"], LENGTH)
        pair_logits = None if pooled is None else self.next_sentence(pooled)
        return self.predict(masked_outputs), pair_logits, reports

    def predict(self, x: mtf.Tensor) -> mtf.Tensor:
        """Returns logits [..., vocab] for outputs of the encoder, [..., d_model]."""
        x = self.transform_norm(self.transform(x))  # [..., d_transform]
        logits = self.encoder.embeddings.attend(mtf.rename(x, _TRANSFORM, "d_model"))
        logits += mtf.cast(self.logits_bias.tensor(), logits.dtype)
        return mask_padded_vocab(logits, self.architecture)

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the loss, a scalar, and the reports of mixtures of experts by block name.

        The loss is the mean of -ln p over masked tokens, plus the mean of -ln p over pairs
        of texts if there are `next_sentence_labels`; in training, plus the losses of
        mixtures of experts.

        Args:
          batch: the tensors that `__call__` takes; the ids of masked tokens, `masked_ids`
            [batch, masked]; optionally their weights, `masked_weights` [batch, masked],
            `next_sentence_labels` [batch], and `counts` [batch].
          training: whether dropout is applied, and auxiliary losses are added.
        """
        masked_logits, pair_logits, reports = self(batch, training)
        loss = mtf.layers.softmax_cross_entropy(
            masked_logits,
            batch["masked_ids"],
            "vocab",
            weights=target_weights(batch, "masked_weights"),
        )
        if "next_sentence_labels" in batch:
            labels, counts = batch["next_sentence_labels"], batch.get("counts")
            loss = loss + mtf.layers.softmax_cross_entropy(
                pair_logits, labels, "classes", weights=counts
            )
        return add_auxiliary_losses(loss, reports, training), reports

    def measure(self, batch: Batch) -> dict[str, mtf.Tensor]:
        """Returns the sums of `metric_sums` over masked tokens; with labels of next
        sentences also "next_sentence_correct", the count of correctly predicted pairs, and
        "next_sentences", the count of pairs.
        """
        masked_logits, pair_logits, _ = self(batch)
        weights = target_weights(batch, "masked_weights")
        sums = metric_sums(masked_logits, batch["masked_ids"], weights)
        if "next_sentence_labels" in batch:
            labels, counts = batch["next_sentence_labels"], batch.get("counts")
            pair_sums = metric_sums(pair_logits, labels, counts, dim="classes")
            sums["next_sentence_correct"] = pair_sums["correct"]
            sums["next_sentences"] = pair_sums["tokens"]
        return sums


@gin.configurable
class Classifier(BertModel):
    """Classifies texts, or pairs of texts.

    Args:
      mesh: the mesh of the variables.
      architecture: sizes and kinds of layers; None: `bert_architecture()`, as gin
        configures it.
      labels: the count of classes.
    """

    # `labels` is the class of each example.
    features = {
        "tokens": _TOKENS,
        "token_types": _TOKENS,
        "labels": "batch",
        "counts": "batch",
    }

    def __init__(
        self, mesh: mtf.Mesh, architecture: Architecture | None = None, labels: int = 2
    ) -> None:
        super().__init__(mesh, architecture, name="classifier")
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
        """Returns logits [batch, classes] for the batch's `tokens` and `token_types`
        [batch, length], and the reports of mixtures of experts by block name.
        """
        _, pooled, reports = self.encode(batch, training)
        return self.classes(self.dropout(pooled, training)), reports

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the mean of -ln p of the batch's `labels` [batch], in training plus
        auxiliary losses, and the reports of mixtures of experts by block name.
        """
        logits, reports = self(batch, training)
        loss = mtf.layers.softmax_cross_entropy(
            logits, batch["labels"], "classes", weights=batch.get("counts")
        )
        return add_auxiliary_losses(loss, reports, training), reports

    def measure(self, batch: Batch) -> dict[str, mtf.Tensor]:
        """Returns the sums of `metric_sums`, with a text of the batch as a "token"."""
        logits, _ = self(batch)
        return metric_sums(logits, batch["labels"], batch.get("counts"), dim="classes")


@gin.configurable
class SpanExtractor(BertModel):
    """Predicts which tokens of a text start and end the answer to a question (SQuAD).

    Args:
      mesh: the mesh of the variables.
      architecture: sizes and kinds of layers; None: `bert_architecture()`, as gin
        configures it.
    """

    # `start` and `end` are the positions of an answer's first and last token.
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
        super().__init__(mesh, architecture, name="span_extractor", has_pooler=False)
        with self.scope():
            # The two ends of an answer: index 0 is its start, index 1 its end.
            self.ends = mtf.layers.Dense(
                mesh,
                self.architecture.dim("d_model"),
                mtf.Dimension("ends", 2),
                name="ends",
            )

    def __call__(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, mtf.Tensor, dict[str, Report]]:
        """Returns logits of the answer's first token [batch, length] and of its last token
        [batch, length], and the reports of mixtures of experts by block name.
        """
        x, _, reports = self.encode(batch, training)
        start_logits, end_logits = mtf.unstack(self.ends(x), "ends")
        return start_logits, end_logits, reports

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the mean of -ln p over the batch's `start` and `end` positions, each
        [batch], in training plus auxiliary losses, and the reports of mixtures of experts
        by block name.
        """
        start_logits, end_logits, reports = self(batch, training)
        counts = batch.get("counts")
        start_loss = mtf.layers.softmax_cross_entropy(
            start_logits, batch["start"], LENGTH, weights=counts
        )
        end_loss = mtf.layers.softmax_cross_entropy(
            end_logits, batch["end"], LENGTH, weights=counts
        )
        loss = mtf.add_n([start_loss, end_loss]) * 0.5
        return add_auxiliary_losses(loss, reports, training), reports

    def measure(self, batch: Batch) -> dict[str, mtf.Tensor]:
        """Returns the sums of `metric_sums` over the first and the last tokens of answers."""
        start_logits, end_logits, _ = self(batch)
        counts = batch.get("counts")
        starts = metric_sums(start_logits, batch["start"], counts, dim=LENGTH)
        ends = metric_sums(end_logits, batch["end"], counts, dim=LENGTH)
        return {name: starts[name] + ends[name] for name in starts}
