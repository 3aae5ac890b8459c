"""BERT: an encoder that learns from masked tokens and pairs of sentences, and what is
made of it.

    model = Bert(mesh, bert_architecture(vocab=30522))           # BERT-base
    x, pooled = model.encoder(tokens, token_types)  # [batch length d_model], [batch pooled]
    loss = model.loss(batch, training=True)         # masked tokens and next sentences

    Classifier(mesh, architecture, labels=2)        # of texts or pairs of texts
    SpanExtractor(mesh, architecture)               # the beginning and the end of an answer

Devlin et al., 2018, arXiv 1810.04805. Tokens whose number is 0 are padding.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import gin

import meshtf as mtf
from transformer.experts.moe_layer import Report
from transformer.models.architecture import Architecture
from transformer.models.attention_mask import LENGTH, TokenInfo
from transformer.models.base import Batch, Model, sums, with_reports
from transformer.models.embeddings import Embeddings, of_tokens
from transformer.models.stack import Stack

_ROWS, _MASKED = "batch; length", "batch; masked"
_POOLED, _INNER = "d_pooled", "d_transform"


@gin.configurable
def bert_architecture(**sizes: Any) -> Architecture:
    """Returns BERT's kinds of parts, and the sizes of BERT-base but for those that are
    given.
    """
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
    """Embeddings, blocks that see all of a row, and a summary of its first token.

    Args:
      mesh: where the variables lie.
      architecture: sizes and kinds.
      pooled: whether there is a summary.
    """

    def __init__(
        self, mesh: mtf.Mesh, architecture: Architecture, pooled: bool = True
    ) -> None:
        super().__init__("bert")
        a = self.architecture = architecture
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
        """Returns [batch length d_model], [batch d_pooled] if there is a summary, and
        reports.

        Args:
          tokens: integers [batch length].
          token_types: the kind of each, 0 or 1: which of two texts it is of; None: all
            are 0.
          training: whether to drop.
        """
        places = TokenInfo.of(tokens, segments=mtf.cast(tokens != 0, "int32"))
        x = self.dropout(
            self.embeddings(tokens, places.positions, token_types), training
        )
        x, reports = self.stack(x, places, training)
        if self.pooler is None:
            return x, None, reports
        first = mtf.gather(x, mtf.zeros(tokens.mesh, "", "int32"), LENGTH)
        return x, mtf.tanh(self.pooler(first)), reports


class _OnBert(Model):
    """A model whose variables are those of a BERT, and some more."""

    def __init__(
        self,
        mesh: mtf.Mesh,
        architecture: Architecture | None,
        name: str,
        pooled: bool = True,
    ) -> None:
        super().__init__(mesh, architecture or bert_architecture(), name)
        self.encoder = BertEncoder(
            mesh, self.architecture, pooled
        )  # of one path in all models
        self.dropout = mtf.layers.Dropout(
            self.architecture.dropout, name="pooled_dropout"
        )

    def encode(self, batch: Batch, training: bool) -> tuple[mtf.Tensor, Any, Any]:
        """Returns what the encoder makes of `tokens` and `token_types`."""
        return self.encoder(batch["tokens"], batch.get("token_types"), training)


@gin.configurable
class Bert(_OnBert):
    """BERT for pretraining: which tokens were masked, and whether the second text
    follows the first.

    Args:
      mesh: where the variables lie.
      architecture: sizes and kinds; None: what gin says of `bert_architecture`.
    """

    features = {
        "tokens": _ROWS,
        "token_types": _ROWS,
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
        width, inner = a.dim("d_model"), mtf.Dimension(_INNER, a.d_model)
        with self.scope():
            self.transform = mtf.layers.DenseProduct(
                mesh, width, inner, [a.activation], name="transform"
            )
            self.transform_norm = a.make_norm(mesh, "transform_norm", inner)
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
        """Returns logits [batch masked vocab] and [batch classes], and what mixtures
        report.

        Args:
          batch: int32 `tokens`, `token_types` [batch length], `masked_positions` [batch
            masked].
          training: whether to drop.
        """
        x, pooled, reports = self.encode(batch, training)
        masked = mtf.gather(x, batch["masked_positions"], LENGTH)
        return self.predict(masked), self.next_sentence(pooled), reports

    def predict(self, x: mtf.Tensor) -> mtf.Tensor:
        """Returns logits [... vocab] for what the encoder made of some tokens, [...
        d_model].
        """
        x = self.transform_norm(self.transform(x))
        logits = self.encoder.embeddings.attend(mtf.rename(x, _INNER, "d_model"))
        logits = logits + mtf.cast(self.logits_bias.tensor(), logits.dtype)
        return of_tokens(logits, self.architecture)

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the mean of -ln p over masked tokens, plus that over pairs of texts;
        and reports.

        Args:
          batch: what `__call__` takes, `masked_ids` [batch masked], what each of them
            counts, `masked_weights`, and `next_sentence_labels` [batch]; without these,
            of tokens alone.
          training: whether to drop.
        """
        masked, pairs, reports = self(batch, training)
        loss = mtf.layers.softmax_cross_entropy(
            masked, batch["masked_ids"], "vocab", weights=batch.get("masked_weights")
        )
        if "next_sentence_labels" in batch:
            loss = loss + mtf.layers.softmax_cross_entropy(
                pairs, batch["next_sentence_labels"], "classes"
            )
        return with_reports(loss, reports, training), reports

    def measure(self, batch: Batch) -> dict[str, mtf.Tensor]:
        """Returns nats, right guesses and numbers of masked tokens, and likewise of
        pairs.
        """
        masked, pairs, _ = self(batch)
        weights, counts = batch.get("masked_weights"), batch.get("counts")
        if weights is not None and counts is not None:
            weights = weights * counts
        found = sums(masked, batch["masked_ids"], weights)
        if "next_sentence_labels" in batch:
            of_pairs = sums(pairs, batch["next_sentence_labels"], counts, "classes")
            found |= {
                "next_sentence_correct": of_pairs["correct"],
                "next_sentences": of_pairs["tokens"],
            }
        return found


