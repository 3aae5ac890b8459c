"""A decoder-only language model, written once for every layout.

    mesh = mtf.Mesh("data:4;model:2", layout="batch:data; heads:model; d_ff:model; vocab:model")
    model = LanguageModel(mesh, Architecture(d_model=128, blocks=3))
    logits = model(tokens)                    # int32 [batch, length] -> [batch, length, vocab]
    loss = model.loss({"tokens": tokens, "targets": targets}, training=True)

Only the layout says how tensors are sharded; nothing in this file does.
"""

from __future__ import annotations

import gin

import meshtf as mtf
from transformer.experts.moe_layer import Report
from transformer.models.architecture import Architecture
from transformer.models.attention_mask import LENGTH, TokenInfo
from transformer.models.base import (
    Batch,
    Model,
    add_auxiliary_losses,
    metric_sums,
    target_weights,
)
from transformer.models.embeddings import Embeddings, mask_padded_vocab
from transformer.models.key_value_cache import KeyValueCache
from transformer.models.stack import Stack

_TOKENS = "batch; length"


@gin.configurable
class LanguageModel(Model):
    """Embedding, blocks, a norm, and logits for the next token.

    A token attends to itself and to earlier tokens; tokens of a `prefix` are visible to
    their entire example. An example may be a packed sequence of several texts, which do
    not attend to each other: then a batch has `segments` and `positions`.

    Args:
      mesh: the mesh of the variables.
      architecture: sizes and kinds; None: what gin says of `Architecture`.
      z_loss: weight of the squared logsumexp in the training loss.
    """

    features = {
        "tokens": _TOKENS,
        "targets": _TOKENS,
        "weights": _TOKENS,
        "segments": _TOKENS,
        "positions": _TOKENS,
        "prefix": _TOKENS,
        "counts": "batch",
    }

    def __init__(
        self,
        mesh: mtf.Mesh,
        architecture: Architecture | None = None,
        z_loss: float = 1e-4,
    ) -> None:
        super().__init__(mesh, architecture, "language_model")
        self.z_loss = z_loss
        a = self.architecture
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
        """Returns logits [batch, length, vocab].

        Args:
          tokens: int32 [batch, length].
          training: whether dropout is applied.
          segments: int32 [batch, length]: the text of its example that each token
            belongs to, counted from 1; 0: padding. None: one text.
          positions: int32 [batch, length]: of tokens in their texts, from 0 on.
          prefix: bool [batch, length]: tokens that are visible to earlier ones, too.
        """
        token_info = TokenInfo.of(tokens, positions, segments, prefix)
        logits, _ = self.logits_and_reports(tokens, token_info, training)
        return logits

    def logits_and_reports(
        self, tokens: mtf.Tensor, token_info: TokenInfo, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns logits [batch, length, vocab], and the reports of mixtures of experts
        by block name.
        """
        x = self.dropout(self.embeddings(tokens, token_info.positions), training)
        x, reports = self.decoder(x, token_info, training)
        return self.predict(x), reports

    def predict(self, x: mtf.Tensor) -> mtf.Tensor:
        """Returns logits [batch, length, vocab] for the decoder's output x [batch,
        length, d_model].
        """
        logits = self.embeddings.attend(x) if self.logits is None else self.logits(x)
        return mask_padded_vocab(logits, self.architecture)

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the mean of -ln p(target), in training plus auxiliary losses; and the
        reports of mixtures of experts.

        Args:
          batch: int32 `tokens` [batch, length] and `targets`, the token after each of
            them; optionally `weights`, float32, `segments`, `positions`, `prefix` of the
            same shape.
          training: whether dropout is applied, and the z-loss and the losses of mixtures
            of experts are added.
        """
        logits, reports = self.logits_and_reports(
            batch["tokens"], _token_info(batch), training
        )
        loss = mtf.layers.softmax_cross_entropy(
            logits,
            batch["targets"],
            "vocab",
            self.z_loss if training else 0.0,
            target_weights(batch),
        )
        return add_auxiliary_losses(loss, reports, training), reports

    def measure(self, batch: Batch) -> dict[str, mtf.Tensor]:
        """Returns the sums of nats, of correct predictions and of targets of a batch."""
        logits, _ = self.logits_and_reports(batch["tokens"], _token_info(batch))
        return metric_sums(logits, batch["targets"], target_weights(batch))

    def init_cache(
        self, batch: mtf.Shape, positions: int, window: int | None = None
    ) -> KeyValueCache:
        """Returns the cache before the first decoding step.

        Args:
          batch: the dimensions of examples, such as "batch:8".
          positions: how many positions are decoded at most.
          window: how many of the last positions a token attends to, itself included;
            None: all.

        Raises:
          ShapeError: there are more positions than learned positions.
        """
        a = self.architecture
        self.embeddings.check_length(positions)
        x = mtf.zeros(self.mesh, batch + a.dim("d_model"), a.dtype)
        return self.decoder.init_cache(x, positions, window)

    def prefill(
        self,
        tokens: mtf.Tensor,
        cache: KeyValueCache,
        lengths: mtf.Tensor,
        prefix_lm: bool = False,
    ) -> KeyValueCache:
        """Returns the cache after the prompts, whose tokens are processed all at once.

        Without `prefix_lm` the same number of steps returns the same cache. The next step
        has position `length`, whatever the lengths of the prompts; or the position
        before that, with the last token of each prompt again.

        Args:
          tokens: the prompts, integers [batch, length].
          cache: from `init_cache`.
          lengths: how many tokens of each prompt are no padding: int32, a scalar or
            [batch].
          prefix_lm: whether tokens of a prompt attend to later ones of it, too.
        """
        positions = mtf.range(self.mesh, tokens.shape.dim(LENGTH))
        x = self.embeddings(tokens, positions)
        return self.decoder.prefill(x, cache, lengths, prefix_lm)

    def decode_step(
        self, position: mtf.Tensor, tokens: mtf.Tensor, cache: KeyValueCache
    ) -> tuple[mtf.Tensor, KeyValueCache]:
        """Returns logits [batch, vocab] of the next token, and the updated cache.

        Args:
          position: of these tokens, common to all examples: int32, a scalar.
          tokens: integers [batch].
          cache: from `init_cache` or `prefill`, or from the previous step.
        """
        example_positions = self.decoder.example_positions(position, cache)
        x = self.embeddings(tokens, example_positions)
        x, cache = self.decoder.decode_step(x, cache, position, example_positions)
        return self.predict(x), cache


def _token_info(batch: Batch) -> TokenInfo:
    """Returns positions, segments and prefixes of the tokens of a batch."""
    return TokenInfo.of(
        batch["tokens"],
        batch.get("positions"),
        batch.get("segments"),
        batch.get("prefix"),
    )
