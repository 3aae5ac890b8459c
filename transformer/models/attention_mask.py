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
from typing import Any

import meshtf as mtf
from transformer.models.architecture import Architecture
from transformer.models.token_info import LENGTH, TokenInfo


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
        own; None: that of the architecture, if attention is causal.
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
        self.relative = relative
        self.is_self_attention = context is None
        if window is None and causal and self.is_self_attention:
            window = architecture.window
        self.window = window
        if context is None:
            context = queries
        self.context = context.as_context()
        self.rope: mtf.layers.RotaryEmbedding | None = None
        if self.is_self_attention and architecture.positions == "rotary":
            scaling = None
            if architecture.rope_scaling is not None:
                scaling = mtf.layers.RotaryScaling(*architecture.rope_scaling)
            self.rope = mtf.layers.rope(
                queries.positions,
                key_dim=architecture.dim("d_kv"),
                theta=architecture.rope_theta,
                scaling=scaling,
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
        return self._bias(queries, self.context, table=None)

    def distance_bias(self) -> mtf.Tensor | None:
        """Returns the bias by the distance between query and context, [..., length,
        kv_length, *heads]; None: the architecture has none.
        """
        return self._distance_bias(
            self.queries.positions, self.context.positions, table=None
        )

    @functools.cached_property
    def shared_distance_bias(self) -> mtf.Tensor | None:
        """The bias of `distance_bias`, which all layers share."""
        return self.distance_bias() if self.is_self_attention else None

    def prepare(self) -> None:
        """Computes the biases that layers share; those that no layer uses are left out later."""
        _ = self.bias, self.shared_distance_bias  # cached properties

    @property
    def is_plain(self) -> bool:
        """Whether each example is one text from its first token on, so that order and window tell
        which tokens a query attends to.
        """
        infos = (self.queries, self.context)
        return all(info.is_plain for info in infos) and (
            self.causal or self.window is None
        )

    @property
    def pair_inputs(self) -> dict[str, Any]:
        """The arguments of context-parallel attention whose bias `pair_bias_of` computes."""
        table = None
        if self.relative is not None and self.is_self_attention:
            table = self.relative.table.tensor()
        # Without the order: inputs are tensors.
        queries = self.queries._replace(zigzag=None, from_zero=None)
        return {
            "bias_of": self.pair_bias_of,
            "query_inputs": (queries, table),
            "kv_inputs": self.context._replace(from_zero=None),
            "zigzag": self.queries.zigzag is not None and self.is_self_attention,
        }

    def pair_bias_of(
        self,
        queries_and_table: tuple[TokenInfo, mtf.Tensor | None],
        context: TokenInfo,
    ) -> mtf.Tensor | None:
        """Returns `bias` for a subset of the queries and a subset of the context.

        Ring attention calls this for a chunk of queries and one of keys.

        Args:
          queries_and_table: the queries, and the table of the bias by relative position.
          context: the tokens that are attended to.
        """
        queries, table = queries_and_table
        return self._bias(queries, context, table)

    def _bias(
        self, queries: TokenInfo, context: TokenInfo, table: mtf.Tensor | None
    ) -> mtf.Tensor | None:
        """Returns the bias of the scores of queries and a context; None: no bias."""
        distance_bias = None
        if self.is_self_attention:
            distance_bias = self._distance_bias(
                queries.positions, context.positions, table
            )
        is_visible = visible(queries, context, causal=self.causal, window=self.window)
        if is_visible is None:
            return distance_bias
        mask_bias = mtf.layers.mask_bias(is_visible)
        if distance_bias is None:
            return mask_bias
        return mtf.outer(distance_bias, mask_bias, mtf.add)

    def _distance_bias(
        self,
        positions: mtf.Tensor,
        kv_positions: mtf.Tensor,
        table: mtf.Tensor | None,
    ) -> mtf.Tensor | None:
        """Returns the bias of `distance_bias`: T5's relative positions or ALiBi.

        Args:
          positions: the positions of queries.
          kv_positions: the positions of the context.
          table: the table of the relative positions; None: the layer's variable.
        """
        if self.relative is not None:
            if table is not None:
                return self.relative.from_table(table, positions, kv_positions)
            return self.relative(positions, kv_positions)
        if self.architecture.positions == "sloped":
            return mtf.layers.distance_slopes(
                positions, kv_positions, self.architecture.head_dims
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
        "use_bias": architecture.use_bias or architecture.qkv_bias,
        "output_bias": architecture.use_bias,
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
    if architecture.attention in ("ring", "all_to_all", "context_parallel"):
        method = architecture.attention.replace("context_parallel", "fewest_bytes")
        return mtf.layers.ContextParallelAttention(
            mesh, *dims, block=block, method=method, **settings
        )
    if architecture.attention == "local" and not is_cross_attention:
        # A token attends to positions at a distance of at most the length of a block, or
        # within the window.
        radius = block
        if architecture.window is not None:
            radius = mtf.Dimension(LENGTH, architecture.window - 1)
        return mtf.layers.LocalAttention(
            mesh, *dims, blocks=block, radius=radius, causal=causal, **settings
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
    if isinstance(attention, mtf.layers.ContextParallelAttention):
        return attention(
            x, context, rope=rope, training=training, **attention_mask.pair_inputs
        )
    if not attention.fuses(x):
        bias = attention_mask.bias
        return attention(x, context, bias=bias, rope=rope, training=training)
    masks: dict[str, Any] = {}
    bias = attention_mask.bias
    if attention_mask.is_plain:
        masks = {"causal": attention_mask.causal, "window": attention_mask.window}
        bias = attention_mask.shared_distance_bias
    if bias is not None and attention_mask.relative is None:
        # Only the bias of relative positions is learned.
        bias = mtf.stop_gradient(bias)
    return attention(x, context, bias=bias, rope=rope, training=training, **masks)


def pad_to_blocks(x: mtf.Tensor, architecture: Architecture) -> mtf.Tensor:
    """Returns x with `length` padded at the end to a multiple of `block_length`, if
    attention needs that: all but full attention, with more than one block.

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
