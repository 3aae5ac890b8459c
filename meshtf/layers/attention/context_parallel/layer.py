"""Multi-head attention whose positions are sharded: `ContextParallelAttention`.

attention = ContextParallelAttention(
    mesh, "d_model:512", "heads:8", "key:64", block="length:4096", method="ring"
)
y = attention(x, bias_of=bias_of, query_inputs=positions, kv_inputs=kv_positions)
"""

from __future__ import annotations

from typing import Any

from meshtf.graph import Tensor
from meshtf.graph.arguments import as_tensor, check_tensors
from meshtf.layers.attention.context_parallel.all_to_all import (
    PairBiasOf,
    all_to_all_attention,
    heads_region,
    positions_axes,
)
from meshtf.layers.attention.context_parallel.ring import ring_attention
from meshtf.layers.attention.context_parallel.zigzag import zigzag_numbers
from meshtf.layers.attention.heads import Cache
from meshtf.layers.attention.multi_head import MultiHeadAttention
from meshtf.layers.attention.rotary import RotaryEmbedding
from meshtf.mesh import Mesh
from meshtf.names import ShapeLike
from meshtf.names.arguments import as_choice, check_bools
from meshtf.ops.common.checks import single_dim

METHODS = ("ring", "all_to_all", "fewest_bytes")


class ContextParallelAttention(MultiHeadAttention):
    """Multi-head attention to sequences whose positions are sharded.

    Args:
      mesh: the mesh of the variables.
      model_dim: the dimension of inputs and outputs, such as "d_model:512".
      heads_dim: the dimension of the heads, such as "heads:8".
      key_dim: the dimension of the elements of a head, such as "key:64".
      block: the name of the positions of queries, with the count of queries in a chunk of
        `ring_attention`, or in a block of `all_to_all_attention`, such as "length:4096".
      method: "ring", "all_to_all", or "fewest_bytes": the one of the two in which a device
        receives fewer bytes.
      **settings: other arguments of `MultiHeadAttention`, such as `dropout_rate`.
    """

    def __init__(
        self,
        mesh: Mesh,
        model_dim: ShapeLike,
        heads_dim: ShapeLike,
        key_dim: ShapeLike,
        block: ShapeLike,
        method: str = "fewest_bytes",
        **settings: Any,
    ) -> None:
        self.block = single_dim(block)
        self.method = as_choice("method", method, METHODS)
        super().__init__(
            mesh, model_dim, heads_dim, key_dim, length_dim=self.block.name, **settings
        )

    # `type: ignore`: the base class takes the bias of all scores, this class a function.
    def __call__(  # type: ignore[override]
        self,
        x: Tensor,
        context: Tensor | Cache | None = None,
        bias_of: PairBiasOf | None = None,
        query_inputs: Any = None,
        kv_inputs: Any = None,
        rope: RotaryEmbedding | None = None,
        zigzag: bool = False,
        training: bool = False,
    ) -> Tensor:
        """Returns [batch, length, model_dim] for x of the same shape.

        Args:
          x: the input of the queries, [batch, length, model_dim].
          context: the input of keys and values, [batch, length, model_dim] of any length,
            or its keys and values from `project_keys_values`; default: x itself.
          bias_of, query_inputs, kv_inputs, zigzag: as in `ring_attention`.
          rope: a rotary embedding, which rotates queries and keys.
          training: whether dropout is applied to the attention weights.
        """
        x = as_tensor("x", x)
        check_bools(training=training, zigzag=zigzag)
        q = self.apply_rope(self.project_to_heads(self.query, x), rope)
        cache = self.context_keys_values(x, context, rope)
        settings: dict[str, Any] = {
            "bias_of": bias_of,
            "query_inputs": query_inputs,
            "kv_inputs": kv_inputs,
            "kv_length_dim": self.kv_length_dim,
            "key_dim": self.key_dim.names,
            "scale": self.scale,
        }
        if training and self.dropout.rate:
            settings["dropout"] = lambda weights: self.dropout(weights, training)
        operands = (q, cache.keys, cache.values)
        if self.method_for(*operands) == "ring":
            y = ring_attention(*operands, self.block, zigzag=zigzag, **settings)
        else:
            settings["heads"] = self._heads_names()
            dims = (
                q.shape.dim(self.block.name),
                cache.keys.shape.dim(self.kv_length_dim),
            )
            num_chunks = max(1, dims[0].size // self.block.size)
            with zigzag_numbers(dims, num_chunks if zigzag else 1):
                y = all_to_all_attention(*operands, self.block, **settings)
        return self.output(y, x.shape.names)

    def method_for(self, q: Tensor, k: Tensor, v: Tensor) -> str:
        """Returns "ring" or "all_to_all": the method for queries [..., length, key], keys
        [..., kv_length, key] and values [..., kv_length, value].

        In a forward pass over p devices, a device receives p - 1 parts of p of its share of
        keys and values around a ring; by all_to_all, of a p-th of queries, results, keys and
        values. Keys and values without a dimension that can be sharded are gathered.
        """
        check_tensors(q=q, k=k, v=v)
        if self.method != "fewest_bytes":
            return self.method
        length_names = (self.block.name, self.kv_length_dim)
        region = heads_region(q, k, length_names, self._heads_names())
        axes = positions_axes(q, length_names)
        if region is None or not axes or q.mesh is None:
            return "ring"
        num_shards = q.mesh.group_size(*axes)
        keys_values = k.shape.size + v.shape.size
        sharded_names = set(region) - set(length_names)
        queries_results = 2 * q.shape.size
        if sharded_names <= set(k.shape.names):
            all_to_all = (queries_results + keys_values) / num_shards
        else:
            all_to_all = queries_results / num_shards + keys_values
        return "all_to_all" if all_to_all < keys_values else "ring"

    def _heads_names(self) -> tuple[str, ...]:
        """Returns the names of the heads of queries."""
        return self.query_dims.without(*self.key_dim.names).names
