"""Local attention: each position attends to nearby positions, along one dimension (texts)
or several (images).

    y = local_attention(q, k, v, "length:128", causal=True)       # [batch, heads, length, key]
    y = local_attention(q, k, v, "height:8;width:8")

Each dimension is split into blocks. The keys and values of a block are those of the block
itself and of a *halo*: the positions of the adjacent blocks that are within `radius`. So
the FLOPs are linear in the length, and where a dimension is sharded, neighbouring devices
exchange only halos.

    attention = LocalAttention(mesh, "d_model:512", "heads:8", "key:64", blocks="length:128")
    y = attention(x)
"""

from __future__ import annotations

from collections.abc import Callable

from meshtf.errors import ShapeError
from meshtf.graph import Tensor
from meshtf.graph.arguments import as_tensor, check_tensors
from meshtf.layers.attention.blocked_dims import BlockedDim, BlockedPositions
from meshtf.layers.attention.dot_product import dot_product_attention
from meshtf.layers.attention.heads import Cache, Heads
from meshtf.layers.attention.masks import mask_bias
from meshtf.layers.attention.rotary import RotaryEmbedding
from meshtf.layers.initializers import Initializer
from meshtf.mesh import Mesh
from meshtf.names import Names, Shape, ShapeLike
from meshtf.names.arguments import check_bools, check_record
from meshtf.ops.common.checks import require_dim_of_caller
from meshtf.ops.elementwise.arithmetic import equal, logical_and, outer, subtract
from meshtf.ops.shapes.reshape import rename


