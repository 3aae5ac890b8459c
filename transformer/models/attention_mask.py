"""Attention masks of a Transformer: which positions each token attends to, and the bias
of the scores that follows from it.

    token_info = TokenInfo(mtf.range(mesh, "length:128"))
    attention_mask = AttentionMask(architecture, token_info, causal=True)
    y = attend(attention, x, attention_mask, training=False)

Queries have the dimension `length`, keys and values the dimension `kv_length`. An
example may be a packed sequence of several texts: each text is a *segment*, counted from
1, with positions from 0; segment 0 is padding. A prefix is visible to its entire segment.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import meshtf as mtf
from transformer.models.architecture import Architecture

LENGTH = "length"
KV_LENGTH = "kv_length"


class TokenInfo(NamedTuple):
    """Positions, segments and prefixes of tokens.

    Attributes:
      positions: the position of each token in its segment, integers [length] or [batch,
        length].
      segments: the segment of each token, integers [batch, length]; 0 is padding. Tokens
        attend within their segment. None: one segment without padding.
      prefix: bool [batch, length], True for tokens that earlier tokens attend to, too;
        None: there are no such tokens.
    """

    positions: mtf.Tensor
    segments: mtf.Tensor | None = None
    prefix: mtf.Tensor | None = None

    @classmethod
    def of(
        cls,
        tokens: mtf.Tensor,
        positions: mtf.Tensor | None = None,
        segments: mtf.Tensor | None = None,
        prefix: mtf.Tensor | None = None,
    ) -> TokenInfo:
        """Returns the information about tokens.

        Args:
          tokens: the token ids, integers [batch, length].
          positions: the attribute `positions`; None: from 0 on in each example.
          segments: the attribute `segments`; None: each example is one segment without
            padding.
          prefix: the attribute `prefix`, as integers or bool.
        """
        if positions is None:
            positions = mtf.range(tokens.mesh, tokens.shape.dim(LENGTH))
        if prefix is not None:
            prefix = mtf.cast(prefix, "bool")
        return cls(positions=positions, segments=segments, prefix=prefix)

    def as_context(self) -> TokenInfo:
        """Returns the same tensors with `length` renamed to `kv_length`."""

        def rename(x: mtf.Tensor | None) -> mtf.Tensor | None:
            """Returns x with the dimension renamed; None for an absent attribute."""
            return None if x is None else mtf.rename(x, LENGTH, KV_LENGTH)

        return TokenInfo(
            positions=mtf.rename(self.positions, LENGTH, KV_LENGTH),
            segments=rename(self.segments),
            prefix=rename(self.prefix),
        )

    @property
    def nonpadding(self) -> mtf.Tensor | None:
        """Bool [batch, length], False at padding; None: no token is padding."""
        return None if self.segments is None else self.segments > 0


def visible(
    queries: TokenInfo, context: TokenInfo, causal: bool, window: int | None = None
) -> mtf.Tensor | None:
    """Returns bool [..., length, kv_length]: whether each query attends to each token of
    the context; None: every query attends to every token.

    No token attends to padding. Queries that are padding attend to all tokens that are
    not, as in BERT: span extraction computes logits at padding positions, too.

    Args:
      queries: the tokens that attend.
      context: the tokens that are attended to, from `TokenInfo.as_context`.
      causal: whether a query attends only to itself and to earlier tokens.
      window: the count of the last positions that a query attends to, including its
        own; None: all.
    """
    conditions = []  # a query attends where all of them are True
    if causal:
        conditions.append(_causal_condition(queries, context))
    if window is not None:
        distance = mtf.outer(queries.positions, context.positions, mtf.subtract)
        conditions.append(distance < window)
    if context.segments is not None:
        conditions.append(_segment_condition(queries, context.segments))
    if not conditions:
        return None
    # `outer` aligns dimensions by name: the conditions have different ones.
    return functools.reduce(lambda x, y: mtf.outer(x, y, mtf.logical_and), conditions)


def _causal_condition(queries: TokenInfo, context: TokenInfo) -> mtf.Tensor:
    """Returns whether each token of the context is not after the query, or belongs to
    the prefix: bool [..., length, kv_length].
    """
    is_not_after = mtf.outer(queries.positions, context.positions, mtf.greater_equal)
    if context.prefix is None:
        return is_not_after
    return mtf.outer(is_not_after, context.prefix, mtf.logical_or)


def _segment_condition(queries: TokenInfo, kv_segments: mtf.Tensor) -> mtf.Tensor:
    """Returns whether each token of the context is in the query's segment and is not
    padding: bool [..., length, kv_length].

    A query that is padding (segment 0) counts as in every segment.
    """
    if queries.segments is None:
        return kv_segments > 0
    is_same_segment = mtf.outer(queries.segments, kv_segments, mtf.equal)
    is_padding = queries.segments == 0
    return (is_same_segment | is_padding) & (kv_segments > 0)


class AttentionMask:
    """The mask, bias and rotary embedding that all attention layers of a stack share.

    Args:
      architecture: the architecture of the stack.
      queries: positions and segments of the tokens that attend.
      causal: whether a token attends only to itself and to earlier tokens.
      relative: the layer of the learned bias by relative position; None: the
        architecture has no such bias.
      context: positions and segments of the tokens that are attended to; None: the
        queries (self-attention).
      window: the count of the last positions that a query attends to, including its
        own; None: all.
    """

    def __init__(
        self,
        architecture: Architecture,
        queries: TokenInfo,
        causal: bool,
        relative: mtf.layers.RelativeBias | None = None,
        context: TokenInfo | None = None,
        window: int | None = None,
    ) -> None:
        self.architecture = architecture
        self.queries = queries
        self.causal = causal
        self.window = window
        self.relative = relative
        self.is_self_attention = context is None
        if context is None:
            context = queries
        self.context = context.as_context()
        self.rope: mtf.layers.RotaryEmbedding | None = None
        if self.is_self_attention and architecture.positions == "rotary":
            self.rope = mtf.layers.rope(
                queries.positions,
                key_dim=architecture.dim("d_kv"),
                theta=architecture.rope_theta,
            )

    @functools.cached_property
    def bias(self) -> mtf.Tensor | None:
        """The bias of attention scores, [..., length, kv_length]: the mask, as 0 or a
        very negative number, plus `distance_bias`; None: no bias.
        """
        return self.bias_of(self.queries)

    def bias_of(self, queries: TokenInfo) -> mtf.Tensor | None:
        """Returns `bias` for a subset of the queries.

        Blockwise attention calls this for one block of queries at a time.
        """
        distance_bias = None
        if self.is_self_attention:
            distance_bias = self.distance_bias(queries)
        is_visible = visible(
            queries, self.context, causal=self.causal, window=self.window
        )
        if is_visible is None:
            return distance_bias
        mask_bias = mtf.layers.mask_bias(is_visible)
        if distance_bias is None:
            return mask_bias
        return mtf.outer(distance_bias, mask_bias, mtf.add)

    def distance_bias(self, queries: TokenInfo) -> mtf.Tensor | None:
        """Returns the bias by the distance between query and context, [..., length,
        kv_length, *heads]: T5's relative positions or ALiBi; None: the architecture has
        neither.
        """
        if self.relative is not None:
            return self.relative(queries.positions, self.context.positions)
        if self.architecture.positions == "sloped":
            return mtf.layers.distance_slopes(
                queries.positions, self.context.positions, self.architecture.head_dims
            )
        return None


def make_attention(
    mesh: mtf.Mesh,
    architecture: Architecture,
    causal: bool,
    name: str,
    is_cross_attention: bool = False,
) -> Any:
    """Returns an attention layer of the architecture's kind.

    Args:
      mesh: the mesh of the variables.
      architecture: the architecture.
      causal: whether local attention is causal; other kinds get a mask instead.
      name: the last component of the path of the layer's variables.
      is_cross_attention: whether keys and values come from an encoder; such attention
        is never local.
    """
    # The dimensions that the last matmul, from heads to d_model, sums over.
    reduced_dims = ";".join([*architecture.head_dims.names, "d_kv"])
    settings: dict[str, Any] = {
        "dropout_rate": architecture.dropout,
        "use_bias": architecture.use_bias,
        "name": name,
        "output_initializer": residual_initializer(reduced_dims, architecture),
        "kv_heads_dim": architecture.kv_head_dims,
        "scale": None if architecture.scaled_attention else 1.0,
    }
    # The dimensions of the inputs, of the heads, and of the elements of a head.
    dims = (
        architecture.dim("d_model"),
        architecture.head_dims,
        architecture.dim("d_kv"),
    )
    # A block of successive positions; it has nothing to do with the blocks of a stack.
    block = mtf.Dimension(LENGTH, architecture.block_length)
    if architecture.attention == "blockwise":
        return mtf.layers.BlockwiseAttention(mesh, *dims, block=block, **settings)
    if architecture.attention == "local" and not is_cross_attention:
        # A token attends to positions at a distance of at most the length of a block.
        return mtf.layers.LocalAttention(
            mesh, *dims, blocks=block, radius=block, causal=causal, **settings
        )
    return mtf.layers.MultiHeadAttention(mesh, *dims, **settings)


def attend(
    attention: Any,
    x: mtf.Tensor,
    attention_mask: AttentionMask,
    training: bool,
    context: mtf.Tensor | mtf.layers.Cache | None = None,
) -> mtf.Tensor:
    """Returns the output [batch, length, d_model] of an attention layer.

    Args:
      attention: an attention layer, from `make_attention`.
      x: the inputs of the queries, [batch, length, d_model].
      attention_mask: the mask of the attention, with the bias and rotary embedding.
      training: whether dropout is applied to attention weights.
      context: the tokens that are attended to, [batch, length, d_model], or the keys and
        values of these tokens; None: x (self-attention).
    """
    rope = attention_mask.rope
    if isinstance(attention, mtf.layers.LocalAttention):
        cache = context if isinstance(context, mtf.layers.Cache) else None
        segments = attention_mask.queries.segments
        return attention(x, segments, rope=rope, training=training, cache=cache)
    if isinstance(attention, mtf.layers.BlockwiseAttention):
        return attention(
            x,
            context,
            bias_of=attention_mask.bias_of,
            query_inputs=attention_mask.queries,
            rope=rope,
            training=training,
        )
    return attention(x, context, bias=attention_mask.bias, rope=rope, training=training)


def pad_to_blocks(x: mtf.Tensor, architecture: Architecture) -> mtf.Tensor:
    """Returns x with `length` padded at the end to a multiple of `block_length`, if
    attention needs that: blockwise and local attention of more than one block.

    Args:
      x: a tensor with the dimension `length`.
      architecture: the architecture.
    """
    length = x.shape[LENGTH]
    num_padding = 0
    if architecture.attention != "full" and length > architecture.block_length:
        num_padding = -length % architecture.block_length
    return mtf.pad(x, LENGTH, before=0, after=num_padding)


def residual_initializer(
    reduced_dims: str, architecture: Architecture
) -> mtf.layers.initializers.Initializer:
    """Returns the initializer of the last kernel of a sublayer.

    The residual stream is a sum of the outputs of 2 * blocks sublayers, so their variance
    is scaled by 1 / (2 * blocks) (GPT-2: Radford et al., 2019, section 2.3).

    Args:
      reduced_dims: the dimensions that the kernel's matmul reduces, such as "heads;d_kv".
      architecture: the architecture, for the count of blocks.
    """
    return mtf.layers.initializers.variance_scaling(
        reduced_dims, scale=1.0 / (2 * architecture.blocks)
    )
