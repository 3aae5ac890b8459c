"""Blockwise attention: a loop over blocks of queries, whose memory is linear in the length.

    y = blockwise_attention(q, k, v, "length:128")              # [batch, heads, length, key]

Attention to all positions at once stores the scores [length, kv_length] of each head. Here
each iteration of a loop computes the attention of 128 queries, and the backward pass
recomputes their scores, so that only [128, kv_length] scores are in memory at a time (Rabe
and Staats, 2021, arXiv 2112.05682). With n iterations, the queries of iteration i are those
at positions i, i + n, i + 2n ..., so `length` may be sharded: every device computes an equal
share of each iteration.

A bias of all scores would be as large as the scores. Instead a function computes the bias
of the queries of one iteration, from their entries of `query_inputs`, here their positions:

    positions = mtf.range(mesh, "length:4096")
    kv_positions = mtf.rename(positions, "length", "kv_length")

    def causal_bias(block_positions):                           # [length:128]
      return mask_bias(mtf.outer(block_positions, kv_positions, mtf.greater_equal))

    y = blockwise_attention(
        q, k, v, "length:128", bias_of=causal_bias, query_inputs=positions
    )
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import Tensor, context, current
from meshtf.graph.arguments import as_tensor
from meshtf.layers.attention.dot_product import dot_product_attention
from meshtf.layers.attention.heads import Cache
from meshtf.layers.attention.multi_head import MultiHeadAttention
from meshtf.layers.attention.rotary import RotaryEmbedding
from meshtf.mesh import Mesh
from meshtf.names import Dimension, Names, ShapeLike, nested
from meshtf.names.arguments import check_bools, check_callables, check_floats
from meshtf.ops.common.checks import require_dim_of_caller, single_dim
from meshtf.ops.control.layout_region import relayout
from meshtf.ops.control.seeds import iterations as current_iterations
from meshtf.ops.control.stop_gradient import recompute
from meshtf.ops.loops.scan import scan
from meshtf.ops.random.random_indices import index_function, random_indices
from meshtf.ops.shapes.reshape import flatten, transpose, unflatten

# A function that returns the bias of the scores of one block of queries; its argument is
# their entries of `query_inputs`.
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
    """Returns softmax(scale * q · k + bias) · v, [..., value] for q [..., key], as
    `dot_product_attention` does.

    Args:
      q: queries, such as [batch, heads, length, key].
      k: keys, [batch, heads, kv_length_dim, key], or a subset of these names.
      v: values, such as [batch, heads, kv_length_dim, value]; `value` may be called
        `key_dim` as well.
      block: the name of the positions of queries, with the count of queries in a block,
        such as "length:128".
      bias_of: a function of the entries of `query_inputs` for a block of queries; it
        returns the bias of their scores, [batch, heads, length, kv_length_dim] or a
        subset of these names. None: no bias.
      query_inputs: the argument of `bias_of`: tensors in any nesting, such as the
        positions of the queries. Tensors with the dimension of `block` are split into
        blocks, others are passed as they are.
      kv_length_dim: the name of the positions of keys and values.
      key_dim: the name, or names, of the elements of a head: the matmul of q and k sums
        over them.
      scale: a factor of the scores; default: 1 / sqrt(size of key_dim).
      dropout: a function that is applied to the attention weights.

    Raises:
      ShapeError: the queries lack the dimension of `block`, or the size of a block does
        not divide it.
    """
    q = as_tensor("q", q)
    k = as_tensor("k", k)
    v = as_tensor("v", v)
    if scale is not None:
        check_floats(scale=scale)
    check_callables(bias_of=bias_of, dropout=dropout)
    block_dim = single_dim(block)
    require_dim_of_caller(q.shape, block_dim.name)

    def attend(q: Tensor, query_inputs: Any) -> Tensor:
        bias = bias_of(query_inputs) if bias_of else None
        return dot_product_attention(
            q,
            k,
            v,
            kv_length_dim=kv_length_dim,
            key_dim=key_dim,
            bias=bias,
            scale=scale,
            dropout=dropout,
        )

    # One block has all queries: no loop is needed.
    if q.shape[block_dim.name] <= block_dim.size:
        return attend(q, query_inputs)
    # Once, before the loop: otherwise each iteration would reshard them, and reduce their
    # gradients.
    k, v = relayout(k), relayout(v)
    return _attend_in_loop(attend, q, query_inputs, block_dim)


def _attend_in_loop(
    attend: Callable[[Tensor, Any], Tensor],
    q: Tensor,
    query_inputs: Any,
    block: Dimension,
) -> Tensor:
    """Returns the results of a function of the queries and inputs of one block, for all blocks.

    Args:
      attend: the function; its arguments are like q and `query_inputs`.
      q: the queries of all blocks, [..., length, key].
      query_inputs: tensors in any nesting; those with the dimension of `block` are split.
      block: the name of the positions of queries, with their count in a block.
    """
    iterations = _iterations_dim(q, block)
    inputs = nested.flatten(query_inputs)
    is_split = [isinstance(x, Tensor) and block.name in x.shape for x in inputs]

    def split_blocks(x: Tensor) -> Tensor:
        """Returns x [..., length, ...] as [..., block, iterations, ...]."""
        return unflatten(x, block.name, [block, iterations])

    attend_recomputed = recompute(attend)
    index_of = index_function(q.shape.dim(block.name))
    caller = current()

    def iteration(carry: None, blocks: Sequence[Tensor]) -> tuple[None, Tensor]:
        """Attends with the queries of one block, and their entries of the inputs."""
        q_block, *input_blocks = blocks
        remaining = iter(input_blocks)
        block_inputs = [
            next(remaining) if split else x for x, split in zip(inputs, is_split)
        ]
        inputs_of_block = nested.pack_sequence_as(query_inputs, block_inputs)
        # Random ops draw the numbers that they draw for all queries at once.
        iteration_index = current_iterations()[-1]
        functions = {
            block: lambda index: index_of(index * iterations.size + iteration_index)
        }
        with context(iterations=caller.iterations), random_indices(functions):
            return carry, attend_recomputed(q_block, inputs_of_block)

    to_split = [q, *(x for x, split in zip(inputs, is_split) if split)]
    # Iterations share no state: the carry of the scan is None.
    _, y = scan(
        iteration,
        init=None,
        xs=[split_blocks(x) for x in to_split],
        dim=iterations.name,
    )
    return _merge_iterations(y, block, iterations)


def _iterations_dim(q: Tensor, block: Dimension) -> Dimension:
    """Returns the dimension of the iterations over blocks of queries.

    Raises:
      ShapeError: the size of a block does not divide the count of queries.
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
    """Returns the stacked outputs y [iterations, ..., block, ...] of the loop as
    [..., length, ...].
    """
    names = y.shape.without(iterations.name).names
    # Query j of block i is at position j * iterations + i, as `split_blocks` has it: so the
    # iterations become the inner of the two dimensions that are merged.
    after_block = names.index(block.name) + 1
    order = (*names[:after_block], iterations.name, *names[after_block:])
    return flatten(transpose(y, order), [block.name, iterations.name], block.name)


