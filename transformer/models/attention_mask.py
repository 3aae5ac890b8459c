"""Which tokens see which, and what attention knows of where they are.

    places = Places(mtf.range(mesh, "length:128"))
    sight = Sight(architecture, places, causal=True, relative=None)
    attend(attention, x, sight, training=False)

Positions that are looked at are called `memory_length`. Rows may hold several texts:
each is a *segment*, from 1 on, with positions from 0 on; 0 is padding. A prefix is seen
by all of its segment.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import meshtf as mtf
from transformer.models.architecture import Architecture

LENGTH, MEMORY = "length", "memory_length"


class TokenInfo(NamedTuple):
    """What is known of tokens besides what they are."""

    positions: mtf.Tensor  # integers [length] or [batch length]
    segments: mtf.Tensor | None = (
        None  # integers [batch length]: who sees whom; 0 is padding
    )
    prefix: mtf.Tensor | None = None  # bool [batch length]: seen by those before, too

    @classmethod
    def of(
        cls,
        tokens: mtf.Tensor,
        positions: mtf.Tensor | None = None,
        segments: mtf.Tensor | None = None,
        prefix: mtf.Tensor | None = None,
    ) -> TokenInfo:
        """Returns the places of tokens [batch length]; one text a row, where nothing
        else is said.
        """
        if positions is None:
            positions = mtf.range(tokens.mesh, tokens.shape.dim(LENGTH))
        return cls(
            positions, segments, None if prefix is None else mtf.cast(prefix, "bool")
        )

    def as_memory(self) -> TokenInfo:
        """Returns these places as what is looked at."""

        def renamed(x: mtf.Tensor | None) -> mtf.Tensor | None:
            return None if x is None else mtf.rename(x, LENGTH, MEMORY)

        return TokenInfo(
            mtf.rename(self.positions, LENGTH, MEMORY),
            renamed(self.segments),
            renamed(self.prefix),
        )

    @property
    def real(self) -> mtf.Tensor | None:
        """Bool [batch length], which are no padding; None: all."""
        return None if self.segments is None else self.segments > 0


def visible(
    looking: TokenInfo, memory: TokenInfo, causal: bool, window: int | None = None
) -> mtf.Tensor | None:
    """Returns [..., length memory_length], bool: who sees whom; None: all see all.

    Padding is seen by none. It sees all that is real itself, as in BERT, whose span
    extractors have logits of padding, too. With a window a position sees so many of the
    last ones, itself included.
    """
    found = []
    if causal:
        behind = mtf.outer(looking.positions, memory.positions, mtf.greater_equal)
        found.append(
            behind
            if memory.prefix is None
            else mtf.outer(behind, memory.prefix, mtf.logical_or)
        )
    if window is not None:
        found.append(
            mtf.outer(looking.positions, memory.positions, mtf.subtract) < window
        )
    if looking.segments is not None and memory.segments is not None:
        alike = mtf.outer(looking.segments, memory.segments, mtf.equal)
        found.append((alike | (looking.segments == 0)) & (memory.segments > 0))
    elif memory.segments is not None:
        found.append(memory.segments > 0)
    return (
        functools.reduce(lambda x, y: mtf.outer(x, y, mtf.logical_and), found)
        if found
        else None
    )


class AttentionMask:
    """What all attentions of a stack are told alike.

    Args:
      architecture: of the stack.
      looking: the tokens that look.
      causal: whether a token sees none after itself.
      relative: the learned bias of relative positions, where the architecture has it.
      memory: the tokens that are looked at, if they are others.
      window: how many of the last positions each sees, itself included; None: all.
    """

    def __init__(
        self,
        architecture: Architecture,
        looking: TokenInfo,
        causal: bool,
        relative: mtf.layers.RelativeBias | None = None,
        memory: TokenInfo | None = None,
        window: int | None = None,
    ) -> None:
        self.architecture, self.looking, self.causal = architecture, looking, causal
        self.window = window
        self.relative, self.itself = relative, memory is None
        self.memory = (looking if memory is None else memory).as_memory()
        positions = architecture.positions if self.itself else "none"
        self.angles = (
            mtf.layers.rotary_angles(
                looking.positions,
                architecture.dim("d_kv"),
                architecture.rotary_base,
            )
            if positions == "rotary"
            else None
        )

    @functools.cached_property
    def bias(self) -> mtf.Tensor | None:
        """What is added to all scores, [..., length memory_length]; None: nothing."""
        return self.bias_of(self.looking)

    def bias_of(self, looking: TokenInfo) -> mtf.Tensor | None:
        """Returns what is added to the scores of some of those that look."""
        seen = visible(looking, self.memory, self.causal, self.window)
        bias = None if seen is None else mtf.layers.mask_bias(seen)
        far = self.distance(looking) if self.itself else None
        return (
            far
            if bias is None
            else bias
            if far is None
            else mtf.outer(far, bias, mtf.add)
        )

    def distance(self, looking: TokenInfo) -> mtf.Tensor | None:
        """Returns the part of the bias that tells how far apart tokens are."""
        if self.relative is not None:
            return self.relative(looking.positions, self.memory.positions)
        if self.architecture.positions == "sloped":
            return mtf.layers.distance_slopes(
                looking.positions, self.memory.positions, self.architecture.head_dims
            )
        return None


def make_attention(
    mesh: mtf.Mesh, a: Architecture, causal: bool, name: str, across: bool = False
) -> Any:
    """Returns an attention layer; `across` to another memory it is never local."""
    settings: dict[str, Any] = {
        "dropout_rate": a.dropout,
        "use_bias": a.use_bias,
        "name": name,
        "output_initializer": into_stream(";".join([*a.head_dims.names, "d_kv"]), a),
        "memory_heads_dim": a.kv_head_dims,
        "scale": None if a.scaled_attention else 1.0,
    }
    sizes = (mesh, a.dim("d_model"), a.head_dims, a.dim("d_kv"))
    block = mtf.Dimension(LENGTH, a.block_length)
    if a.attention == "blockwise":
        return mtf.layers.BlockwiseAttention(*sizes, block=block, **settings)
    if a.attention == "local" and not across:
        return mtf.layers.LocalAttention(
            *sizes, blocks=block, radius=block, causal=causal, **settings
        )
    return mtf.layers.MultiHeadAttention(*sizes, **settings)


def attend(
    attention: Any,
    x: mtf.Tensor,
    sight: AttentionMask,
    training: bool,
    memory: mtf.Tensor | mtf.layers.Cache | None = None,
) -> mtf.Tensor:
    """Returns what an attention layer makes of x [batch length d_model].

    Args:
      attention: from `make_attention`.
      x: the tokens that look.
      sight: who sees whom.
      training: whether to drop.
      memory: what is looked at, or its keys and values; None: x itself.
    """
    if isinstance(attention, mtf.layers.LocalAttention):
        cache = memory if isinstance(memory, mtf.layers.Cache) else None
        return attention(x, sight.looking.segments, sight.angles, training, cache=cache)
    if isinstance(attention, mtf.layers.BlockwiseAttention):
        return attention(
            x, memory, sight.bias_of, sight.looking, sight.angles, training
        )
    return attention(x, memory, sight.bias, sight.angles, training)


def into_stream(
    reduced_dims: str, a: Architecture
) -> mtf.layers.initializers.Initializer:
    """Returns the initializer of a kernel whose product is added to the stream.

    2 * blocks of them are added, so each begins with a variance that much smaller
    (GPT-2).
    """
    return mtf.layers.initializers.variance_scaling(
        reduced_dims, scale=1.0 / (2 * a.blocks)
    )