@gin.configurable
class Classifier(_OnBert):
    """Classes of texts, or of pairs of texts.

    Args:
      mesh: where the variables lie.
      architecture: sizes and kinds; None: what gin says of `bert_architecture`.
      labels: how many classes there are.
    """

    features = {
        "tokens": _ROWS,
        "token_types": _ROWS,
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
        """Returns logits [batch classes] for `tokens`, `token_types` [batch length],
        and reports.
        """
        _, pooled, reports = self.encode(batch, training)
        return self.classes(self.dropout(pooled, training)), reports

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the mean of -ln p of `labels` [batch], and reports."""
        logits, reports = self(batch, training)
        loss = mtf.layers.softmax_cross_entropy(
            logits, batch["labels"], "classes", weights=batch.get("counts")
        )
        return with_reports(loss, reports, training), reports

    def measure(self, batch: Batch) -> dict[str, mtf.Tensor]:
        """Returns nats, right guesses and the number of texts of a batch."""
        return sums(self(batch)[0], batch["labels"], batch.get("counts"), "classes")


@gin.configurable
class SpanExtractor(_OnBert):
    """Where in a text the answer to a question begins and ends.

    Args:
      mesh: where the variables lie.
      architecture: sizes and kinds; None: what gin says of `bert_architecture`.
    """

    features = {
        "tokens": _ROWS,
        "token_types": _ROWS,
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
        """Returns logits [batch length] of the first and of the last token of the
        answer; and reports.
        """
        x, _, reports = self.encode(batch, training)
        first, last = mtf.unstack(self.ends(x), "ends")
        return first, last, reports

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the mean of -ln p of `start` and of `end`, each [batch],
        and reports.
        """
        first, last, reports = self(batch, training)
        losses = [
            mtf.layers.softmax_cross_entropy(
                logits, batch[name], LENGTH, weights=batch.get("counts")
            )
            for logits, name in ((first, "start"), (last, "end"))
        ]
        return with_reports(mtf.add_n(losses) * 0.5, reports, training), reports

    def measure(self, batch: Batch) -> dict[str, mtf.Tensor]:
        """Returns nats and right guesses of both ends, and the number of ends of a
        batch.
        """
        first, last, _ = self(batch)
        both = [
            sums(logits, batch[name], batch.get("counts"), LENGTH)
            for logits, name in ((first, "start"), (last, "end"))
        ]
        return {name: both[0][name] + both[1][name] for name in both[0]}
