"""A block of a Transformer: attention, attention to a memory if there is one,
feed-forward.

    block = Block(mesh, architecture, causal=True, name="block_0")
    x, _ = block(x, sight, training=True)              # [batch length d_model] -> the same

Each part, a *half*, adds to a stream that runs through all blocks: x + f(norm(x)) where
norms come before, norm(x + f(x)) where they come after.
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
    into_stream,
    make_attention,
)


class Memory(NamedTuple):
    """What a decoder looks at besides itself."""

    x: mtf.Tensor  # [batch length d_model] of an encoder
    sight: AttentionMask  # who of the decoder sees what of it


class Caches(NamedTuple):
    """What a block keeps from one position to the next."""

    own: mtf.layers.Cache  # of its attention to what came before
    memory: mtf.layers.Cache | None = None  # keys and values of the memory


class Block(mtf.Module):
    """Two halves, or three with a memory.

    Args:
      mesh: where the variables lie.
      architecture: its sizes and kinds.
      causal: whether a token sees none after itself.
      across: whether there is a memory.
      mixed: whether the last half is a mixture of experts.
      name: the last part of the path of its variables.
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
        a = self.architecture = architecture
        with self.scope():
            self.attention_norm = a.make_norm(mesh, "attention_norm")
            self.attention = make_attention(mesh, a, causal, "attention")
            self.attention_dropout = mtf.layers.Dropout(
                a.dropout, name="attention_dropout"
            )
            if across:
                self.memory_norm = a.make_norm(mesh, "memory_attention_norm")
                self.memory_attention = make_attention(
                    mesh, a, False, "memory_attention", across=True
                )
                self.memory_dropout = mtf.layers.Dropout(
                    a.dropout, name="memory_attention_dropout"
                )
            self.feed_forward_norm = a.make_norm(mesh, "feed_forward_norm")
            self.feed_forward = _feed_forward(mesh, a, mixed, causal)
            self.feed_forward_dropout = mtf.layers.Dropout(
                a.dropout, name="feed_forward_dropout"
            )

    def __call__(
        self,
        x: mtf.Tensor,
        sight: AttentionMask,
        training: bool = False,
        memory: Memory | None = None,
    ) -> tuple[mtf.Tensor, Report | None]:
        """Returns the stream [batch length d_model] after all halves, and what a
        mixture reports.

        Args:
          x: the stream before.
          sight: who sees whom.
          training: whether to drop.
          memory: what is looked at besides.
        """
        x = self._half(
            x,
            self.attention_norm,
            self.attention_dropout,
            training,
            lambda h: attend(self.attention, h, sight, training),
        )
        if memory is not None:
            x = self._half(
                x,
                self.memory_norm,
                self.memory_dropout,
                training,
                lambda h: attend(
                    self.memory_attention, h, memory.sight, training, memory.x
                ),
            )
        return self._think(x, training, sight.looking.real)

    def caches(
        self, x: mtf.Tensor, rows: int, memory: mtf.Tensor | None = None
    ) -> Caches:
        """Returns what steps of the shape and type of x [batch d_model] begin with.

        Args:
          x: the stream at one position.
          rows: as many as are seen; local attention sees fewer.
          memory: what is looked at besides, [batch length d_model].
        """
        near = isinstance(self.attention, mtf.layers.LocalAttention)
        own = self.attention.empty_cache(x, *([] if near else [rows]))
        return Caches(
            own,
            None
            if memory is None
            else self.memory_attention.project_keys_values(memory),
        )

    def step(
        self,
        x: mtf.Tensor,
        caches: Caches,
        decode_step: mtf.layers.DecodeStep,
        memory_bias: mtf.Tensor | None,
    ) -> tuple[mtf.Tensor, Caches]:
        """Returns the stream [batch d_model] of one more position, and what is kept
        then.

        Args:
          x: the stream before, of this position.
          caches: what was kept at the position before.
          moment: what attention makes of the position.
          memory_bias: of its scores of the memory.
        """
        return self._writing(
            x,
            caches,
            memory_bias,
            lambda h: self.attention.step_at(h, caches.own, decode_step),
        )

    def prefill(
        self,
        x: mtf.Tensor,
        caches: Caches,
        last: mtf.Tensor,
        column: int,
        sight: AttentionMask,
        memory_bias: mtf.Tensor | None,
    ) -> tuple[mtf.Tensor, Caches]:
        """Returns the stream [batch length d_model], and what steps up to a position
        would keep.

        Args:
          x: the stream before, of the first positions.
          caches: from `caches`.
          last: the number of the last position that counts: int32, a scalar or [batch].
          column: of its step.
          sight: who sees whom.
          memory_bias: of scores of the memory.
        """

        def own(h: mtf.Tensor) -> tuple[mtf.Tensor, mtf.layers.Cache]:
            read = self.attention.project_keys_values(h, sight.angles)
            return (
                attend(self.attention, h, sight, False, read),
                self.attention.fill_cache(caches.own, read, last, column),
            )

        return self._writing(x, caches, memory_bias, own)

    def _writing(
        self,
        x: mtf.Tensor,
        caches: Caches,
        memory_bias: mtf.Tensor | None,
        own: Callable[[mtf.Tensor], tuple[mtf.Tensor, mtf.layers.Cache]],
    ) -> tuple[mtf.Tensor, Caches]:
        """Returns the stream after all halves, where the first is `own`, and what is
        kept then.
        """
        kept = []

        def first(h: mtf.Tensor) -> mtf.Tensor:
            y, cache = own(h)
            kept.append(cache)
            return y

        x = self._half(x, self.attention_norm, self.attention_dropout, False, first)
        if caches.memory is not None:
            x = self._half(
                x,
                self.memory_norm,
                self.memory_dropout,
                False,
                lambda h: self.memory_attention.attend_cached(
                    h, caches.memory, memory_bias
                ),
            )
        return self._think(x, False, None, alone=True)[0], Caches(
            kept[0], caches.memory
        )

    def _half(
        self,
        x: mtf.Tensor,
        norm: Any,
        dropout: Any,
        training: bool,
        f: Callable[[mtf.Tensor], mtf.Tensor],
    ) -> mtf.Tensor:
        if self.architecture.norm_place == "before":
            return x + dropout(f(norm(x)), training)
        return norm(x + dropout(f(x), training))

    def _think(
        self,
        x: mtf.Tensor,
        training: bool,
        real: mtf.Tensor | None,
        alone: bool = False,
    ) -> tuple[mtf.Tensor, Report | None]:
        """Returns the stream after the last half, and a mixture's report.

        If tokens are `alone`, a mixture drops none of them: so what is written does not
        depend on how many tokens were read at a time.
        """
        reports: list[Report] = []

        def think(h: mtf.Tensor) -> mtf.Tensor:
            if not isinstance(self.feed_forward, MixtureOfExperts):
                return self.feed_forward(h, training)
            apart = {n: f"{n}_alone" for n in h.shape.names if alone and n == LENGTH}
            y, report = self.feed_forward(mtf.rename(h, apart), training, real)
            reports.append(report)
            return mtf.rename(y, {new: old for old, new in apart.items()})

        x = self._half(
            x, self.feed_forward_norm, self.feed_forward_dropout, training, think
        )
        return x, reports[0] if reports else None


def _feed_forward(mesh: mtf.Mesh, a: Architecture, mixed: bool, causal: bool) -> Any:
    settings: dict[str, Any] = {
        "activation": a.activation,
        "output_initializer": into_stream("d_ff", a),
    }
    if mixed:
        mixture = a.mixture(mesh, a.dim("d_model"), a.dim("d_ff"), **settings)
        mixture.causal = causal
        return mixture
    return mtf.layers.FeedForward(
        mesh, a.dim("d_model"), a.dim("d_ff"), use_bias=a.use_bias, **settings
    )
