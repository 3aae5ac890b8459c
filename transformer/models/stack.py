"""A stack of blocks: an encoder, a decoder, or a language model without embedding and
logits.

    stack = Stack(mesh, architecture, causal=True, name="decoder")
    x, reports = stack(x, TokenInfo.of(tokens), training=True)

    cache = stack.init_cache(x, num_positions=128)     # x [batch, d_model], one position
    cache = stack.prefill(prompt, cache, lengths)      # [batch, length, d_model], all at once
    x, cache = stack.decode_step(x, cache, position)   # position: length, length + 1, ...

While decoding, an *example* is one sequence of the batch, and a *slot* of a cache stores
the keys and values of one position. A cache with fewer slots than positions is a ring
buffer: position p is stored in slot p % num_slots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import meshtf as mtf
from transformer.experts.moe_layer import Report, reduce_report
from transformer.models.architecture import Architecture
from transformer.models.attention_mask import AttentionMask, pad_to_blocks
from transformer.models.block import Block, BlockCache, Context
from transformer.models.key_value_cache import KeyValueCache
from transformer.models.token_info import KV_LENGTH, LENGTH, TokenInfo

# Runs one block on a cache: (block, x, cache) -> (x, updated cache).
BlockStep: TypeAlias = Callable[
    [Block, mtf.Tensor, BlockCache], tuple[mtf.Tensor, BlockCache]
]
_LAYERS = "layers"  # the dimension along which variables of scanned blocks are stacked


class Stack(mtf.Module):
    """A sequence of blocks; a pre-norm architecture has a norm after the last block.

    Args:
      mesh: the mesh of the variables.
      architecture: the sizes and kinds of the layers.
      causal: whether a token attends only to itself and to earlier tokens.
      has_cross_attention: whether blocks have cross-attention to an encoder's output.
      name: the last component of the path of the stack's variables.

    Attributes:
      blocks: the list of blocks. If the architecture is scanned, one `Repeat` instead: it
        runs one block in a loop over layers, with variables stacked along `layers`.
    """

    def __init__(
        self,
        mesh: mtf.Mesh,
        architecture: Architecture,
        causal: bool,
        has_cross_attention: bool = False,
        name: str = "stack",
    ) -> None:
        super().__init__(name)
        self.architecture = architecture
        self.mesh = mesh
        self.causal = causal
        with self.scope():
            self.relative = self._make_relative_bias()
            self.blocks: Any = self._make_blocks(has_cross_attention)
            self.norm = None
            if architecture.norm_place == "before":
                self.norm = architecture.make_norm(mesh, "norm")

    def _make_relative_bias(self) -> mtf.layers.RelativeBias | None:
        """Returns the bias of relative positions that all blocks share, if any."""
        if self.architecture.positions != "relative":
            return None
        return mtf.layers.RelativeBias(
            self.mesh,
            self.architecture.head_dims,
            buckets=self.architecture.buckets,
            max_distance=self.architecture.max_distance,
            both_ways=not self.causal,
        )

    def _make_blocks(self, has_cross_attention: bool) -> Any:
        """Returns a list of blocks; or one `Repeat`, if blocks are scanned."""
        architecture = self.architecture
        moe_every = architecture.moe_every

        def make_block(has_experts: bool, name: str) -> Block:
            return Block(
                self.mesh,
                architecture,
                causal=self.causal,
                has_cross_attention=has_cross_attention,
                has_experts=has_experts,
                name=name,
            )

        if architecture.scanned:
            return mtf.layers.Repeat(
                lambda: make_block(has_experts=moe_every == 1, name="block"),
                mtf.Dimension(_LAYERS, architecture.blocks),
                recomputed=bool(architecture.recompute),
                stored=architecture.stored_sublayers(has_cross_attention),
                name="blocks",
            )
        blocks = []
        for index in range(architecture.blocks):
            has_experts = moe_every > 0 and (index + 1) % moe_every == 0
            blocks.append(make_block(has_experts, name=f"block_{index}"))
        return blocks

    def __call__(
        self,
        x: mtf.Tensor,
        token_info: TokenInfo,
        training: bool = False,
        context: mtf.Tensor | None = None,
        context_info: TokenInfo | None = None,
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the residual stream [batch, length, d_model] after the last block and
        norm, and a dict of block name -> report of the block's mixture of experts.

        Args:
          x: the embedded tokens, [batch, length, d_model].
          token_info: positions and segments of the tokens.
          training: whether dropout is applied.
          context: an encoder's output, [batch, length, d_model]; None: no encoder.
          context_info: positions and segments of the encoder's tokens.
        """
        masked_context = None
        if context is not None:
            context_mask = self.context_mask(token_info, context_info)
            masked_context = Context(context, context_mask)
        attention_mask = self.attention_mask(token_info)
        x, reports = self.run_blocks(x, attention_mask, training, masked_context)
        return self.final_norm(x), reports

    def attention_mask(self, token_info: TokenInfo) -> AttentionMask:
        """Returns the self-attention mask of tokens."""
        return AttentionMask(
            self.architecture, token_info, causal=self.causal, relative=self.relative
        )

    def context_mask(
        self, token_info: TokenInfo, context_info: TokenInfo | None
    ) -> AttentionMask:
        """Returns the mask of cross-attention from tokens to an encoder's tokens."""
        assert context_info is not None, "as there is an encoder's output"
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
        """Returns the residual stream [batch, length, d_model] after the last block,
        without the final norm, and a dict of block name -> report.
        """
        self._prepare_bias(attention_mask)
        if context is not None:
            self._prepare_bias(context.attention_mask)
        if self.architecture.scanned:
            return self._run_scanned(x, attention_mask, training, context)
        reports = {}
        stored = self.architecture.stored_sublayers(context is not None)
        for block in self.blocks:
            run = block
            if self.architecture.recompute:
                run = mtf.recompute(block, stored)
            x, report = run(x, attention_mask, training, context)
            if report is not None:
                reports[block.path[-1]] = report
        return x, reports

    def _prepare_bias(self, attention_mask: AttentionMask) -> None:
        """Computes the bias of a mask once, before the loop over blocks that uses it."""
        # Attention in blocks or chunks never holds the entire bias: it computes one for each
        # of them.
        if self.architecture.attention in ("full", "local"):
            attention_mask.prepare()

    def _run_scanned(
        self,
        x: mtf.Tensor,
        attention_mask: AttentionMask,
        training: bool,
        context: Context | None,
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the results of `run_blocks`, for scanned blocks."""
        # As in `lax.scan`: (block, carry, inputs of the layer) -> (next carry, outputs).
        x, stacked_report = self.blocks.each(
            lambda block, h, _: block(h, attention_mask, training, context), x
        )
        if stacked_report is None:
            return x, {}
        return x, {"blocks": reduce_report(stacked_report, _LAYERS)}

    def final_norm(self, x: mtf.Tensor) -> mtf.Tensor:
        """Returns x after the norm that follows the last block, if there is one."""
        return x if self.norm is None else self.norm(x)

    def init_cache(
        self,
        x: mtf.Tensor,
        num_positions: int,
        window: int | None = None,
        context: mtf.Tensor | None = None,
        context_info: TokenInfo | None = None,
    ) -> KeyValueCache:
        """Returns the cache before the first decoding step.

        Args:
          x: a residual stream at one position, [batch, d_model]; only its shape and dtype
            are used.
          num_positions: the maximum count of positions, of a prompt and its new tokens.
          window: the count of the last positions that a token attends to, including
            its own; None: all.
          context: an encoder's output, [batch, length, d_model]; None: no encoder.
          context_info: positions and segments of the encoder's tokens.
        """
        all_positions = mtf.range(self.mesh, mtf.Dimension(LENGTH, num_positions))
        rope = self.attention_mask(TokenInfo(all_positions)).rope
        windows = (window, self.architecture.window, num_positions)
        num_slots = min(size for size in windows if size is not None)
        context_bias = None
        if context is not None:
            # The mask of cross-attention depends only on padding of the context, not on
            # the position of the query, so one bias serves all positions.
            one_position = TokenInfo(mtf.zeros(self.mesh, "", "int32"))
            context_bias = self.context_mask(one_position, context_info).bias
        if self.architecture.scanned:
            # The carry x passes unchanged; the outputs, the caches, are stacked.
            _, block_caches = self.blocks.each(
                lambda block, h, _: (h, block.init_cache(h, num_slots, context)), x
            )
        else:
            block_caches = [
                block.init_cache(x, num_slots, context) for block in self.blocks
            ]
        slots = mtf.range(self.mesh, mtf.Dimension(KV_LENGTH, num_slots))
        return KeyValueCache(block_caches, slots, rope=rope, context_bias=context_bias)

    def prefill(
        self,
        x: mtf.Tensor,
        cache: KeyValueCache,
        lengths: mtf.Tensor,
        prefix_lm: bool = False,
    ) -> KeyValueCache:
        """Returns the cache after the prompts; all their positions are processed at once.

        The next step is at position `length`, the padded length of the prompts, for all
        examples: see `KeyValueCache.padding`.

        Args:
          x: the embedded prompts, [batch, length, d_model], padded at the end.
          cache: an empty cache, from `init_cache`.
          lengths: the count of tokens of each prompt without padding: int32, a scalar or
            [batch].
          prefix_lm: whether tokens of a prompt also attend to later tokens of the prompt.
        """
        padded_length = x.shape[LENGTH]
        x = pad_to_blocks(x, self.architecture)
        attention_mask = self._prompt_mask(x, cache, lengths if prefix_lm else None)
        self._prepare_bias(attention_mask)

        def block_step(
            block: Block, h: mtf.Tensor, block_cache: BlockCache
        ) -> tuple[mtf.Tensor, BlockCache]:
            return block.prefill(
                h,
                block_cache,
                last=lengths - 1,
                step_index=padded_length - 1,
                attention_mask=attention_mask,
                context_bias=cache.context_bias,
            )

        _, block_caches = self._run_cached(block_step, x, cache.blocks)
        return cache._replace(blocks=block_caches, padding=padded_length - lengths)

    def _prompt_mask(
        self, x: mtf.Tensor, cache: KeyValueCache, prefix_lengths: mtf.Tensor | None
    ) -> AttentionMask:
        """Returns the self-attention mask of prompts.

        Args:
          x: the embedded prompts, [batch, length, d_model].
          cache: a cache; its count of slots is the window of attention in long prompts.
          prefix_lengths: the count of the first positions that all positions attend to,
            int32, a scalar or [batch]; None: attention is causal everywhere.
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
            causal=self.causal,
            relative=self.relative,
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
          cache: the cache from the previous step, from `prefill` or from `init_cache`.
          position: the position of the step, common to all examples: int32, a scalar.
          example_positions: the position of each example, int32, a scalar or [batch]; None:
            the result of the method `example_positions`.
        """
        if example_positions is None:
            example_positions = self.example_positions(position, cache)
        if self.architecture.scanned:
            first_block = self.blocks.layer
            first_cache = cache.blocks
        else:
            first_block = self.blocks[0]
            first_cache = cache.blocks[0]
        # All blocks have the same kind of attention: one preparation serves all of them.
        decode_step = first_block.attention.prepare_decode_step(
            first_cache.self_attention,
            example_positions,
            rope=cache.rope,
            bias=self._distance_bias(cache.slots, position),
            step_index=position,
        )

        def block_step(
            block: Block, h: mtf.Tensor, block_cache: BlockCache
        ) -> tuple[mtf.Tensor, BlockCache]:
            return block.decode_step(h, block_cache, decode_step, cache.context_bias)

        x, block_caches = self._run_cached(block_step, x, cache.blocks)
        return self.final_norm(x), cache._replace(blocks=block_caches)

    def _run_cached(
        self, block_step: BlockStep, x: mtf.Tensor, block_caches: Any
    ) -> tuple[mtf.Tensor, Any]:
        """Runs `block_step` on every block; returns the residual stream after the last
        block, and the updated cache of each block.
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
        """Returns the bias by the distance between a step's position and the position in
        each slot, [kv_length, *heads]; None: the architecture has no such bias.
        """
        # A ring buffer: slot s stores the latest position p with p % num_slots == s.
        age = (position - slots) % slots.shape.size
        slot_positions = TokenInfo(mtf.rename(position - age, KV_LENGTH, LENGTH))
        attention_mask = AttentionMask(
            self.architecture,
            TokenInfo(position),
            causal=self.causal,
            relative=self.relative,
            context=slot_positions,
        )
        return attention_mask.distance_bias()
