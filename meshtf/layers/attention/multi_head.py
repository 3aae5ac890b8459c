"""Multi-head, multi-query and grouped-query attention: self-attention, or attention to a
context.

    attention = MultiHeadAttention(mesh, "d_model:512", "heads:8", "key:64")
    bias = causal_bias(mesh, "length:128", "kv_length:128")
    y = attention(x, bias=bias)       # [batch, length, d_model] -> the same

Scores are [batch, heads, length, kv_length]: positions of keys and values have another
name than those of queries, so a layout may shard either. Keys and values that several
heads share lack a dimension of the heads:

    heads_dim="heads:8", kv_heads_dim=""                        multi-query
    heads_dim="groups:2;heads:4", kv_heads_dim="groups:2"       grouped-query

(Shazeer, 2019, arXiv 1911.02150; Ainslie et al., 2023, arXiv 2305.13245.)
"""

from __future__ import annotations

from meshtf.graph import Tensor
from meshtf.graph.arguments import as_tensor, check_tensors
from meshtf.layers.attention.dot_product import (
    dot_product_attention,
    fuses_tensors,
)
from meshtf.layers.attention.heads import Cache, Heads
from meshtf.layers.attention.rotary import RotaryEmbedding
from meshtf.layers.initializers import Initializer
from meshtf.mesh import Mesh
from meshtf.names import ShapeLike
from meshtf.names.arguments import as_int, check_bools, check_record


class MultiHeadAttention(Heads):
    """softmax(q · k / sqrt(key) + bias) · v, for several heads, and a dense layer back
    to `model_dim`.

    Args:
      mesh: the mesh of the variables.
      model_dim: the dimension of inputs and outputs, such as "d_model:512".
      heads_dim: the dimension of the heads, such as "heads:8".
      key_dim: the dimension of the elements of a head, such as "key:64".
      length_dim: the name of the positions of queries.
      kv_length_dim: the name of the positions of keys and values.
      dropout_rate: the fraction of attention weights that is dropped in training.
      use_bias: whether the dense layers add a bias.
      output_initializer: the initializer of the kernel of the output layer; default: that
        of `Dense`.
      kv_heads_dim: the dimensions of `heads_dim` that keys and values have; default:
        all. For grouped-query attention with 8 heads of queries and 2 of keys:
        heads_dim="groups:2; heads:4", kv_heads_dim="groups". A layout shards one of the two
        dimensions along an axis: groups:model in place of heads:model.
      dropout_broadcast: names along which the dropout mask is broadcast.
      scale: a factor of the scores; default: 1 / sqrt(size of `key_dim`).
      output_bias: whether the output layer adds a bias; default: as `use_bias`.
      name: the layer's name, a component of the names of its variables; see `mtf.Module`.

    Raises:
      ShapeError: `kv_heads_dim` is not a subset of `heads_dim`.
    """

    default_name = "attention"

    def __init__(
        self,
        mesh: Mesh,
        model_dim: ShapeLike,
        heads_dim: ShapeLike,
        key_dim: ShapeLike,
        length_dim: str = "length",
        kv_length_dim: str = "kv_length",
        dropout_rate: float = 0.0,
        use_bias: bool = False,
        output_initializer: Initializer | None = None,
        kv_heads_dim: ShapeLike | None = None,
        dropout_broadcast: str = "",
        scale: float | None = None,
        output_bias: bool | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            mesh,
            model_dim,
            heads_dim,
            key_dim,
            kv_heads_dim=kv_heads_dim,
            length_dims=length_dim,
            kv_length_dim=kv_length_dim,
            use_bias=use_bias,
            output_bias=output_bias,
            output_initializer=output_initializer,
            dropout_rate=dropout_rate,
            dropout_broadcast=dropout_broadcast,
            scale=scale,
            name=name,
        )

    def __call__(
        self,
        x: Tensor,
        context: Tensor | Cache | None = None,
        bias: Tensor | None = None,
        rope: RotaryEmbedding | None = None,
        training: bool = False,
        sink_logit: Tensor | float | None = None,
        causal: bool = False,
        window: int | None = None,
    ) -> Tensor:
        """Returns [batch, length, model_dim] for x of the same shape.

        Args:
          x: the input of the queries, [batch, length, model_dim], or [batch, model_dim]
            for a single position.
          context: the input of keys and values, [batch, length, model_dim] of any length,
            or its keys and values from `project_keys_values`; default: x itself.
          bias: added to the scores, which are [batch, heads, length, kv_length].
          rope: a rotary embedding, which rotates queries and keys.
          training: whether dropout is applied to the attention weights.
          sink_logit: the score of one additional position of keys, whose value is zero.
          causal: whether a query attends only to its own and to earlier positions.
          window: to how many of the last positions, its own included, a causal query attends;
            None: all.
        """
        x = as_tensor("x", x)
        check_bools(training=training, causal=causal)
        if window is not None:
            window = as_int("window", window, least=1)
        q = self.apply_rope(self.project_to_heads(self.query, x), rope)
        cache = self.context_keys_values(x, context, rope)
        return self._attend(
            x, q, cache, bias, training, sink_logit, causal=causal, window=window
        )

    def fuses(self, x: Tensor) -> bool:
        """Returns whether self-attention of x [batch, length, model_dim] is one op, which stores
        no scores: see `dot_product_attention`.
        """
        check_tensors(x=x)
        return fuses_tensors(x.mesh, x.dtype, x.shape.get(self.length_dims[0]))

    def context_keys_values(
        self, x: Tensor, context: Tensor | Cache | None, rope: RotaryEmbedding | None
    ) -> Cache:
        """Returns the keys and values, [batch, kv_heads, kv_length, key] each, of the
        `context` of `__call__`; if it is None, those of x.
        """
        check_tensors(x=x)
        if isinstance(context, Cache):
            return context
        return self.project_keys_values(x if context is None else context, rope)

    def attend_cached(
        self,
        x: Tensor,
        cache: Cache,
        bias: Tensor | None = None,
        sink_logit: Tensor | float | None = None,
    ) -> Tensor:
        """Returns the output of `__call__` without dropout, for keys and values that are
        already computed: [batch, length, model_dim] for x of the same shape.

        A decoder calls it in each step to attend to the output of its encoder; x is then
        the input of one position, [batch, model_dim].

        Args:
          x: the input of the queries, [batch, length, model_dim] or [batch, model_dim].
          cache: keys and values from `project_keys_values`.
          bias: added to the scores, which are [batch, heads, length, kv_length].
          sink_logit: the score of one additional position of keys, whose value is zero.
        """
        check_tensors(x=x)
        check_record(Cache, cache=cache)
        q = self.project_to_heads(self.query, x)
        return self._attend(x, q, cache, bias, training=False, sink_logit=sink_logit)

    def _attend(
        self,
        x: Tensor,
        q: Tensor,
        cache: Cache,
        bias: Tensor | None,
        training: bool,
        sink_logit: Tensor | float | None,
        causal: bool = False,
        window: int | None = None,
    ) -> Tensor:
        """Returns the output [batch, length, model_dim] for queries q of input x."""
        has_dropout = training and self.dropout.rate > 0
        y = dot_product_attention(
            q,
            cache.keys,
            cache.values,
            kv_length_dim=self.kv_length_dim,
            key_dim=self.key_dim,
            bias=bias,
            sink_logit=sink_logit,
            scale=self.scale,
            dropout=self.dropout if has_dropout else None,
            length_dim=self.length_dims[0],
            causal=causal,
            window=window,
        )
        return self.output(y, x.shape.names)
