"""A block of a Transformer: self-attention, cross-attention if there is an encoder, and
feed-forward.

    block = Block(mesh, architecture, causal=True, name="block_0")
    x, _ = block(x, attention_mask, training=True)     # [batch, length, d_model] -> the same

The *residual stream* x runs through all blocks. Each of the two or three *sublayers* f of a
block is added to it: x + f(norm(x)) in a pre-norm architecture, norm(x + f(x)) in a
post-norm one. A mixture of experts also returns a `Report`: its auxiliary losses and its
statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import meshtf as mtf
from transformer.experts.moe_layer import MixtureOfExperts, Report
from transformer.models.architecture import Architecture
from transformer.models.attention_mask import (
    AttentionMask,
    attend,
    make_attention,
    residual_initializer,
)
from transformer.models.token_info import LENGTH


class Context(NamedTuple):
    """An encoder's output and its mask, for cross-attention.

    Attributes:
      x: the encoder's output, [batch, length, d_model].
      attention_mask: the mask of cross-attention, from tokens of the decoder to tokens of
        the encoder.
    """

    x: mtf.Tensor
    attention_mask: AttentionMask


class BlockCache(NamedTuple):
    """The keys and values that a block stores between decoding steps.

    Attributes:
      self_attention: keys and values of the positions decoded so far.
      context: keys and values of an encoder's output; None: there is no encoder.
    """

    self_attention: mtf.layers.Cache
    context: mtf.layers.Cache | None = None


# Self-attention while decoding: x -> (output, updated cache).
CachedAttention = Callable[[mtf.Tensor], tuple[mtf.Tensor, mtf.layers.Cache]]


class Block(mtf.Module):
    """Self-attention, optional cross-attention, and feed-forward sublayers.

    Args:
      mesh: the mesh of the variables.
      architecture: the sizes and kinds of the layers.
      causal: whether a token attends only to itself and to earlier tokens.
      has_cross_attention: whether there is a cross-attention sublayer.
      has_experts: whether the feed-forward sublayer is a mixture of experts.
      name: the last component of the path of the block's variables.
    """

    def __init__(
        self,
        mesh: mtf.Mesh,
        architecture: Architecture,
        causal: bool,
        has_cross_attention: bool = False,
        has_experts: bool = False,
        name: str = "block",
    ) -> None:
        super().__init__(name)
        self.architecture = architecture
        dropout = mtf.layers.Dropout
        # In this scope, paths of variables start with the path of this module.
        with self.scope():
            self.attention_norm = architecture.make_norm(mesh, "attention_norm")
            self.attention = make_attention(
                mesh, architecture, causal=causal, name="attention"
            )
            self.attention_dropout = dropout(
                architecture.dropout, name="attention_dropout"
            )
            if has_cross_attention:
                self._make_cross_attention(mesh)
            self.feed_forward_norm = architecture.make_norm(mesh, "feed_forward_norm")
            self.feed_forward = _make_feed_forward(
                mesh, architecture, has_experts=has_experts, causal=causal
            )
            self.feed_forward_dropout = dropout(
                architecture.dropout, name="feed_forward_dropout"
            )

    def _make_cross_attention(self, mesh: mtf.Mesh) -> None:
        """Sets the layers of cross-attention, in the scope of the caller."""
        architecture = self.architecture
        # Checkpoints call cross-attention "memory_attention": the names are fixed.
        self.cross_attention_norm = architecture.make_norm(
            mesh, "memory_attention_norm"
        )
        self.cross_attention = make_attention(
            mesh,
            architecture,
            causal=False,
            name="memory_attention",
            is_cross_attention=True,
        )
        self.cross_attention_dropout = mtf.layers.Dropout(
            architecture.dropout, name="memory_attention_dropout"
        )

    def __call__(
        self,
        x: mtf.Tensor,
        attention_mask: AttentionMask,
        training: bool = False,
        context: Context | None = None,
    ) -> tuple[mtf.Tensor, Report | None]:
        """Returns the residual stream [batch, length, d_model] after all sublayers, and
        the report of a mixture of experts; None if the block has none.

        Args:
          x: the residual stream before the block, [batch, length, d_model].
          attention_mask: the mask of self-attention.
          training: whether dropout is applied.
          context: an encoder's output, for cross-attention; None: no encoder.
        """
        x = self.residual(
            x,
            self.attention_norm,
            self.attention_dropout,
            training=training,
            sublayer=lambda h: attend(
                self.attention, h, attention_mask, training=training
            ),
        )
        if context is not None:
            x = self.residual(
                x,
                self.cross_attention_norm,
                self.cross_attention_dropout,
                training=training,
                sublayer=lambda h: attend(
                    self.cross_attention,
                    h,
                    context.attention_mask,
                    training=training,
                    context=context.x,
                ),
            )
        nonpadding = attention_mask.queries.nonpadding
        return self.feed_forward_sublayer(x, training=training, nonpadding=nonpadding)

    def init_cache(
        self, x: mtf.Tensor, num_slots: int, context: mtf.Tensor | None = None
    ) -> BlockCache:
        """Returns the cache before the first decoding step.

        Args:
          x: a residual stream at one position, [batch, d_model]; only its shape and dtype
            are used.
          num_slots: the count of positions whose keys and values the cache can store;
            local attention ignores it, and stores the positions within its radius.
          context: an encoder's output, [batch, length, d_model]; None: no encoder.
        """
        if isinstance(self.attention, mtf.layers.LocalAttention):
            cache = self.attention.init_cache(x)
        else:
            cache = self.attention.init_cache(x, num_slots)
        if context is None:
            return BlockCache(cache)
        return BlockCache(cache, self.cross_attention.project_keys_values(context))

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
          x: the residual stream before the block at this position, [batch, d_model].
          cache: the cache from the previous step, or from `init_cache`.
          decode_step: position, rotary embedding and bias, from `prepare_decode_step` of
            the attention layer.
          context_bias: the bias of cross-attention scores; None: no bias.
        """
        return self._decode(
            x,
            cache,
            context_bias,
            cached_attention=lambda h: self.attention.decode_prepared_step(
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
        """Returns the residual stream [batch, length, d_model] at all positions of the
        prompts, and the cache that decoding the prompts token by token would return.

        Args:
          x: the residual stream before the block, [batch, length, d_model].
          cache: an empty cache, from `init_cache`.
          last: the position of the last token of each prompt that is not padding: int32,
            a scalar or [batch].
          step_index: the index of the step that decodes the last token of each prompt,
            common to the batch.
          attention_mask: the mask of self-attention.
          context_bias: the bias of cross-attention scores; None: no bias.
        """

        def attend_and_fill(h: mtf.Tensor) -> tuple[mtf.Tensor, mtf.layers.Cache]:
            """Returns the output of self-attention, and the cache of all prompts."""
            keys_values = self.attention.project_keys_values(h, attention_mask.rope)
            y = attend(
                self.attention, h, attention_mask, training=False, context=keys_values
            )
            filled_cache = self.attention.fill_cache(
                cache.self_attention, keys_values, last=last, step_index=step_index
            )
            return y, filled_cache

        return self._decode(x, cache, context_bias, cached_attention=attend_and_fill)

    def _decode(
        self,
        x: mtf.Tensor,
        cache: BlockCache,
        context_bias: mtf.Tensor | None,
        cached_attention: CachedAttention,
    ) -> tuple[mtf.Tensor, BlockCache]:
        """Returns the residual stream after all sublayers without dropout, and the
        updated cache.

        Args:
          x: the residual stream before the block, [batch, d_model] or [batch, length,
            d_model].
          cache: the cache from the previous step, or from `init_cache`.
          context_bias: the bias of cross-attention scores; None: no bias.
          cached_attention: returns the output of self-attention and the updated cache.
        """
        # A sublayer returns one tensor, so it leaves the updated cache in this list.
        updated_caches = []

        def self_attention(h: mtf.Tensor) -> mtf.Tensor:
            """Returns the output of self-attention, and stores the updated cache."""
            y, updated_cache = cached_attention(h)
            updated_caches.append(updated_cache)
            return y

        x = self.residual(
            x,
            self.attention_norm,
            self.attention_dropout,
            training=False,
            sublayer=self_attention,
        )
        if cache.context is not None:
            x = self.residual(
                x,
                self.cross_attention_norm,
                self.cross_attention_dropout,
                training=False,
                sublayer=lambda h: self.cross_attention.attend_cached(
                    h, cache.context, context_bias
                ),
            )
        x, _ = self.feed_forward_sublayer(
            x, training=False, nonpadding=None, drop_free=True
        )
        return x, BlockCache(updated_caches[0], cache.context)

    def residual(
        self,
        x: mtf.Tensor,
        norm: Any,
        dropout: Any,
        training: bool,
        sublayer: Callable[[mtf.Tensor], mtf.Tensor],
    ) -> mtf.Tensor:
        """Returns x + dropout(sublayer(norm(x))) in a pre-norm architecture, and
        norm(x + dropout(sublayer(x))) in a post-norm one.

        Args:
          x: the residual stream, [batch, length, d_model] or [batch, d_model].
          norm: the norm layer of the sublayer.
          dropout: the dropout layer of the sublayer.
          training: whether dropout is applied.
          sublayer: a function of a tensor that returns one of the same shape.
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
          x: the residual stream before the sublayer, [batch, length, d_model] or [batch,
            d_model].
          training: whether dropout is applied.
          nonpadding: bool [batch, length]: True for tokens that go through experts;
            None: all do.
          drop_free: whether a mixture of experts routes each token as a separate group,
            in which no token is dropped. Decoding needs this: then the generated tokens
            do not depend on how many are processed at a time.
        """
        # A sublayer returns one tensor, so it leaves the report in this list.
        reports: list[Report] = []

        def feed_forward(h: mtf.Tensor) -> mtf.Tensor:
            """Returns the output of the layer, and stores the report of a mixture."""
            if not isinstance(self.feed_forward, MixtureOfExperts):
                return self.feed_forward(h, training)
            # Without a dimension "length", the router makes each token a group, so the
            # dimension gets another name for the call.
            new_names = {}
            if drop_free and LENGTH in h.shape.names:
                new_names = {LENGTH: f"{LENGTH}_ungrouped"}
            original_names = {new: old for old, new in new_names.items()}
            renamed = mtf.rename(h, new_names)
            y, report = self.feed_forward(
                renamed, training=training, nonpadding=nonpadding
            )
            reports.append(report)
            return mtf.rename(y, original_names)

        x = self.residual(
            x,
            self.feed_forward_norm,
            self.feed_forward_dropout,
            training=training,
            sublayer=feed_forward,
        )
        return x, reports[0] if reports else None


def _make_feed_forward(
    mesh: mtf.Mesh, architecture: Architecture, has_experts: bool, causal: bool
) -> Any:
    """Returns the layer of the feed-forward sublayer.

    Args:
      mesh: the mesh of the variables.
      architecture: the architecture.
      has_experts: whether the layer is a mixture of experts.
      causal: whether a token must not depend on later tokens.
    """
    settings: dict[str, Any] = {
        "activation": architecture.activation,
        "output_initializer": residual_initializer("d_ff", architecture),
    }
    if has_experts:
        mixture = architecture.mixture(
            mesh, architecture.dim("d_model"), architecture.dim("d_ff"), **settings
        )
        # If it is causal, the layer raises an error for a gating in which the experts of a
        # token depend on later tokens.
        mixture.causal = causal
        return mixture
    return mtf.layers.FeedForward(
        mesh,
        architecture.dim("d_model"),
        architecture.dim("d_ff"),
        use_bias=architecture.use_bias,
        **settings,
    )