def local_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: ShapeLike,
    key_dim: Names = "key",
    radius: ShapeLike = "",
    causal: bool = False,
    segments: Tensor | None = None,
    sink_logit: Tensor | float | None = None,
    scale: float | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Returns attention to nearby positions, [batch, heads, length, value].

    Args:
      q: queries, such as [batch, heads, length, key] or [batch, heads, height, width,
        key].
      k: keys of the same positions, [batch, heads, length, key]; `heads` may be absent.
      v: values of the same positions, [batch, heads, length, value]; `heads` may be
        absent.
      blocks: the dimensions of positions, each with the size of its blocks, such as
        "length:128".
      key_dim: the name, or names, of the elements of a head: the matmul of q and k sums
        over them.
      radius: the largest distance along a dimension at which a position attends, such as
        "length:64", at most the size of a block; default: a position attends to all of
        its block and of the adjacent blocks.
      causal: whether a position attends only to itself and to earlier positions, in
        raster order: the order of `blocks`, in which the last dimension changes fastest.
      segments: the index of the segment of each position, integers [batch, length]; a
        position attends only to positions of the same segment.
      sink_logit: the score of one additional position of keys, whose value is zero.
      scale: a factor of the scores; default: 1 / sqrt(size of key_dim).
      dropout: a function that is applied to the attention weights.

    Raises:
      ShapeError: a dimension is missing, blocks do not divide it, or a radius is larger
        than a block.
    """
    q = as_tensor("q", q)
    k = as_tensor("k", k)
    v = as_tensor("v", v)
    check_bools(causal=causal)
    if segments is not None:
        check_tensors(segments=segments)
    radius_by_name = {dim.name: dim.size for dim in Shape(radius)}
    require_dim_of_caller(q.shape, *Shape(blocks).names)
    require_dim_of_caller(Shape(blocks), *radius_by_name)
    dims = []
    for i, block in enumerate(Shape(blocks)):
        # `two_sided`: whether keys include a halo after the block. A causal query attends
        # to no later block along the first dimension. Along the others it may: in an
        # image, it attends to all columns of the previous row.
        two_sided = i > 0 or not causal
        block_radius = radius_by_name.get(block.name)
        dims.append(
            BlockedDim(q.shape, block, radius=block_radius, two_sided=two_sided)
        )
    # The context of a block: the positions of the block and of its halo.
    blocked_positions = BlockedPositions(dims, q.mesh)
    visible = blocked_positions.visible(causal)
    if segments is not None:
        query_segments = blocked_positions.split(segments)
        context_segments = blocked_positions.split_with_halo(segments)
        same_segment = outer(query_segments, context_segments, equal)
        visible = outer(visible, same_segment, logical_and)
    y = dot_product_attention(
        blocked_positions.split(q),
        blocked_positions.split_with_halo(k),
        blocked_positions.split_with_halo(v),
        kv_length_dim=blocked_positions.context.name,
        key_dim=key_dim,
        bias=mask_bias(visible, q.dtype),
        sink_logit=sink_logit,
        scale=scale,
        dropout=dropout,
    )
    return blocked_positions.merge(y)


class LocalAttention(Heads):
    """Multi-head attention of each position to nearby ones, itself included.

    Args:
      mesh: the mesh of the variables.
      model_dim: the dimension of inputs and outputs, such as "d_model:512".
      heads_dim: the dimension of the heads, such as "heads:8".
      key_dim: the dimension of the elements of a head, such as "key:64".
      blocks: the dimensions of positions, each with the size of its blocks, such as
        "length:128".
      radius: the largest distance at which a position attends, such as "length:64";
        default: a position attends to all of its block and of the adjacent blocks.
      causal: whether a position attends only to itself and to earlier positions.
      dropout_rate: the fraction of attention weights that is dropped in training.
      use_bias: whether the dense layers add a bias.
      output_initializer: the initializer of the kernel of the output layer; default: that
        of `Dense`.
      kv_heads_dim: the dimensions of `heads_dim` that keys and values have, such as
        "groups:2" of "groups:2;heads:4" for grouped-query attention; default: all.
      dropout_broadcast: names along which the dropout mask is broadcast.
      scale: a factor of the scores; default: 1 / sqrt(size of `key_dim`).
      output_bias: whether the output layer adds a bias; default: as `use_bias`.
      name: the layer's name, a component of the names of its variables; see `mtf.Module`.

    Raises:
      ShapeError: `kv_heads_dim` is not a subset of `heads_dim`, or `radius` names
        another dimension.
    """

    default_name = "attention"

    def __init__(
        self,
        mesh: Mesh,
        model_dim: ShapeLike,
        heads_dim: ShapeLike,
        key_dim: ShapeLike,
        blocks: ShapeLike,
        radius: ShapeLike = "",
        causal: bool = True,
        dropout_rate: float = 0.0,
        use_bias: bool = False,
        output_initializer: Initializer | None = None,
        kv_heads_dim: ShapeLike | None = None,
        dropout_broadcast: str = "",
        scale: float | None = None,
        output_bias: bool | None = None,
        name: str | None = None,
    ) -> None:
        check_bools(causal=causal)
        names = Shape(blocks).names
        super().__init__(
            mesh,
            model_dim,
            heads_dim,
            key_dim,
            kv_heads_dim=kv_heads_dim,
            length_dims=names,
            kv_length_dim="_".join([*names, "context"]),
            use_bias=use_bias,
            output_bias=output_bias,
            output_initializer=output_initializer,
            dropout_rate=dropout_rate,
            dropout_broadcast=dropout_broadcast,
            scale=scale,
            name=name,
        )
        self.blocks = Shape(blocks)
        self.radius = Shape(radius)
        self.causal = causal
        require_dim_of_caller(self.blocks, *self.radius.names)

    def __call__(
        self,
        x: Tensor,
        segments: Tensor | None = None,
        rope: RotaryEmbedding | None = None,
        training: bool = False,
        sink_logit: Tensor | float | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Returns [batch, length, model_dim] for x of the same shape.

        Args:
          x: the input, [batch, length, model_dim].
          segments: the index of the segment of each position, integers [batch, length];
            a position attends only to positions of the same segment.
          rope: a rotary embedding, which rotates queries and keys.
          training: whether dropout is applied to the attention weights.
          sink_logit: the score of one additional position of keys, whose value is zero.
          cache: keys and values of x from `project_keys_values` with the same `rope`, if
            the caller computes them, as it does to fill a cache for decoding; only for one
            dimension of positions. Default: the layer computes them.
        """
        x = as_tensor("x", x)
        check_bools(training=training)
        if cache is None:
            q, k, v = self.project(x, rope)
        else:
            check_record(Cache, cache=cache)
            q = self.apply_rope(self.project_to_heads(self.query, x), rope)
            k = rename(cache.keys, self.kv_length_dim, self.length_dims)
            v = rename(cache.values, self.kv_length_dim, self.length_dims)
        y = local_attention(
            q,
            k,
            v,
            self.blocks,
            key_dim=self.key_dim,
            radius=self.radius,
            causal=self.causal,
            segments=segments,
            sink_logit=sink_logit,
            scale=self.scale,
            dropout=lambda weights: self.dropout(weights, training),
        )
        return self.output(y, x.shape.names)

    def init_cache(self, x: Tensor, positions: int | None = None) -> Cache:
        """Returns a cache of zeros.

        Args:
          x: the input of a step, [batch, model_dim]; only its mesh, shape and data type
            are read.
          positions: the count of slots (entries of the cache along the positions of
            keys); default: as many as a position attends to.

        Raises:
          ShapeError: attention is not causal, or has several dimensions of positions.
        """
        check_tensors(x=x)
        if len(self.blocks) > 1 or not self.causal:
            raise ShapeError(
                "steps are for causal attention along one dimension, not "
                f"{self.blocks!r}."
            )
        if positions is not None:
            num_slots = positions
        elif self.radius:
            num_slots = self.radius.size + 1  # the position itself, and those before it
        else:
            num_slots = 2 * self.blocks.size  # its block and the previous one
        return super().init_cache(x, num_slots)

    def is_visible(self, age: Tensor, position: Tensor) -> Tensor:
        """Returns bool [..., kv_length]: whether a position attends to a slot that was
        written `age` steps ago, as `Heads.is_visible` does for global attention.
        """
        check_tensors(age=age, position=position)
        if self.radius:
            is_near = age <= self.radius.size
        else:
            previous_block_start = (position // self.blocks.size - 1) * self.blocks.size
            slot_position = outer(position, age, subtract)
            is_near = slot_position >= previous_block_start
        return outer(is_near, super().is_visible(age, position), logical_and)
