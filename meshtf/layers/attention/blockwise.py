"""Blockwise attention: a block of queries at a time, in memory that is linear in the
length.

    y = blockwise_attention(q, k, v, "length:128")              # [batch, heads, length, key]

The scores of all queries are [length, kv_length]. Here a loop computes attention of
128 queries in each iteration, and the backward pass recomputes their scores, so at most
[128, kv_length] are in memory at a time (Rabe and Staats, 2021, arXiv 2112.05682).
Iteration i takes positions i, i + n, i + 2n ... for n iterations, so `length` may be
sharded: each device has its share of every iteration.

A bias of all scores would be as large as the scores. It is computed in each iteration,
for the positions of the iteration:

    positions = mtf.range(mesh, "length:4096")
    context = mtf.rename(positions, "length", "kv_length")
    y = blockwise_attention(q, k, v, "length:128", lambda at: mask_bias(at >= context), positions)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import Tensor
from meshtf.graph.arguments import as_tensor
from meshtf.layers.attention.dot_product import dot_product_attention
from meshtf.layers.attention.heads import Cache
from meshtf.layers.attention.multi_head import MultiHeadAttention
from meshtf.layers.attention.rotary import RotaryEmbedding
from meshtf.mesh import Mesh
from meshtf.names import Dimension, Names, ShapeLike
from meshtf.names.arguments import check_bools, check_callables, check_floats
from meshtf.ops.common.checks import require_dim, single_dim
from meshtf.ops.control.loops import scan
from meshtf.ops.control.stop_gradient import recompute
from meshtf.ops.shapes.reshape import flatten, transpose, unflatten

BiasOf = Callable[[Any], Tensor | None]


def blockwise_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block: ShapeLike,
    bias_of: BiasOf | None = None,
    query_inputs: Any = None,
    kv_length_dim: str = "kv_length",
    key_dim: Names = "key",
    scale: float | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Returns softmax(scale * q · k + bias) · v, as `dot_product_attention` does.

    Args:
      q: queries, such as [batch, heads, length, key].
      k: keys, [batch, heads, kv_length_dim, key], or a subset of these names.
      v: values, with `kv_length_dim`, and other names instead of `key_dim`.
      block: the dimension of queries, and the queries of an iteration, such as
        "length:128".
      bias_of: computes the bias of the scores of a block of queries from its entries of
        `query_inputs`.
      query_inputs: tensors with the dimension of queries, such as their positions, in
        any nesting.
      kv_length_dim: the dimension of keys and values.
      key_dim: the name, or names, that the matmul of q and k sums over.
      scale: a factor of the scores; default: 1 / sqrt(size of key_dim).
      dropout: applied to attention weights.

    Raises:
      ShapeError: the queries lack the dimension, or blocks do not divide it.
    """
    q = as_tensor("q", q)
    k = as_tensor("k", k)
    v = as_tensor("v", v)
    if scale is not None:
        check_floats(scale=scale)
    check_callables(bias_of=bias_of, dropout=dropout)
    block_dim = single_dim(block)
    require_dim(q.shape, block_dim.name)

    def attend(q: Tensor, query_inputs: Any) -> Tensor:
        bias = bias_of(query_inputs) if bias_of else None
        return dot_product_attention(
            q, k, v, kv_length_dim, key_dim, bias, None, scale, dropout
        )

    if q.shape[block_dim.name] <= block_dim.size:
        return attend(q, query_inputs)
    iterations = _iterations(q, block_dim)

    def split(x: Tensor | None) -> Tensor | None:
        if x is None or block_dim.name not in x.shape:
            return x
        return unflatten(x, block_dim.name, [block_dim, iterations])

    attend_recomputed = recompute(attend)
    _, y = scan(
        lambda carry, inputs: (carry, attend_recomputed(*inputs)),
        None,
        (split(q), tf.nest.map_structure(split, query_inputs)),
        iterations.name,
    )
    return _merge_iterations(y, block_dim, iterations)


def _iterations(q: Tensor, block: Dimension) -> Dimension:
    """Returns the dimension of iterations over blocks of queries. Raises ShapeError if
    blocks do not divide the queries.
    """
    size = q.shape[block.name]
    if size % block.size:
        raise ShapeError(
            explain_error(
                f"{q.shape.dim(block.name)!r} cannot be split into blocks of "
                f"{block.size}.",
                way_out="Take a block that divides it, or mtf.pad the tensors.",
            )
        )
    return Dimension(f"{block.name}_iterations", size // block.size)


def _merge_iterations(y: Tensor, block: Dimension, iterations: Dimension) -> Tensor:
    """Returns y [iterations, ..., block, ...] with one dimension [..., length, ...]."""
    names = y.shape.without(iterations.name).names
    after_block = names.index(block.name) + 1
    order = (*names[:after_block], iterations.name, *names[after_block:])
    return flatten(transpose(y, order), [block.name, iterations.name], block.name)


class BlockwiseAttention(MultiHeadAttention):
    """Multi-head attention, computed for a block of queries at a time.

    Args:
      mesh: where the variables lie.
      model_dim: the dimension of inputs and outputs, such as "d_model:512".
      heads_dim: such as "heads:8".
      key_dim: the size of a head, such as "key:64".
      block: the dimension of queries, and the queries of an iteration, such as
        "length:128".
      **settings: other arguments of `MultiHeadAttention`.
    """

    def __init__(
        self,
        mesh: Mesh,
        model_dim: ShapeLike,
        heads_dim: ShapeLike,
        key_dim: ShapeLike,
        block: ShapeLike,
        **settings: Any,
    ) -> None:
        self.block = single_dim(block)
        super().__init__(
            mesh, model_dim, heads_dim, key_dim, length_dim=self.block.name, **settings
        )

    def __call__(
        self,
        x: Tensor,
        context: Tensor | Cache | None = None,
        bias_of: BiasOf | None = None,  # type: ignore[override]
        query_inputs: Any = None,
        rope: RotaryEmbedding | None = None,  # type: ignore[override]
        training: bool = False,  # type: ignore[override]
    ) -> Tensor:
        """Returns [batch, length, model_dim] for x of the same shape.

        Args:
          x: the queries' inputs.
          context: the inputs of keys and values, [batch, length, model_dim] of any length,
            or their keys and values from `project_keys_values`; default: x itself.
          bias_of: computes the bias of the scores of a block of queries from its entries
            of `query_inputs`.
          query_inputs: tensors with the dimension of queries, in any nesting.
          rope: a rotary embedding, by which queries and keys are rotated.
          training: whether attention weights are dropped.
        """
        x = as_tensor("x", x)
        check_bools(training=training)
        q = self.apply_rope(self.project_to_heads(self.query, x), rope)
        cache = self.context_keys_values(x, context, rope)
        y = blockwise_attention(
            q,
            *cache,
            self.block,
            bias_of,
            query_inputs,
            self.kv_length_dim,
            self.key_dim.names,
            self.scale,
            lambda weights: self.dropout(weights, training),
        )
        return self.output(y, x.shape.names)
