"""Local attention: to nearby positions, along one dimension or several: texts, images.

    y = local_attention(q, k, v, "length:128", causal=True)       # [batch, heads, length, key]
    y = local_attention(q, k, v, "height:8;width:8")

Each dimension is split into blocks. A position attends to its own block and, on each side,
to the positions of the next block within `radius`, the *halo*. So the work is linear in
the length, and where a dimension is sharded, only halos are exchanged between neighbours.

    attention = LocalAttention(mesh, "d_model:512", "heads:8", "key:64", blocks="length:128")
    y = attention(x)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import Tensor
from meshtf.graph.arguments import as_tensor, check_tensors
from meshtf.layers.attention.dot_product import dot_product_attention
from meshtf.layers.attention.heads import Cache, Heads
from meshtf.layers.attention.masks import mask_bias
from meshtf.layers.attention.rotary import RotaryEmbedding
from meshtf.layers.initializers import Initializer
from meshtf.mesh import Mesh
from meshtf.names import Dimension, Names, Shape, ShapeLike
from meshtf.names.arguments import check_bools, check_record
from meshtf.ops.common.checks import require_dim
from meshtf.ops.elementwise.arithmetic import add, equal, logical_and, outer, subtract
from meshtf.ops.elementwise.unary import abs
from meshtf.ops.indexing.one_hot_and_range import range as range_
from meshtf.ops.shapes.reshape import flatten, rename, unflatten
from meshtf.ops.windows.halo import halo_exchange


class _BlockedDim:
    """One dimension in blocks, and how far a position attends along it.

    Attributes:
      dim: its name.
      size: its size.
      radius: how far a position attends; None: to the next block.
      block: the size of a block.
      blocks: the dimension of blocks.
      before: the size of the halo before a block.
      after: the size of the halo after a block.
      in_block: the dimension of the positions of a block.
      context: the dimension of the positions of a block and its halo.
    """

    def __init__(
        self, shape: Shape, block: Dimension, radius: int | None, behind_only: bool
    ) -> None:
        self.dim = block.name
        self.size = shape[block.name]
        self.radius = radius
        self.block = min(block.size, self.size)
        if self.size % self.block:
            raise ShapeError(
                explain_error(
                    f"{shape.dim(block.name)!r} cannot be split into blocks of "
                    f"{self.block}.",
                    way_out="Take a block that divides it, or mtf.pad the tensors.",
                )
            )
        if radius is not None and radius > block.size:
            raise ShapeError(
                explain_error(
                    f'a radius of {radius} along "{block.name}" is not within the next '
                    f"block of {block.size}.",
                    way_out="Take larger blocks.",
                )
            )
        self.blocks = Dimension(f"{self.dim}_blocks", self.size // self.block)
        halo = self.block if radius is None else radius
        if self.blocks.size == 1:
            halo = 0
        self.before = halo
        self.after = 0 if behind_only else halo
        self.in_block = Dimension(f"{self.dim}_in_block", self.block)
        self.context = Dimension(
            f"{self.dim}_context", self.before + self.block + self.after
        )

    def split(self, x: Tensor) -> Tensor:
        """Returns x with [blocks, in_block] instead of the dimension."""
        return unflatten(x, self.dim, [self.blocks, self.in_block])

    def split_with_halo(self, x: Tensor) -> Tensor:
        """Returns x with [blocks, context] instead of the dimension."""
        name = self.context.name
        x = rename(self.split(x), self.in_block.name, name)
        return halo_exchange(x, self.blocks.name, name, self.before, self.after)

    def merge(self, y: Tensor) -> Tensor:
        """Returns y with the dimension instead of [blocks, in_block]."""
        return flatten(y, [self.blocks, self.in_block], self.dim)


class _Window:
    """Blocks of all dimensions: the positions of a block are merged into one dimension,
    `in_block`, and so are those that they attend to, `context`.
    """

    def __init__(self, dims: Sequence[_BlockedDim], mesh: Mesh | None) -> None:
        self.dims = dims
        self.mesh = mesh
        names = "_".join(d.dim for d in dims)
        self.in_block_dims = Shape(d.in_block for d in dims)
        self.context_dims = Shape(d.context for d in dims)
        self.in_block = Dimension(f"{names}_in_block", self.in_block_dims.size)
        self.context = Dimension(f"{names}_context", self.context_dims.size)

    def split(self, x: Tensor) -> Tensor:
        """Returns x as [blocks..., in_block]."""
        for dim in self.dims:
            x = dim.split(x)
        return flatten(x, self.in_block_dims, self.in_block.name)

    def split_with_halo(self, x: Tensor) -> Tensor:
        """Returns x as [blocks..., context]."""
        for dim in self.dims:
            x = dim.split_with_halo(x)
        return flatten(x, self.context_dims, self.context.name)

    def merge(self, y: Tensor) -> Tensor:
        """Returns y [blocks..., in_block] with the dimensions that `split` had."""
        y = unflatten(y, self.in_block.name, self.in_block_dims)
        for dim in self.dims:
            y = dim.merge(y)
        return y

    def visible(self, causal: bool) -> Tensor:
        """Returns bool [blocks..., context, in_block]: whether a position of a block
        attends to a position of its context. That is inside of the tensor and within the
        radius along each dimension, and if `causal` not after the position.
        """
        context_indices = self._unmerged_indices(self.context, self.context_dims)
        query_indices = self._unmerged_indices(self.in_block, self.in_block_dims)
        conditions = []
        not_after = None  # in the order of `dims`, the last dimension being the fastest
        for dim, context_index, query_index in reversed(
            list(zip(self.dims, context_indices, query_indices))
        ):
            block_start = range_(self.mesh, dim.blocks) * dim.block
            # The context of a block starts `before` positions ahead of the block.
            index = outer(block_start, context_index, add)
            is_inside = (index >= dim.before) & (index < dim.before + dim.size)
            conditions.append(is_inside)
            ahead = outer(context_index, query_index, subtract) - dim.before
            if dim.radius is not None:
                conditions.append(abs(ahead) <= dim.radius)
            if not_after is None:
                not_after = ahead <= 0
            else:
                not_after = (ahead < 0) | ((ahead == 0) & not_after)
        if causal and not_after is not None:
            conditions.append(not_after)
        return functools.reduce(lambda x, y: outer(x, y, logical_and), conditions)

    def _unmerged_indices(self, merged: Dimension, dims: Shape) -> list[Tensor]:
        """Returns for each entry of a merged dimension its index along each of `dims`:
        int32 [merged] each.
        """
        index = range_(self.mesh, merged)
        indices = []
        for size in reversed(dims.sizes):
            indices.append(index % size)
            index = index // size
        return indices[::-1]


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
      k: keys of the same positions; names such as heads may be absent.
      v: values of the same positions, likewise.
      blocks: the dimensions of positions, each with the size of its blocks.
      key_dim: the name, or names, that the matmul of q and k sums over.
      radius: how far a position attends along a dimension, such as "length:64", at most
        a block; default: all of its block and of the blocks next to it.
      causal: whether a position attends only to itself and to earlier positions, in the
        order of `blocks`, the last dimension being the fastest (raster order).
      segments: integers [batch, length]; a position attends to its segment only.
      sink_logit: the score of one additional position of keys, whose value is zero.
      scale: a factor of the scores; default: 1 / sqrt(size of key_dim).
      dropout: applied to attention weights.

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
    radius_by_name = {d.name: d.size for d in Shape(radius)}
    require_dim(q.shape, *Shape(blocks).names)
    require_dim(Shape(blocks), *radius_by_name)
    dims = []
    for i, block in enumerate(Shape(blocks)):
        # Along the slowest dimension no causal position is in the next block.
        behind_only = causal and i == 0
        block_radius = radius_by_name.get(block.name)
        dims.append(_BlockedDim(q.shape, block, block_radius, behind_only))
    window = _Window(dims, q.mesh)
    visible = window.visible(causal)
    if segments is not None:
        query_segments = window.split(segments)
        context_segments = window.split_with_halo(segments)
        same_segment = outer(query_segments, context_segments, equal)
        visible = outer(visible, same_segment, logical_and)
    y = dot_product_attention(
        window.split(q),
        window.split_with_halo(k),
        window.split_with_halo(v),
        window.context.name,
        key_dim,
        mask_bias(visible, q.dtype),
        sink_logit,
        scale,
        dropout,
    )
    return window.merge(y)


class LocalAttention(Heads):
    """Multi-head attention of each position to nearby ones, itself included.

    Args:
      mesh: where the variables lie.
      model_dim: the dimension of inputs and outputs, such as "d_model:512".
      heads_dim: such as "heads:8".
      key_dim: the size of a head, such as "key:64".
      blocks: the dimensions of positions, each with the size of its blocks, such as
        "length:128".
      radius: how far a position attends, such as "length:64"; default: to all of the
        blocks next to its block.
      causal: whether a position attends only to itself and to earlier positions.
      dropout_rate: the fraction of attention weights that is dropped in training.
      use_bias: whether the dense layers add a bias.
      output_initializer: of the kernel of the output layer.
      kv_heads_dim: the dimensions of `heads_dim` that keys and values have; default:
        all.
      dropout_broadcast: names along which the dropout mask is broadcast.
      scale: a factor of the scores; default: 1 / sqrt(size of `key_dim`).
      name: the last component of the path of its variables.

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
        name: str | None = None,
    ) -> None:
        check_bools(causal=causal)
        names = Shape(blocks).names
        super().__init__(
            mesh,
            model_dim,
            heads_dim,
            key_dim,
            kv_heads_dim,
            names,
            "_".join([*names, "context"]),
            use_bias,
            output_initializer,
            (dropout_rate, dropout_broadcast),
            scale,
            name,
        )
        self.blocks = Shape(blocks)
        self.radius = Shape(radius)
        self.causal = causal
        require_dim(self.blocks, *self.radius.names)

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
          x: the inputs.
          segments: integers [batch, length]; a position attends to its segment only.
          rope: a rotary embedding, by which queries and keys are rotated.
          training: whether attention weights are dropped.
          sink_logit: the score of one additional position of keys, whose value is zero.
          cache: keys and values of x from `project_keys_values`; default: they are
            computed.
        """
        x = as_tensor("x", x)
        check_bools(training=training)
        if cache is None:
            projected = self.project(x, rope)
        else:
            check_record(Cache, cache=cache)
            k, v = (rename(y, self.kv_length_dim, self.length_dims) for y in cache)
            projected = (
                self.apply_rope(self.project_to_heads(self.query, x), rope),
                k,
                v,
            )
        y = local_attention(
            *projected,
            self.blocks,
            self.key_dim,
            self.radius,
            self.causal,
            segments,
            sink_logit,
            self.scale,
            lambda weights: self.dropout(weights, training),
        )
        return self.output(y, x.shape.names)

    def init_cache(self, x: Tensor, positions: int | None = None) -> Cache:
        """Returns a cache of zeros.

        Args:
          x: the input of a step, [batch, model_dim]; only its shape and type count.
          positions: the count of slots; default: as many as a position attends to.

        Raises:
          ShapeError: attention is not causal, or has several dimensions of positions.
        """
        check_tensors(x=x)
        if len(self.blocks) > 1 or not self.causal:
            raise ShapeError(
                "steps are for causal attention along one dimension, not "
                f"{self.blocks!r}."
            )
        if self.radius:
            size = self.radius.size + 1
        else:
            size = 2 * self.blocks.size
        return super().init_cache(x, size if positions is None else positions)

    def is_visible(self, age: Tensor, position: Tensor) -> Tensor:
        """Returns bool [..., kv_length]: whether a position attends to a slot that
        was written `age` steps before.
        """
        check_tensors(age=age, position=position)
        if self.radius:
            is_near = age <= self.radius.size
        else:
            previous_block_start = (position // self.blocks.size - 1) * self.blocks.size
            is_near = outer(position, age, subtract) >= previous_block_start
        return outer(is_near, super().is_visible(age, position), logical_and)
