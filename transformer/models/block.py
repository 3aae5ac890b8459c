"""A block of a Transformer: self-attention, cross-attention where there is an encoder's
output, feed-forward.

    block = Block(mesh, architecture, causal=True, name="block_0")
    x, _ = block(x, attention_mask, training=True)     # [batch, length, d_model] -> the same

Each of the two or three *sublayers* f adds to the residual stream x that runs through
all blocks: x + f(norm(x)) where norms come before ("pre-norm"), norm(x + f(x)) where
they come after ("post-norm").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import meshtf as mtf
from transformer.experts.moe_layer import MixtureOfExperts, Report
from transformer.models.architecture import Architecture
from transformer.models.attention_mask import (
    LENGTH,
    AttentionMask,
    attend,
    make_attention,
    residual_initializer,
)


class Context(NamedTuple):
    """What cross-attention attends to.

    Attributes:
      x: an encoder's output, [batch, length, d_model].
      attention_mask: which of its tokens each token of the decoder attends to.
    """

    x: mtf.Tensor
    attention_mask: AttentionMask


class BlockCache(NamedTuple):
    """The keys and values that a block stores between decoding steps.

    Attributes:
      self_attention: of the positions decoded so far.
      context: of an encoder's output; None: there is no cross-attention.
    """

    self_attention: mtf.layers.Cache
    context: mtf.layers.Cache | None = None


CachedAttention = Callable[[mtf.Tensor], tuple[mtf.Tensor, mtf.layers.Cache]]


class Block(mtf.Module):
    """Self-attention and feed-forward sublayers, with cross-attention between them if
    `across`.

    Args:
      mesh: the mesh of the variables.
      architecture: its sizes and kinds.
      causal: whether a token attends only to itself and to earlier tokens.
      across: whether there is cross-attention.
      mixed: whether the feed-forward sublayer is a mixture of experts.
      name: the last component of the path of its variables.
    """

    def __init__(
        self,
        mesh: mtf.Mesh,
        architecture: Architecture,
        causal: bool,
        across: bool = False,
        mixed: bool = False,
        name: str = "block",
    ) -> None:
        super().__init__(name)
        self.architecture = architecture
        a = architecture
        dropout = mtf.layers.Dropout
        with self.scope():
            self.attention_norm = a.make_norm(mesh, "attention_norm")
            self.attention = make_attention(mesh, a, causal, "attention")
            self.attention_dropout = dropout(a.dropout, name="attention_dropout")
            if across:
                self.memory_norm = a.make_norm(mesh, "memory_attention_norm")
                self.memory_attention = make_attention(
                    mesh, a, False, "memory_attention", across=True
                )
                self.memory_dropout = dropout(
                    a.dropout, name="memory_attention_dropout"
                )
            self.feed_forward_norm = a.make_norm(mesh, "feed_forward_norm")
            self.feed_forward = _make_feed_forward(mesh, a, mixed, causal)
            self.feed_forward_dropout = dropout(a.dropout, name="feed_forward_dropout")

    def __call__(
        self,
        x: mtf.Tensor,
        attention_mask: AttentionMask,
        training: bool = False,
        context: Context | None = None,
    ) -> tuple[mtf.Tensor, Report | None]:
        """Returns the residual stream [batch, length, d_model] after all sublayers, and
        the report of a mixture of experts.

        Args:
          x: the residual stream before the block, of the same shape.
          attention_mask: which tokens each token attends to.
          training: whether dropout is applied.
          context: what cross-attention attends to.
        """
        x = self.residual(
            x,
            self.attention_norm,
            self.attention_dropout,
            training,
            lambda h: attend(self.attention, h, attention_mask, training),
        )
        if context is not None:
            x = self.residual(
                x,
                self.memory_norm,
                self.memory_dropout,
                training,
                lambda h: attend(
                    self.memory_attention,
                    h,
                    context.attention_mask,
                    training,
                    context.x,
                ),
            )
        nonpadding = attention_mask.queries.nonpadding
        return self.feed_forward_sublayer(x, training, nonpadding)

    def init_cache(
        self, x: mtf.Tensor, num_slots: int, context: mtf.Tensor | None = None
    ) -> BlockCache:
        """Returns the cache before the first decoding step.

        Args:
          x: the residual stream at one position, [batch, d_model]; only its shape and
            type count.
          num_slots: how many positions the cache has room for; local attention chooses a
            smaller size itself.
          context: an encoder's output, [batch, length, d_model].
        """
        if isinstance(self.attention, mtf.layers.LocalAttention):
            cache = self.attention.init_cache(x)
        else:
            cache = self.attention.init_cache(x, num_slots)
        if context is None:
            return BlockCache(cache)
        return BlockCache(cache, self.memory_attention.project_keys_values(context))

    def decode_step(
        self,
        x: mtf.Tensor,
        cache: BlockCache,
        decode_step: mtf.layers.DecodeStep,
        context_bias: mtf.Tensor | None,
    ) -> tuple[mtf.Tensor, BlockCache]:
        """Returns the residual stream [batch, d_model] at the next position, and the
        updated cache.

        Args:
          x: the residual stream before the block, at this position.
          cache: from the previous step, or from `init_cache`.
          decode_step: from `prepare_decode_step` of the attention layer.
          context_bias: the bias of the scores of cross-attention.
        """
        return self.decode(
            x,
            cache,
            context_bias,
            lambda h: self.attention.decode_prepared_step(
                h, cache.self_attention, decode_step
            ),
        )

    def prefill(
        self,
        x: mtf.Tensor,
        cache: BlockCache,
        last: mtf.Tensor,
        step_index: int,
        attention_mask: AttentionMask,
        context_bias: mtf.Tensor | None,
    ) -> tuple[mtf.Tensor, BlockCache]:
        """Returns the residual stream [batch, length, d_model], and the cache that single
        steps up to a position would leave.

        Args:
          x: the residual stream before the block, at all positions of the prompts.
          cache: from `init_cache`.
          last: the position of the last token that is no padding: int32, a scalar or
            [batch].
          step_index: the index of the step of that token, shared by the batch.
          attention_mask: which tokens each token attends to.
          context_bias: the bias of the scores of cross-attention.
        """

        def attend_and_fill(h: mtf.Tensor) -> tuple[mtf.Tensor, mtf.layers.Cache]:
            keys_values = self.attention.project_keys_values(h, attention_mask.rope)
            y = attend(self.attention, h, attention_mask, False, keys_values)
            filled_cache = self.attention.fill_cache(
                cache.self_attention, keys_values, last, step_index
            )
            return y, filled_cache

        return self.decode(x, cache, context_bias, attend_and_fill)

    def decode(
        self,
        x: mtf.Tensor,
        cache: BlockCache,
        context_bias: mtf.Tensor | None,
        cached_attention: CachedAttention,
    ) -> tuple[mtf.Tensor, BlockCache]:
        """Returns the residual stream after all sublayers without dropout, and the
        updated cache.

        Args:
          x: the residual stream before the block.
          cache: from the previous step, or from `init_cache`.
          context_bias: the bias of the scores of cross-attention.
          cached_attention: computes self-attention, and the cache after it.
        """
        updated_caches = []  # `residual` returns one tensor, so the cache is returned here

        def self_attention(h: mtf.Tensor) -> mtf.Tensor:
            y, updated_cache = cached_attention(h)
            updated_caches.append(updated_cache)
            return y

        x = self.residual(
            x, self.attention_norm, self.attention_dropout, False, self_attention
        )
        if cache.context is not None:
            x = self.residual(
                x,
                self.memory_norm,
                self.memory_dropout,
                False,
                lambda h: self.memory_attention.attend_cached(
                    h, cache.context, context_bias
                ),
            )
        x, _ = self.feed_forward_sublayer(x, False, None, drop_free=True)
        return x, BlockCache(updated_caches[0], cache.context)

    def residual(
        self,
        x: mtf.Tensor,
        norm: Any,
        dropout: Any,
        training: bool,
        sublayer: Callable[[mtf.Tensor], mtf.Tensor],
    ) -> mtf.Tensor:
        """Returns the residual stream x plus the output of a sublayer, with dropout and
        the norm where the architecture has it.
        """
        if self.architecture.norm_place == "before":
            return x + dropout(sublayer(norm(x)), training)
        return norm(x + dropout(sublayer(x), training))

    def feed_forward_sublayer(
        self,
        x: mtf.Tensor,
        training: bool,
        nonpadding: mtf.Tensor | None,
        drop_free: bool = False,
    ) -> tuple[mtf.Tensor, Report | None]:
        """Returns the residual stream after the feed-forward sublayer, and the report of
        a mixture of experts.

        Args:
          x: the residual stream before the sublayer.
          training: whether dropout is applied.
          nonpadding: bool [batch, length]: the tokens that go through experts; None:
            all.
          drop_free: whether a mixture of experts routes each token as a separate group,
            in which no token is dropped. Then the generated tokens do not depend on how
            many are processed at a time.
        """
        reports: list[Report] = []

        def feed_forward(h: mtf.Tensor) -> mtf.Tensor:
            if not isinstance(self.feed_forward, MixtureOfExperts):
                return self.feed_forward(h, training)
            # Where x has no dimension "length", the router makes each token a group.
            new_names = {}
            if drop_free and LENGTH in h.shape.names:
                new_names = {LENGTH: f"{LENGTH}_ungrouped"}
            old_names = {new: old for old, new in new_names.items()}
            y, report = self.feed_forward(
                mtf.rename(h, new_names), training, nonpadding
            )
            reports.append(report)
            return mtf.rename(y, old_names)

        x = self.residual(
            x,
            self.feed_forward_norm,
            self.feed_forward_dropout,
            training,
            feed_forward,
        )
        return x, reports[0] if reports else None


def _make_feed_forward(
    mesh: mtf.Mesh, a: Architecture, mixed: bool, causal: bool
) -> Any:
    """Returns a feed-forward layer, or a mixture of experts if `mixed`."""
    settings: dict[str, Any] = {
        "activation": a.activation,
        "output_initializer": residual_initializer("d_ff", a),
    }
    if mixed:
        mixture = a.mixture(mesh, a.dim("d_model"), a.dim("d_ff"), **settings)
        mixture.causal = causal
        return mixture
    return mtf.layers.FeedForward(
        mesh, a.dim("d_model"), a.dim("d_ff"), use_bias=a.use_bias, **settings
    )
