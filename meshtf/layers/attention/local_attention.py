"""Attention to what is near, along one dimension or several: texts, images.

    y = local_attention(q, k, v, "length:128", causal=True)              # [batch heads length key]
    y = local_attention(q, k, v, "height:8;width:8")

Each dimension is parted into blocks. A position sees its own block and, on each side,
the next block's rows within `radius`. So the work is linear in the number of positions,
and where a dimension is cut, only these rows move, from the neighbour that holds them.

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
from meshtf.layers.attention.rotary import Angles
from meshtf.layers.initializers import Initializer
from meshtf.mesh import Mesh
from meshtf.names import Dimension, Names, Shape, ShapeLike
from meshtf.names.arguments import check_bools, check_record
from meshtf.ops.common.checks import require_dim
from meshtf.ops.elementwise.arithmetic import add, equal, logical_and, outer, subtract
from meshtf.ops.elementwise.unary import abs
from meshtf.ops.indexing.gather import range as range_
from meshtf.ops.shapes.reshape import merge, rename, split_dim
from meshtf.ops.windows.halo import halo_exchange


class _Near:
    """One dimension in blocks, and how far a position sees along it."""

    def __init__(
        self, shape: Shape, block: Dimension, radius: int | None, behind_only: bool
    ) -> None:
        self.dim, self.size, self.radius = block.name, shape[block.name], radius
        self.block = min(block.size, self.size)
        if self.size % self.block:
            raise ShapeError(
                explain_error(
                    f"{shape.dim(block.name)!r} cannot be parted into blocks of "
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
        margin = (
            0 if self.blocks.size == 1 else self.block if radius is None else radius
        )
        self.before, self.after = margin, 0 if behind_only else margin
        self.inside = Dimension(f"{self.dim}_in_block", self.block)
        self.memory = Dimension(
            f"{self.dim}_memory", self.before + self.block + self.after
        )

    def part(self, x: Tensor) -> Tensor:
        """Returns x with blocks, and positions within a block."""
        return split_dim(x, self.dim, [self.blocks, self.inside])

    def remember(self, x: Tensor) -> Tensor:
        """Returns x with blocks, and what each of them sees: its own rows and those
        next to it.
        """
        name = self.memory.name
        x = rename(self.part(x), self.inside.name, name)
        return halo_exchange(x, self.blocks.name, name, self.before, self.after)

    def join(self, y: Tensor) -> Tensor:
        """Returns y with one dimension again."""
        return merge(y, [self.blocks, self.inside], self.dim)


class _Window:
    """Blocks of all dimensions: positions in a block are one dimension, and so is what
    they see.
    """

    def __init__(self, near: Sequence[_Near], mesh: Mesh | None) -> None:
        self.near, self.mesh = near, mesh
        names = "_".join(n.dim for n in near)
        self.insides, self.memories = (
            Shape(d) for d in zip(*((n.inside, n.memory) for n in near))
        )
        self.inside = Dimension(f"{names}_in_block", self.insides.size)
        self.memory = Dimension(f"{names}_memory", self.memories.size)

    def part(self, x: Tensor) -> Tensor:
        """Returns x as [blocks... inside]."""
        for n in self.near:
            x = n.part(x)
        return merge(x, self.insides, self.inside.name)

    def remember(self, x: Tensor) -> Tensor:
        """Returns x as [blocks... memory]."""
        for n in self.near:
            x = n.remember(x)
        return merge(x, self.memories, self.memory.name)

    def join(self, y: Tensor) -> Tensor:
        """Returns [blocks... inside] as it was before."""
        y = split_dim(y, self.inside.name, self.insides)
        for n in self.near:
            y = n.join(y)
        return y

    def visible(self, causal: bool) -> Tensor:
        """Returns [blocks... memory inside]: whether memory is there and is not too
        far, or after.
        """
        places, own = (
            self._along(d, s)
            for d, s in ((self.memory, self.memories), (self.inside, self.insides))
        )
        found, before_it = [], None
        for n, place, i in reversed(list(zip(self.near, places, own))):
            whole = outer(range_(self.mesh, n.blocks) * n.block, place, add)
            found.append((whole >= n.before) & (whole < n.before + n.size))
            ahead = outer(place, i, subtract) - n.before
            if n.radius is not None:
                found.append(abs(ahead) <= n.radius)
            before_it = (
                ahead <= 0
                if before_it is None
                else (ahead < 0) | ((ahead == 0) & before_it)
            )
        if causal:
            found.append(before_it)
        return functools.reduce(lambda x, y: outer(x, y, logical_and), found)

    def _along(self, dim: Dimension, shape: Shape) -> list[Tensor]:
        """Returns the number of a row of a merged dimension along each one that it is
        made of.
        """
        row, found = range_(self.mesh, dim), []
        for size in reversed(shape.sizes):
            found.append(row % size)
            row = row // size
        return found[::-1]


def local_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: ShapeLike,
    key_dim: Names = "key",
    radius: ShapeLike = "",
    causal: bool = False,
    segments: Tensor | None = None,
    extra_logit: Tensor | float | None = None,
    scale: float | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Returns attention of each position to those near it: [batch heads length value].

    Args:
      q: queries, [batch heads length key] or [batch heads height width key], say.
      k: keys of the same positions; names such as heads may be absent.
      v: values of the same positions, likewise.
      blocks: the dimensions of positions, each with the size of its blocks.
      key_dim: the name, or names, over which q and k are multiplied.
      radius: how far a position sees along a dimension, such as "length:64", at most a
        block; default: all of its own block and of the blocks next to it.
      causal: whether it sees no position after itself, in the order of `blocks`, the
        last dimension being the fastest (rows of an image from the top).
      segments: integers [batch length]; a position sees its own segment only.
      extra_logit: the score of one more row of zeros.
      scale: default: 1 / sqrt(size of key_dim).
      dropout: what attention weights pass through.

    Raises:
      ShapeError: a dimension is not there, blocks do not divide it, or a radius is
        none.
    """
    q, k, v = as_tensor("q", q), as_tensor("k", k), as_tensor("v", v)
    check_bools(causal=causal)
    if segments is not None:
        check_tensors(segments=segments)
    reach = {d.name: d.size for d in Shape(radius)}
    require_dim(q.shape, *Shape(blocks).names)
    require_dim(Shape(blocks), *reach)
    window = _Window(
        [
            _Near(q.shape, block, reach.get(block.name), behind_only=causal and not i)
            for i, block in enumerate(Shape(blocks))
        ],
        q.mesh,
    )
    visible = window.visible(causal)
    if segments is not None:
        same = outer(window.part(segments), window.remember(segments), equal)
        visible = outer(visible, same, logical_and)
    y = dot_product_attention(
        window.part(q),
        window.remember(k),
        window.remember(v),
        window.memory.name,
        key_dim,
        mask_bias(visible, q.dtype),
        extra_logit,
        scale,
        dropout,
    )
    return window.join(y)