class BlockwiseAttention(MultiHeadAttention):
    """Multi-head attention that is computed for one block of queries at a time.

    Args:
      mesh: the mesh of the variables.
      model_dim: the dimension of inputs and outputs, such as "d_model:512".
      heads_dim: the dimension of the heads, such as "heads:8".
      key_dim: the dimension of the elements of a head, such as "key:64".
      block: the name of the positions of queries, with the count of queries in a block,
        such as "length:128".
      **settings: other arguments of `MultiHeadAttention`, such as `dropout_rate`.
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

    # `type: ignore`: the base class takes the bias of all scores, this class a function.
    def __call__(  # type: ignore[override]
        self,
        x: Tensor,
        context: Tensor | Cache | None = None,
        bias_of: BiasOf | None = None,
        query_inputs: Any = None,
        rope: RotaryEmbedding | None = None,
        training: bool = False,
    ) -> Tensor:
        """Returns [batch, length, model_dim] for x of the same shape.

        Args:
          x: the input of the queries, [batch, length, model_dim].
          context: the input of keys and values, [batch, length, model_dim] of any length,
            or its keys and values from `project_keys_values`; default: x itself.
          bias_of: a function that computes the bias of the scores of a block of queries,
            as in `blockwise_attention`.
          query_inputs: the tensors that `bias_of` reads, as in `blockwise_attention`.
          rope: a rotary embedding, which rotates queries and keys.
          training: whether dropout is applied to the attention weights.
        """
        x = as_tensor("x", x)
        check_bools(training=training)
        q = self.apply_rope(self.project_to_heads(self.query, x), rope)
        cache = self.context_keys_values(x, context, rope)
        y = blockwise_attention(
            q,
            cache.keys,
            cache.values,
            block=self.block,
            bias_of=bias_of,
            query_inputs=query_inputs,
            kv_length_dim=self.kv_length_dim,
            key_dim=self.key_dim.names,
            scale=self.scale,
            dropout=lambda weights: self.dropout(weights, training),
        )
        return self.output(y, x.shape.names)
