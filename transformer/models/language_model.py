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
from transformer.models.base import (
    Batch,
    Model,
    add_auxiliary_losses,
    metric_sums,
    target_weights,
)
from transformer.models.embeddings import (
    Embeddings,
    logits_layer,
    mask_padded_vocab,
)
from transformer.models.key_value_cache import KeyValueCache
from transformer.models.stack import Stack
from transformer.models.token_info import (
    LENGTH,
    TokenInfo,
    counted_targets,
    zigzag_order,
)

_TOKENS = "batch; length"


@gin.configurable
class LanguageModel(Model):
    """Embedding, blocks, a norm, and logits for the next token.

    A token attends to itself and to earlier tokens; tokens of a `prefix` are visible to
    all tokens of their text. An example may be a packed sequence of several texts, which
    do not attend to each other: then a batch has `segments` and `positions`.

    Args:
      mesh: the mesh of the variables.
      architecture: sizes and kinds of layers; None: `Architecture()`, as gin configures
        it.
      z_loss: the weight of the mean squared logsumexp of logits in the training loss.
    """

    # The inputs that a batch may have, with their dimensions. `counts` is 1 for each example,
    # or 0 if it only pads the last batch.
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
        super().__init__(mesh, architecture, name="language_model")
        self.z_loss = z_loss
        architecture = self.architecture  # the default, if the argument is None
        # In this scope, paths of variables start with the path of this module.
        with self.scope():
            self.embeddings = Embeddings(mesh, architecture)
            self.dropout = mtf.layers.Dropout(architecture.dropout)
            self.decoder = Stack(mesh, architecture, causal=True, name="decoder")
            self.logits = logits_layer(mesh, architecture)

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
          tokens: token ids, int32 [batch, length].
          training: whether dropout is applied.
          segments: the text that each token belongs to, int32 [batch, length], counted
            from 1 in each example; 0 is padding. None: each example is one text.
          positions: the position of each token in its text, int32 [batch, length]; None:
            from 0 on in each example.
          prefix: bool [batch, length]: True for tokens that earlier tokens of the text
            attend to as well. None: attention is causal everywhere.
        """
        token_info = TokenInfo.of(
            tokens, positions=positions, segments=segments, prefix=prefix
        )
        order = zigzag_order(self.architecture, token_info, tokens)
        if order is None:
            logits, _ = self.logits_and_reports(tokens, token_info, training)
            return logits
        logits, _ = self.logits_and_reports(
            order.apply(tokens), token_info.in_order(order), training
        )
        return order.undo(logits)

    def logits_and_reports(
        self, tokens: mtf.Tensor, token_info: TokenInfo, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns logits [batch, length, vocab], and a dict of block name -> report of
        the block's mixture of experts: its auxiliary losses and statistics.
        """
        with token_info.random_numbers():
            x = self.embeddings(tokens, token_info.positions)
            x = self.dropout(x, training)
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
        """Returns the loss, a scalar, and the reports of mixtures of experts by block name.

        The loss is the mean of -ln p(target) over all targets that are not negative; in
        training, plus the z-loss and the losses of mixtures of experts.

        Args:
          batch: `tokens` and `targets`, the token after each of `tokens`: int32 [batch,
            length]. Optionally `weights`, of the targets: float32 [batch, length];
            `counts`, weights of the examples, 1 or 0: [batch]; and `segments`,
            `positions` and `prefix`, as in `__call__`.
          training: whether dropout is applied, and auxiliary losses are added.
        """
        batch, token_info = self._ordered(batch)
        logits, reports = self.logits_and_reports(batch["tokens"], token_info, training)
        loss = mtf.layers.softmax_cross_entropy(
            logits,
            batch["targets"],
            dim="vocab",
            z_loss=self.z_loss if training else 0.0,
            weights=target_weights(batch),
        )
        return add_auxiliary_losses(loss, reports, training), reports

    def measure(self, batch: Batch) -> dict[str, mtf.Tensor]:
        """Returns weighted sums over the targets, float32 scalars: "nats", the cross
        entropy; "correct", the count of correct predictions; "tokens", the count of
        targets.
        """
        batch, token_info = self._ordered(batch)
        logits, _ = self.logits_and_reports(batch["tokens"], token_info)
        return metric_sums(logits, batch["targets"], target_weights(batch))

    def _ordered(self, batch: Batch) -> tuple[Batch, TokenInfo]:
        """Returns a batch and its token information, in zigzag order if causal ring
        attention needs it: sums over tokens are the same in every order.
        """
        token_info = self._token_info_of(batch)
        order = zigzag_order(self.architecture, token_info, batch["tokens"])
        if order is None:
            return batch, token_info
        ordered_batch = {
            name: order.apply(x) if LENGTH in x.shape else x
            for name, x in batch.items()
        }
        return ordered_batch, token_info.in_order(order)

    def _token_info_of(self, batch: Batch) -> TokenInfo:
        """Returns positions, segments, prefixes and, for routers, padding of a batch."""
        has_experts = self.architecture.moe_every > 0
        return TokenInfo.of(
            batch["tokens"],
            positions=batch.get("positions"),
            segments=batch.get("segments"),
            prefix=batch.get("prefix"),
            counted=counted_targets(batch) if has_experts else None,
            counts=batch.get("counts") if has_experts else None,
        )

    def init_cache(
        self, batch_dims: mtf.Shape, num_positions: int, window: int | None = None
    ) -> KeyValueCache:
        """Returns the cache before the first decoding step.

        Args:
          batch_dims: the dimensions of the batch, such as [batch:8].
          num_positions: the maximum count of positions, of a prompt and its new tokens.
          window: the count of the last positions that a token attends to, including
            its own; None: all.

        Raises:
          ShapeError: there are more positions than learned positions.
        """
        architecture = self.architecture
        self.embeddings.check_length(num_positions)
        # A residual stream at one position; only its shape and data type are used.
        x = mtf.zeros(
            self.mesh, batch_dims + architecture.dim("d_model"), architecture.dtype
        )
        return self.decoder.init_cache(x, num_positions, window=window)

    def prefill(
        self,
        tokens: mtf.Tensor,
        cache: KeyValueCache,
        lengths: mtf.Tensor,
        prefix_lm: bool = False,
    ) -> KeyValueCache:
        """Returns the cache after the prompts; all their tokens are processed at once.

        Without `prefix_lm`, decoding the prompts step by step returns the same cache.

        All examples go on at one position, whatever their prompts' lengths. For prompts
        padded to `length` 5:

            decode_step(4, the last token of each prompt)    # logits of the first new token
            decode_step(5, the first new token)              # logits of the second one

        Args:
          tokens: the ids of the prompts, integers [batch, length], padded at the end.
          cache: an empty cache, from `init_cache`.
          lengths: the count of tokens of each prompt without padding: int32, a scalar or
            [batch].
          prefix_lm: whether tokens of a prompt also attend to later tokens of the prompt.
        """
        positions = mtf.range(self.mesh, tokens.shape.dim(LENGTH))
        x = self.embeddings(tokens, positions)
        return self.decoder.prefill(x, cache, lengths, prefix_lm=prefix_lm)

    def decode_step(
        self, position: mtf.Tensor, tokens: mtf.Tensor, cache: KeyValueCache
    ) -> tuple[mtf.Tensor, KeyValueCache]:
        """Returns logits [batch, vocab] of the next token, and the updated cache.

        Args:
          position: the position of the tokens, common to all examples: int32, a scalar.
            After `prefill` it includes the padding of the prompts.
          tokens: the token id of each example at this position, integers [batch].
          cache: the cache from `init_cache`, `prefill` or the previous step.
        """
        # The position of each example without the padding of its prompt.
        example_positions = self.decoder.example_positions(position, cache)
        x = self.embeddings(tokens, example_positions)
        x, cache = self.decoder.decode_step(
            x, cache, position, example_positions=example_positions
        )
        return self.predict(x), cache