class LocalAttention(Heads):
    """Multi-head attention of each position to those near it, itself included.

    Args:
      mesh: where the variables lie.
      model_dim: what comes in and goes out, such as "d_model:512".
      heads_dim: such as "heads:8".
      key_dim: the size of a head, such as "key:64".
      blocks: the dimensions of positions, each with the size of its blocks, such as
        "length:128".
      radius: how far a position sees, such as "length:64"; default: the blocks next to
        its own.
      causal: whether it sees no position after itself.
      dropout_rate: the share of attention weights that are dropped in training.
      use_bias: whether the products add a bias.
      output_initializer: of the kernel of the last product.
      memory_heads_dim: those of `heads_dim` that keys and values have, too; default:
        all.
      dropout_broadcast: names along which one dropout mask serves all rows.
      scale: what scores are multiplied by; default: 1 / sqrt(size of `key_dim`).
      name: the last part of the path of its variables.

    Raises:
      ShapeError: `memory_heads_dim` are none of `heads_dim`, or `radius` names another
        dimension.
    """

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
        memory_heads_dim: ShapeLike | None = None,
        dropout_broadcast: str = "",
        scale: float | None = None,
        name: str = "attention",
    ) -> None:
        check_bools(causal=causal)
        names = Shape(blocks).names
        super().__init__(
            mesh,
            model_dim,
            heads_dim,
            key_dim,
            memory_heads_dim,
            names,
            "_".join([*names, "memory"]),
            use_bias,
            output_initializer,
            (dropout_rate, dropout_broadcast),
            scale,
            name,
        )
        self.blocks, self.radius, self.causal = Shape(blocks), Shape(radius), causal
        require_dim(self.blocks, *self.radius.names)

    def __call__(
        self,
        x: Tensor,
        segments: Tensor | None = None,
        angles: Angles | None = None,
        training: bool = False,
        extra_logit: Tensor | float | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Returns [batch length model_dim] for x of the same shape.

        Args:
          x: the positions.
          segments: integers [batch length]; a position sees its own segment only.
          angles: rotary positions, by which queries and keys are turned.
          training: whether attention weights are dropped.
          extra_logit: the score of one more row of zeros.
          cache: keys and values of x, if `remember` made them already.
        """
        x = as_tensor("x", x)
        check_bools(training=training)
        if cache is None:
            projected = self.project(x, angles)
        else:
            check_record(Cache, cache=cache)
            k, v = (rename(y, self.memory_dim, self.length_dims) for y in cache)
            projected = (
                self.apply_rotary(self.project_to_heads(self.query, x), angles),
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
            extra_logit,
            self.scale,
            lambda weights: self.dropout(weights, training),
        )
        return self.output(y, x.shape.names)

    def empty_cache(self, x: Tensor, positions: int | None = None) -> Cache:
        """Returns a cache of zeros for steps of the shape and type of x, as small as
        will do.

        Raises:
          ShapeError: steps of what is not causal, or has several dimensions of
            positions.
        """
        check_tensors(x=x)
        if len(self.blocks) > 1 or not self.causal:
            raise ShapeError(
                "steps are for causal attention along one dimension, not "
                f"{self.blocks!r}."
            )
        size = 2 * self.blocks.size if not self.radius else self.radius.size + 1
        return super().empty_cache(x, size if positions is None else positions)

    def is_visible(self, age: Tensor, position: Tensor) -> Tensor:
        """Returns whether what was written `age` steps before this position is seen by
        it.
        """
        check_tensors(age=age, position=position)
        if self.radius:
            near = age <= self.radius.size
        else:
            first = (position // self.blocks.size - 1) * self.blocks.size
            near = outer(position, age, subtract) >= first
        return outer(near, super().is_visible(age, position), logical_and)
