"""Attention of many positions, some at a time: memory that is linear in their number.

    y = blockwise_attention(q, k, v, "length:128")                     # [batch heads length key]

Scores of all positions are [length memory_length]. Here 128 positions look in each turn
of a loop, and the backward pass computes their scores again, so no more than [128
memory_length] are there at a time (Rabe and Staats, 2021, arXiv 2112.05682). A turn
takes every so-many-th position, so `length` may be cut: each slice has its share of
every turn.

A bias of scores would be as large as the scores. It is made in each turn, of the turn's
positions:

    positions = mtf.range(mesh, "length:4096")
    memory = mtf.rename(positions, "length", "memory_length")
    y = blockwise_attention(q, k, v, "length:128", lambda at: mask_bias(at >= memory), positions)
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
from meshtf.layers.attention.rotary import Angles
from meshtf.mesh import Mesh
from meshtf.names import Dimension, Names, ShapeLike
from meshtf.names.arguments import check_bools, check_callables, check_floats
from meshtf.ops.common.checks import require_dim, single_dim
from meshtf.ops.control.loops import scan
from meshtf.ops.control.stop_gradient import recompute
from meshtf.ops.shapes.reshape import merge, split_dim, transpose

BiasOf = Callable[[Any], Tensor | None]


def blockwise_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block: ShapeLike,
    bias_of: BiasOf | None = None,
    rows: Any = None,
    memory_dim: str = "memory_length",
    key_dim: Names = "key",
    scale: float | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Returns softmax(scale * q · k + bias) · v, as `dot_product_attention` does.

    Args:
      q: queries, [batch heads length key], say.
      k: keys, [batch heads memory_dim key], or some of these names.
      v: values, with memory_dim, and with names that take the place of `key_dim`.
      block: the positions that look, and how many do so at a time, such as
        "length:128".
      bias_of: makes the bias of the scores of some positions, from their part of
        `rows`.
      rows: tensors with that dimension, in any nesting.
      memory_dim: the name of what is looked at.
      key_dim: the name, or names, over which q and k are multiplied.
      scale: default: 1 / sqrt(size of key_dim).
      dropout: what attention weights pass through.

    Raises:
      ShapeError: the queries lack the dimension, or blocks do not divide it.
    """
    q, k, v = as_tensor("q", q), as_tensor("k", k), as_tensor("v", v)
    if scale is not None:
        check_floats(scale=scale)
    check_callables(bias_of=bias_of, dropout=dropout)
    some = single_dim(block)
    require_dim(q.shape, some.name)
    size = q.shape[some.name]
    if size <= some.size:
        bias = bias_of(rows) if bias_of else None
        return dot_product_attention(
            q, k, v, memory_dim, key_dim, bias, None, scale, dropout
        )
    if size % some.size:
        raise ShapeError(
            explain_error(
                f"{q.shape.dim(some.name)!r} cannot be parted into blocks of "
                f"{some.size}.",
                way_out="Take a block that divides it, or mtf.pad the tensors.",
            )
        )
    turns = Dimension(f"{some.name}_turns", size // some.size)

    def part(x: Tensor) -> Tensor:
        return split_dim(x, some.name, [some, turns]) if some.name in x.shape else x

    @recompute
    def look(q: Tensor, rows: Any) -> Tensor:
        bias = bias_of(rows) if bias_of else None
        return dot_product_attention(
            q, k, v, memory_dim, key_dim, bias, None, scale, dropout
        )

    given = (
        part(q),
        tf.nest.map_structure(lambda x: x if x is None else part(x), rows),
    )
    _, y = scan(lambda state, row: (state, look(*row)), None, given, turns.name)
    names = y.shape.without(turns.name).names
    at = names.index(some.name) + 1
    return merge(
        transpose(y, (*names[:at], turns.name, *names[at:])),
        [some.name, turns.name],
        some.name,
    )


class BlockwiseAttention(MultiHeadAttention):
    """Multi-head attention in which some positions look at a time.

    Args:
      mesh: where the variables lie.
      model_dim: what comes in and goes out, such as "d_model:512".
      heads_dim: such as "heads:8".
      key_dim: the size of a head, such as "key:64".
      block: the positions that look, and how many do so at a time, such as
        "length:128".
      **others: arguments of `MultiHeadAttention`.
    """

    def __init__(
        self,
        mesh: Mesh,
        model_dim: ShapeLike,
        heads_dim: ShapeLike,
        key_dim: ShapeLike,
        block: ShapeLike,
        **others: Any,
    ) -> None:
        self.block = single_dim(block)
        super().__init__(
            mesh, model_dim, heads_dim, key_dim, length_dim=self.block.name, **others
        )

    def __call__(
        self,
        x: Tensor,
        memory: Tensor | Cache | None = None,
        bias_of: BiasOf | None = None,  # type: ignore[override]
        rows: Any = None,
        angles: Angles | None = None,  # type: ignore[override]
        training: bool = False,  # type: ignore[override]
    ) -> Tensor:
        """Returns [batch length model_dim] for x of the same shape.

        Args:
          x: the positions that look.
          memory: what they look at, [batch length model_dim] of any length, or what
            `project_keys_values` made of it; default: x itself.
          bias_of: makes the bias of the scores of some positions, from their part of
            `rows`.
          rows: tensors with the dimension of positions, in any nesting.
          angles: rotary positions, by which queries and keys are turned.
          training: whether attention weights are dropped.
        """
        x = as_tensor("x", x)
        check_bools(training=training)
        q = self.apply_rotary(self.project_to_heads(self.query, x), angles)
        cache = self.memory_keys_values(x, memory, angles)
        y = blockwise_attention(
            q,
            *cache,
            self.block,
            bias_of,
            rows,
            self.memory_dim,
            self.key_dim.names,
            self.scale,
            lambda weights: self.dropout(weights, training),
        )
        return self.output(y, x.shape.names)
