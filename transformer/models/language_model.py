"""A language model: a decoder alone, written once for every layout.

    mesh = mtf.Mesh("data:4;model:2", layout="batch:data; heads:model; d_ff:model; vocab:model")
    model = LanguageModel(mesh, Architecture(d_model=128, blocks=3))
    logits = model(tokens)                    # int32 [batch length] -> [batch length vocab]
    loss = model.loss({"tokens": tokens, "targets": targets}, training=True)

The layout says what lies where; nothing in this file does.
"""

from __future__ import annotations

import gin

import meshtf as mtf
from transformer.experts.moe_layer import Report
from transformer.models.architecture import Architecture
from transformer.models.attention_mask import LENGTH, TokenInfo
from transformer.models.base import Batch, Model, row_weights, sums, with_reports
from transformer.models.embeddings import Embeddings, of_tokens
from transformer.models.stack import KeyValueCache, Stack

_ROWS = "batch; length"


@gin.configurable
class LanguageModel(Model):
    """Embedding, blocks, a norm, and logits for the token that comes next.

    Of a row's tokens none sees those after it; those of a `prefix` are seen by all of
    the row. A row may hold several texts, which do not see each other: then a batch has
    `segments` and `positions`.

    Args:
      mesh: where the variables lie.
      architecture: sizes and kinds; None: what gin says of `Architecture`.
      z_loss: weight of the squared logsumexp in the training loss.
    """

    features = {
        "tokens": _ROWS,
        "targets": _ROWS,
        "weights": _ROWS,
        "segments": _ROWS,
        "positions": _ROWS,
        "prefix": _ROWS,
        "counts": "batch",
    }

    def __init__(
        self,
        mesh: mtf.Mesh,
        architecture: Architecture | None = None,
        z_loss: float = 1e-4,
    ) -> None:
        super().__init__(mesh, architecture, "language_model")
        self.z_loss, a = z_loss, self.architecture
        with self.scope():
            self.embeddings = Embeddings(mesh, a)
            self.dropout = mtf.layers.Dropout(a.dropout)
            self.decoder = Stack(mesh, a, causal=True, name="decoder")
            self.logits = (
                None
                if a.tied
                else mtf.layers.Dense(
                    mesh,
                    a.dim("d_model"),
                    a.dim("vocab"),
                    use_bias=False,
                    name="logits",
                )
            )

    def __call__(
        self,
        tokens: mtf.Tensor,
        training: bool = False,
        segments: mtf.Tensor | None = None,
        positions: mtf.Tensor | None = None,
        prefix: mtf.Tensor | None = None,
    ) -> mtf.Tensor:
        """Returns logits [batch length vocab] for int32 tokens [batch length].

        Args:
          tokens: what is read.
          training: whether to drop.
          segments: the number of each token's text in its row, from 1 on; 0: padding.
            None: one text.
          positions: of tokens in their texts, from 0 on.
          prefix: bool: tokens that those before them see as well.
        """
        places = TokenInfo.of(tokens, positions, segments, prefix)
        return self.logits_and_reports(tokens, places, training)[0]

    def logits_and_reports(
        self, tokens: mtf.Tensor, places: TokenInfo, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns logits, and what mixtures of experts report, by the names of their
        blocks.
        """
        x = self.dropout(self.embeddings(tokens, places.positions), training)
        x, reports = self.decoder(x, places, training)
        return self.predict(x), reports

    def predict(self, x: mtf.Tensor) -> mtf.Tensor:
        """Returns logits [batch length vocab] for the stream after the last block and
        its norm.
        """
        logits = self.embeddings.attend(x) if self.logits is None else self.logits(x)
        return of_tokens(logits, self.architecture)

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the mean of -ln p(target), and in training other losses besides; and
        reports.

        Args:
          batch: int32 `tokens` and `targets` [batch length], the token after each of
            them; perhaps `weights`, float32, `segments`, `positions`, `prefix` of the
            same shape.
          training: whether to drop, and to add the z-loss and what mixtures of experts
            ask for.
        """
        logits, reports = self.logits_and_reports(
            batch["tokens"], _places(batch), training
        )
        loss = mtf.layers.softmax_cross_entropy(
            logits,
            batch["targets"],
            "vocab",
            self.z_loss if training else 0.0,
            row_weights(batch),
        )
        return with_reports(loss, reports, training), reports

    def measure(self, batch: Batch) -> dict[str, mtf.Tensor]:
        """Returns nats, right guesses and the number of targets of a batch."""
        logits, _ = self.logits_and_reports(batch["tokens"], _places(batch))
        return sums(logits, batch["targets"], row_weights(batch))

    def start(
        self, batch: mtf.Shape, positions: int, window: int | None = None
    ) -> KeyValueCache:
        """Returns what `step` keeps before the first position of rows of these
        dimensions.

        Args:
          batch_size: the dimensions of rows.
          positions: how many come.
          window: how many of the last ones, itself included, a position sees; None:
            all.

        Raises:
          ShapeError: there are more positions than learned ones.
        """
        a = self.architecture
        self.embeddings.refuse_length(positions)
        return self.decoder.start(
            mtf.zeros(self.mesh, batch + a.dim("d_model"), a.dtype), positions, window
        )

    def prefill(
        self,
        tokens: mtf.Tensor,
        held: KeyValueCache,
        lengths: mtf.Tensor,
        prefix: bool = False,
    ) -> KeyValueCache:
        """Returns what is kept after the first tokens, which are read all at once.

        It is what as many steps would keep, if there is no prefix. Steps go on at
        position `length`, whatever the lengths of rows, or at the one before with each
        row's last token again.

        Args:
          tokens: integers [batch length].
          held: from `start`.
          lengths: how many of a row's tokens are read: int32, a scalar or [batch];
            others are padding.
          prefix: whether tokens that are read see those after them, too.
        """
        x = self.embeddings(tokens, mtf.range(self.mesh, tokens.shape.dim(LENGTH)))
        return self.decoder.prefill(x, held, lengths, prefix)

    def step(
        self, position: mtf.Tensor, tokens: mtf.Tensor, held: KeyValueCache
    ) -> tuple[mtf.Tensor, KeyValueCache]:
        """Returns logits [batch vocab] of what follows tokens [batch], and what is
        kept.

        Args:
          position: the number of these tokens: int32, a scalar.
          tokens: integers [batch].
          held: from `start` or `prefill`, or from the step before.
        """
        own = self.decoder.own(position, held)
        x, held = self.decoder.step(self.embeddings(tokens, own), held, position, own)
        return self.predict(x), held


def _places(batch: Batch) -> TokenInfo:
    return TokenInfo.of(
        batch["tokens"],
        batch.get("positions"),
        batch.get("segments"),
        batch.get("prefix"),
    )
