"""A stack of blocks: an encoder, a decoder, or a language model without embedding and
logits.

Example:

    stack = Stack(mesh, architecture, causal=True, name="decoder")
    x, reports = stack(x, TokenInfo.of(tokens), training=True)

    cache = stack.init_cache(x, positions=128)         # x [batch, d_model], one position
    cache = stack.prefill(prompt, cache, lengths)      # [batch, length, d_model], all at once
    x, cache = stack.decode_step(x, cache, position)    # position length, length + 1...

While decoding, an *example* is an entry of the batch, and a *slot* an entry of a cache
along `kv_length`. A cache with fewer slots than positions is a ring buffer: position
p is stored in slot p % num_slots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import meshtf as mtf
from transformer.experts.moe_layer import Report
from transformer.models.architecture import Architecture
from transformer.models.attention_mask import (
    KV_LENGTH,
    LENGTH,
    AttentionMask,
    TokenInfo,
)
from transformer.models.block import Block, BlockCache, Context
from transformer.models.key_value_cache import KeyValueCache

BlockStep: TypeAlias = Callable[
    [Block, mtf.Tensor, BlockCache], tuple[mtf.Tensor, BlockCache]
]
_LAYERS = "layers"


class Stack(mtf.Module):
    """Blocks, and a norm after the last one where norms come before sublayers.

    Args:
      mesh: the mesh of the variables.
      architecture: their sizes and kinds.
      causal: whether a token attends only to itself and to earlier tokens.
      across: whether blocks have cross-attention to an encoder's output.
      name: the last component of the path of its variables.
    """

    def __init__(
        self,
        mesh: mtf.Mesh,
        architecture: Architecture,
        causal: bool,
        across: bool = False,
        name: str = "stack",
    ) -> None:
        super().__init__(name)
        self.architecture = architecture
        self.mesh = mesh
        self.causal = causal
        with self.scope():
            self.relative = self._make_relative_bias()
            self.blocks: Any = self._make_blocks(across)
            self.norm = (
                architecture.make_norm(mesh, "norm")
                if architecture.norm_place == "before"
                else None
            )

    def _make_relative_bias(self) -> mtf.layers.RelativeBias | None:
        """Returns the bias of relative positions that all blocks share, if any."""
        a = self.architecture
        if a.positions != "relative":
            return None
        return mtf.layers.RelativeBias(
            self.mesh,
            a.head_dims,
            a.buckets,
            a.max_distance,
            both_ways=not self.causal,
        )

    def _make_blocks(self, across: bool) -> Any:
        """Returns a list of blocks, or one `Repeat` of scanned blocks."""
        a = self.architecture

        def block(mixed: bool, name: str) -> Block:
            return Block(self.mesh, a, self.causal, across, mixed, name)

        if a.scanned:
            return mtf.layers.Repeat(
                lambda: block(a.moe_every == 1, "block"),
                mtf.Dimension(_LAYERS, a.blocks),
                a.recompute,
                name="blocks",
            )
        return [
            block(a.moe_every > 0 and (i + 1) % a.moe_every == 0, f"block_{i}")
            for i in range(a.blocks)
        ]

    def __call__(
        self,
        x: mtf.Tensor,
        token_info: TokenInfo,
        training: bool = False,
        context: mtf.Tensor | None = None,
        context_info: TokenInfo | None = None,
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the residual stream [batch, length, d_model] after the last block and
        norm, and the reports of mixtures of experts by block name.

        Args:
          x: the embedded tokens, of the same shape.
          token_info: positions and segments of the tokens.
          training: whether dropout is applied.
          context: an encoder's output, [batch, length, d_model].
          context_info: positions and segments of the encoder's tokens.
        """
        cross_attention = None
        if context is not None:
            context_mask = self.context_mask(token_info, context_info)
            cross_attention = Context(context, context_mask)
        attention_mask = self.attention_mask(token_info)
        x, reports = self.run_blocks(x, attention_mask, training, cross_attention)
        return self.final_norm(x), reports

    def attention_mask(self, token_info: TokenInfo) -> AttentionMask:
        """Returns the mask of self-attention."""
        return AttentionMask(self.architecture, token_info, self.causal, self.relative)

    def context_mask(
        self, token_info: TokenInfo, context_info: TokenInfo | None
    ) -> AttentionMask:
        """Returns the mask of cross-attention."""
        assert context_info is not None, "a context has positions"
        return AttentionMask(
            self.architecture, token_info, causal=False, context=context_info
        )

    def run_blocks(
        self,
        x: mtf.Tensor,
        attention_mask: AttentionMask,
        training: bool,
        context: Context | None,
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the residual stream after the last block, and reports by block name."""
        self._prepare_bias(attention_mask)
        if context is not None:
            self._prepare_bias(context.attention_mask)
        if self.architecture.scanned:
            return self._run_scanned(x, attention_mask, training, context)
        reports = {}
        for block in self.blocks:
            run = mtf.recompute(block) if self.architecture.recompute else block
            x, report = run(x, attention_mask, training, context)
            if report is not None:
                reports[block.path[-1]] = report
        return x, reports

    def _prepare_bias(self, attention_mask: AttentionMask) -> None:
        """Computes the bias, which is cached, outside of any loop. Blockwise attention
        computes it block by block instead.
        """
        if self.architecture.attention != "blockwise":
            _ = attention_mask.bias

    def _run_scanned(
        self,
        x: mtf.Tensor,
        attention_mask: AttentionMask,
        training: bool,
        context: Context | None,
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns what `run_blocks` does, for blocks that are one traced body."""
        x, stacked_report = self.blocks.each(
            lambda block, h, _: block(h, attention_mask, training, context), x
        )
        if stacked_report is None:
            return x, {}
        return x, {"blocks": over_layers(stacked_report)}

    def final_norm(self, x: mtf.Tensor) -> mtf.Tensor:
        """Returns x after the norm that follows the last block, if there is one."""
        return x if self.norm is None else self.norm(x)

    def init_cache(
        self,
        x: mtf.Tensor,
        positions: int,
        window: int | None = None,
        context: mtf.Tensor | None = None,
        context_info: TokenInfo | None = None,
    ) -> KeyValueCache:
        """Returns the cache before the first decoding step.

        Args:
          x: the residual stream at one position, [batch, d_model]; only its shape and
            type count.
          positions: how many positions are decoded at most.
          window: how many of the last positions a token attends to, itself included;
            None: all.
          context: an encoder's output, [batch, length, d_model].
          context_info: positions and segments of the encoder's tokens.
        """
        all_positions = TokenInfo(
            mtf.range(self.mesh, mtf.Dimension(LENGTH, positions))
        )
        rope = AttentionMask(self.architecture, all_positions, self.causal).rope
        num_slots = min(window or positions, positions)
        context_bias = None
        if context is not None:
            # Cross-attention depends on padding of the context only: any position will do.
            one_position = TokenInfo(mtf.zeros(self.mesh, "", "int32"))
            context_bias = self.context_mask(one_position, context_info).bias
        if self.architecture.scanned:
            _, blocks = self.blocks.each(
                lambda block, h, _: (h, block.init_cache(h, num_slots, context)), x
            )
        else:
            blocks = [block.init_cache(x, num_slots, context) for block in self.blocks]
        slots = mtf.range(self.mesh, mtf.Dimension(KV_LENGTH, num_slots))
        return KeyValueCache(blocks, slots, rope, context_bias)

    def prefill(
        self,
        x: mtf.Tensor,
        cache: KeyValueCache,
        lengths: mtf.Tensor,
        prefix_lm: bool = False,
    ) -> KeyValueCache:
        """Returns the cache after the prompts, whose positions are processed all at once.

        All examples use the padded length as the common position of the next step, and
        their caches are filled accordingly. The true position of an example is that
        minus its padding.

        Args:
          x: the embedded prompts, [batch, length, d_model].
          cache: from `init_cache`.
          lengths: how many tokens of each prompt are no padding: int32, a scalar or
            [batch].
          prefix_lm: whether the tokens of a prompt attend to later ones of it, too.
        """
        last_step = x.shape[LENGTH] - 1
        x = self._pad_to_blocks(x)
        attention_mask = self._prompt_mask(x, cache, lengths if prefix_lm else None)
        self._prepare_bias(attention_mask)

        def block_step(
            block: Block, h: mtf.Tensor, block_cache: BlockCache
        ) -> tuple[mtf.Tensor, BlockCache]:
            return block.prefill(
                h,
                block_cache,
                lengths - 1,
                last_step,
                attention_mask,
                cache.context_bias,
            )

        _, blocks = self._run_cached(block_step, x, cache.blocks)
        return cache._replace(blocks=blocks, padding=last_step + 1 - lengths)

    def _prompt_mask(
        self, x: mtf.Tensor, cache: KeyValueCache, prefix_lengths: mtf.Tensor | None
    ) -> AttentionMask:
        """Returns the mask of prompts x [batch, length, d_model], in which the positions
        below `prefix_lengths` are visible to all; None: to later ones only.
        """
        dim = x.shape.dim(LENGTH)
        num_slots = cache.slots.shape.size
        positions = mtf.range(self.mesh, dim)
        prefix = None
        if prefix_lengths is not None:
            prefix = mtf.outer(positions, prefix_lengths, mtf.less)
        return AttentionMask(
            self.architecture,
            TokenInfo(positions, prefix=prefix),
            self.causal,
            self.relative,
            window=num_slots if num_slots < dim.size else None,
        )

    def example_positions(
        self, position: mtf.Tensor, cache: KeyValueCache
    ) -> mtf.Tensor:
        """Returns the position of each example at a step: int32, a scalar or [batch].

        An example that has finished keeps being stepped with the batch; its position is
        clamped to the last valid one.
        """
        if cache.padding is None:
            return position
        positions = position - cache.padding
        if self.architecture.positions == "learned":
            return mtf.minimum(positions, self.architecture.max_length - 1)
        if cache.rope is not None:
            return mtf.minimum(positions, cache.rope.cos.shape[LENGTH] - 1)
        return positions

    def _pad_to_blocks(self, x: mtf.Tensor) -> mtf.Tensor:
        """Returns x with `length` padded to a multiple of the blocks of attention."""
        a = self.architecture
        size = x.shape[LENGTH]
        if a.attention == "full" or size <= a.block_length:
            return mtf.pad(x, LENGTH, 0, 0)
        return mtf.pad(x, LENGTH, 0, -size % a.block_length)

    def decode_step(
        self,
        x: mtf.Tensor,
        cache: KeyValueCache,
        position: mtf.Tensor,
        example_positions: mtf.Tensor | None = None,
    ) -> tuple[mtf.Tensor, KeyValueCache]:
        """Returns the residual stream [batch, d_model] at one position, after the last
        block and norm, and the updated cache.

        Args:
          x: the embedded tokens at this position, [batch, d_model].
          cache: from the previous step, from `prefill` or from `init_cache`.
          position: of the step, common to all examples: int32, a scalar.
          example_positions: of each example; None: what `example_positions` returns.
        """
        if example_positions is None:
            example_positions = self.example_positions(position, cache)
        if self.architecture.scanned:
            first_block, first_cache = self.blocks.layer, cache.blocks
        else:
            first_block, first_cache = self.blocks[0], cache.blocks[0]
        # All blocks have attention of one kind, so the first makes it for all of them.
        decode_step = first_block.attention.prepare_decode_step(
            first_cache.self_attention,
            example_positions,
            cache.rope,
            self._distance_bias(cache.slots, position),
            position,
        )

        def block_step(
            block: Block, h: mtf.Tensor, block_cache: BlockCache
        ) -> tuple[mtf.Tensor, BlockCache]:
            return block.decode_step(h, block_cache, decode_step, cache.context_bias)

        x, blocks = self._run_cached(block_step, x, cache.blocks)
        return self.final_norm(x), cache._replace(blocks=blocks)

    def _run_cached(
        self, block_step: BlockStep, x: mtf.Tensor, block_caches: Any
    ) -> tuple[mtf.Tensor, Any]:
        """Returns the residual stream after the last block, and the caches of all blocks
        after a step.
        """
        if self.architecture.scanned:
            result = self.blocks.each(block_step, x, block_caches)
            return cast(tuple[mtf.Tensor, Any], result)
        updated_caches = []
        for block, block_cache in zip(self.blocks, block_caches):
            x, updated_cache = block_step(block, x, block_cache)
            updated_caches.append(updated_cache)
        return x, updated_caches

    def _distance_bias(
        self, slots: mtf.Tensor, position: mtf.Tensor
    ) -> mtf.Tensor | None:
        """Returns the bias [kv_length, ...] by the distance of a position from the
        position that each slot stores.
        """
        age = (position - slots) % slots.shape.size
        slot_positions = TokenInfo(mtf.rename(position - age, KV_LENGTH, LENGTH))
        attention_mask = AttentionMask(
            self.architecture,
            TokenInfo(position),
            self.causal,
            self.relative,
            slot_positions,
        )
        return attention_mask.distance_bias(attention_mask.queries)


def over_layers(stacked: Report) -> Report:
    """Returns one report for several layers: the sum of losses, and means of the rest.

    Args:
      stacked: the reports of the layers, with `layers` in front of each tensor.
    """
    return Report(
        mtf.reduce_sum(stacked.loss),
        mtf.reduce_mean(stacked.load, _LAYERS),
        mtf.reduce_mean(stacked.dropped),
        mtf.reduce_mean(stacked.entropy),
    )
