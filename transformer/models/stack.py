"""Blocks in a row: an encoder, a decoder, or a language model without its two ends.

Example:

    stack = Stack(mesh, architecture, causal=True, name="decoder")
    x, reports = stack(x, Places.of(tokens), training=True)

    held = stack.start(x, positions=128)                   # x [batch d_model], one position
    held = stack.prefill(prompt, held, lengths)            # [batch length d_model], all at once
    x, held = stack.step(x, held, position)                # position length, length + 1...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, cast

import meshtf as mtf
from transformer.experts.moe_layer import Report
from transformer.models.architecture import Architecture
from transformer.models.attention_mask import LENGTH, MEMORY, AttentionMask, TokenInfo
from transformer.models.block import Block, Caches, Memory

Turn: TypeAlias = Callable[[Block, mtf.Tensor, Caches], tuple[mtf.Tensor, Caches]]
_LAYERS = "layers"


class KeyValueCache(NamedTuple):
    """What a stack keeps from one position to the next."""

    blocks: Any  # Caches of each block; if scanned, stacked in one
    rows: mtf.Tensor  # the numbers of a cache's rows: int32 [memory_length]
    angles: mtf.layers.Angles | None = None  # rotary positions of all positions
    memory_bias: mtf.Tensor | None = None  # of scores of the memory
    behind: mtf.Tensor | None = None  # how far own positions lag: int32 [batch]


class Stack(mtf.Module):
    """Blocks, and a norm after the last one where norms come before halves.

    Args:
      mesh: where the variables lie.
      architecture: their sizes and kinds.
      causal: whether a token sees none after itself.
      across: whether blocks look at a memory besides.
      name: the last part of the path of its variables.
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
        a = self.architecture = architecture
        self.mesh, self.causal = mesh, causal
        with self.scope():
            self.relative = (
                mtf.layers.RelativeBias(
                    mesh,
                    a.head_dims,
                    a.buckets,
                    a.max_distance,
                    not causal,
                )
                if a.positions == "relative"
                else None
            )
            self.blocks: Any = self._make(across)
            self.norm = a.make_norm(mesh, "norm") if a.norm_place == "before" else None

    def _make(self, across: bool) -> Any:
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
        places: TokenInfo,
        training: bool = False,
        memory: mtf.Tensor | None = None,
        memory_places: TokenInfo | None = None,
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the stream [batch length d_model], and what mixtures of experts
        report.

        Args:
          x: the stream before.
          places: of its tokens.
          training: whether to drop.
          memory: what blocks look at besides, [batch length d_model].
          memory_places: of its tokens.
        """
        sight, around = self.sight(places), None
        if memory is not None:
            around = Memory(memory, self.memory_sight(places, memory_places))
        x, reports = self.through(x, sight, training, around)
        return self.finish(x), reports

    def sight(self, places: TokenInfo) -> AttentionMask:
        """Returns who sees whom among tokens."""
        return AttentionMask(self.architecture, places, self.causal, self.relative)

    def memory_sight(
        self, places: TokenInfo, memory: TokenInfo | None
    ) -> AttentionMask:
        """Returns who sees what of a memory."""
        assert memory is not None, "a memory has places"
        return AttentionMask(self.architecture, places, causal=False, memory=memory)

    def through(
        self, x: mtf.Tensor, sight: AttentionMask, training: bool, memory: Memory | None
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the stream after the last block, and reports by the names
        of blocks.
        """
        if self.architecture.attention != "blockwise":
            _ = (
                sight.bias,
                memory and memory.sight.bias,
            )  # made once, outside of any loop
        if self.architecture.scanned:
            x, each = self.blocks.each(
                lambda block, h, _: block(h, sight, training, memory), x
            )
            return x, {} if each is None else {"blocks": over_layers(each)}
        reports = {}
        for block in self.blocks:
            run = mtf.recompute(block) if self.architecture.recompute else block
            x, report = run(x, sight, training, memory)
            if report is not None:
                reports[block.path[-1]] = report
        return x, reports

    def finish(self, x: mtf.Tensor) -> mtf.Tensor:
        """Returns what follows the last block."""
        return x if self.norm is None else self.norm(x)

    def start(
        self,
        x: mtf.Tensor,
        positions: int,
        window: int | None = None,
        memory: mtf.Tensor | None = None,
        memory_places: TokenInfo | None = None,
    ) -> KeyValueCache:
        """Returns what is kept before the first step, for steps of the shape and type
        of x.

        Args:
          x: the stream at one position, [batch d_model].
          positions: how many come.
          window: how many of the last ones, itself included, a position sees; None:
            all.
          memory: what blocks look at besides, [batch length d_model].
          memory_places: of its tokens.
        """
        every = TokenInfo(mtf.range(self.mesh, mtf.Dimension(LENGTH, positions)))
        angles = AttentionMask(self.architecture, every, self.causal).angles
        rows = min(window or positions, positions)
        bias = None
        if memory is not None:
            at = TokenInfo(mtf.zeros(self.mesh, "", "int32"))
            bias = self.memory_sight(at, memory_places).bias
        if self.architecture.scanned:
            _, blocks = self.blocks.each(
                lambda block, h, _: (h, block.caches(h, rows, memory)), x
            )
        else:
            blocks = [block.caches(x, rows, memory) for block in self.blocks]
        numbers = mtf.range(self.mesh, mtf.Dimension(MEMORY, rows))
        return KeyValueCache(blocks, numbers, angles, bias)

    def prefill(
        self,
        x: mtf.Tensor,
        held: KeyValueCache,
        lengths: mtf.Tensor,
        prefix: bool = False,
    ) -> KeyValueCache:
        """Returns what is kept after the first positions, all of which go through
        blocks at once.

        All rows end at the same position for the steps that follow, which is that of
        the padded length: caches hold them so. A row's own positions are behind by the
        number of its padding.

        Args:
          x: the stream before the first block, [batch length d_model].
          held: from `start`.
          lengths: how many of the positions count: int32, a scalar or [batch]. The
            others are padding.
          prefix: whether positions that count are seen by those before them, too.
        """
        column = x.shape[LENGTH] - 1
        x = self._in_blocks(x)
        dim, rows = x.shape.dim(LENGTH), held.rows.shape.size
        positions = mtf.range(self.mesh, dim)
        places = TokenInfo(
            positions,
            prefix=mtf.outer(positions, lengths, mtf.less) if prefix else None,
        )
        sight = AttentionMask(
            self.architecture,
            places,
            self.causal,
            self.relative,
            window=rows if rows < dim.size else None,
        )
        if self.architecture.attention != "blockwise":
            _ = sight.bias  # made once, outside of any loop

        def turn(
            block: Block, h: mtf.Tensor, caches: Caches
        ) -> tuple[mtf.Tensor, Caches]:
            return block.prefill(
                h, caches, lengths - 1, column, sight, held.memory_bias
            )

        return held._replace(
            blocks=self._walk(turn, x, held.blocks)[1], behind=column + 1 - lengths
        )

    def own(self, position: mtf.Tensor, held: KeyValueCache) -> mtf.Tensor:
        """Returns rows' own positions at a step: int32, a scalar or [batch].

        Rows that have their last one may go on while others are written: they stay
        there.
        """
        if held.behind is None:
            return position
        a, own = self.architecture, position - held.behind
        most = (
            a.max_length
            if a.positions == "learned"
            else held.angles.cos.shape[LENGTH]
            if held.angles
            else None
        )
        return own if most is None else mtf.minimum(own, most - 1)

    def _in_blocks(self, x: mtf.Tensor) -> mtf.Tensor:
        """Returns the stream, padded to what attention in blocks can part."""
        a, size = self.architecture, x.shape[LENGTH]
        more = (
            -size % a.block_length
            if a.attention != "full" and size > a.block_length
            else 0
        )
        return mtf.pad(x, LENGTH, 0, more)

    def step(
        self,
        x: mtf.Tensor,
        held: KeyValueCache,
        position: mtf.Tensor,
        own: mtf.Tensor | None = None,
    ) -> tuple[mtf.Tensor, KeyValueCache]:
        """Returns the stream [batch d_model] of one more position, and what is kept
        then.

        Args:
          x: the stream before the first block.
          held: what was kept at the position before.
          position: its number: int32, a scalar.
          own: rows' own positions; None: those of `own`.
        """
        own = self.own(position, held) if own is None else own
        first, caches = (
            (self.blocks.layer, held.blocks)
            if self.architecture.scanned
            else (self.blocks[0], held.blocks[0])
        )
        decode_step = first.attention.decode_step(
            caches.own, own, held.angles, self._distance(held.rows, position), position
        )

        def turn(
            block: Block, h: mtf.Tensor, caches: Caches
        ) -> tuple[mtf.Tensor, Caches]:
            return block.step(h, caches, decode_step, held.memory_bias)

        x, blocks = self._walk(turn, x, held.blocks)
        return self.finish(x), held._replace(blocks=blocks)

    def _walk(self, turn: Turn, x: mtf.Tensor, caches: Any) -> tuple[mtf.Tensor, Any]:
        """Returns the stream after the last block, and the caches of all blocks."""
        if self.architecture.scanned:
            return cast(tuple[mtf.Tensor, Any], self.blocks.each(turn, x, caches))
        kept = []
        for block, cache in zip(self.blocks, caches):
            x, cache = turn(block, x, cache)
            kept.append(cache)
        return x, kept

    def _distance(self, rows: mtf.Tensor, position: mtf.Tensor) -> mtf.Tensor | None:
        """Returns the bias by which a position sees what a cache's rows hold,
        [memory_length ...].
        """
        age = (position - rows) % rows.shape.size
        memory = TokenInfo(mtf.rename(position - age, MEMORY, LENGTH))
        sight = AttentionMask(
            self.architecture, TokenInfo(position), self.causal, self.relative, memory
        )
        return sight.distance(sight.looking)


def over_layers(each: Report) -> Report:
    """Returns one report for several layers: the sum of losses, and means."""
    return Report(
        mtf.reduce_sum(each.loss),
        mtf.reduce_mean(each.load, _LAYERS),
        mtf.reduce_mean(each.dropped),
        mtf.reduce_mean(each.entropy),
    )
