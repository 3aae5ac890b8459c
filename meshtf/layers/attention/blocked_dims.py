"""Dimensions of positions that are split into blocks, each with a halo (the positions just
before and after the block): how local attention arranges keys and values.

    length = BlockedDim(q.shape, Dimension("length", 128), radius=16, two_sided=False)
    blocked = BlockedPositions([length], q.mesh)
    queries = blocked.split(q)                # [..., length_blocks, length_in_block:128, key]
    keys = blocked.split_with_halo(k)         # [..., length_blocks, length_context:144, key]
    visible = blocked.visible(causal=True)    # which of the 144 each of the 128 attends to
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import Tensor
from meshtf.mesh import Mesh
from meshtf.names import Dimension, Shape
from meshtf.ops.elementwise.arithmetic import add, logical_and, outer, subtract
from meshtf.ops.elementwise.unary import abs
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.shapes.reshape import flatten, rename, unflatten
from meshtf.ops.windows.halo import halo_exchange


class BlockedDim:
    """One dimension of positions, such as `length`, that is split into blocks.

    Attributes:
      name: the name of the dimension.
      size: the size of the dimension.
      radius: the largest distance along the dimension at which a position attends; None:
        all positions of the adjacent blocks are attended to.
      block_size: the count of positions in a block.
      blocks: the dimension of blocks, such as `length_blocks`.
      halo_before: the count of halo positions before a block.
      halo_after: the count of halo positions after a block.
      in_block: the dimension of the positions of a block, such as `length_in_block`.
      context: the dimension of the positions of a block and its halo, such as
        `length_context`: the halo before the block, the block, the halo after it.
    """

    def __init__(
        self, shape: Shape, block: Dimension, radius: int | None, two_sided: bool
    ) -> None:
        """Splits a dimension into blocks.

        Args:
          shape: the shape of the queries, which has the dimension.
          block: the name of the dimension, with the size of a block.
          radius: the attribute `radius`.
          two_sided: whether a block has a halo on both sides, not only before it.

        Raises:
          ShapeError: the block does not divide the dimension, or is smaller than the
            radius.
        """
        self.name = block.name
        self.size = shape[block.name]
        self.radius = radius
        self.block_size = min(block.size, self.size)
        if self.size % self.block_size:
            raise ShapeError(
                explain_error(
                    f"{shape.dim(block.name)!r} cannot be split into blocks of "
                    f"{self.block_size}.",
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
        self.blocks = Dimension(f"{self.name}_blocks", self.size // self.block_size)
        if self.blocks.size == 1:
            halo = 0
        elif radius is None:
            halo = self.block_size
        else:
            halo = radius
        self.halo_before = halo
        self.halo_after = halo if two_sided else 0
        self.in_block = Dimension(f"{self.name}_in_block", self.block_size)
        self.context = Dimension(
            f"{self.name}_context", self.halo_before + self.block_size + self.halo_after
        )

    def split(self, x: Tensor) -> Tensor:
        """Returns x [..., length, ...] as [..., blocks, in_block, ...]."""
        return unflatten(x, self.name, [self.blocks, self.in_block])

    def split_with_halo(self, x: Tensor) -> Tensor:
        """Returns x [..., length, ...] as [..., blocks, context, ...]."""
        name = self.context.name
        x = rename(self.split(x), self.in_block.name, name)
        return halo_exchange(
            x, self.blocks.name, name, before=self.halo_before, after=self.halo_after
        )

    def merge(self, y: Tensor) -> Tensor:
        """Returns y [..., blocks, in_block, ...] as [..., length, ...]."""
        return flatten(y, [self.blocks, self.in_block], self.name)


class BlockedPositions:
    """All dimensions of positions, split into blocks.

    The positions of a block along all dimensions are merged into one dimension,
    `in_block`, and the positions of a block and its halo into `context`. For images
    [height, width] in blocks of 8 by 8, `in_block` has 64 entries.
    """

    def __init__(self, dims: Sequence[BlockedDim], mesh: Mesh | None) -> None:
        self.dims = dims
        self.mesh = mesh
        names = "_".join(dim.name for dim in dims)
        self.in_block_dims = Shape(dim.in_block for dim in dims)
        self.context_dims = Shape(dim.context for dim in dims)
        self.in_block = Dimension(f"{names}_in_block", self.in_block_dims.size)
        self.context = Dimension(f"{names}_context", self.context_dims.size)

    def split(self, x: Tensor) -> Tensor:
        """Returns x [..., height, width, ...] as [..., blocks of height, blocks of width,
        in_block, ...].
        """
        for dim in self.dims:
            x = dim.split(x)
        return flatten(x, self.in_block_dims, self.in_block.name)

    def split_with_halo(self, x: Tensor) -> Tensor:
        """Returns x [..., height, width, ...] as [..., blocks of height, blocks of width,
        context, ...].
        """
        for dim in self.dims:
            x = dim.split_with_halo(x)
        return flatten(x, self.context_dims, self.context.name)

    def merge(self, y: Tensor) -> Tensor:
        """Returns y [..., blocks of height, blocks of width, in_block, ...] as
        [..., height, width, ...]: the inverse of `split`.
        """
        y = unflatten(y, self.in_block.name, self.in_block_dims)
        for dim in self.dims:
            y = dim.merge(y)
        return y

    def visible(self, causal: bool) -> Tensor:
        """Returns bool [blocks..., context, in_block]: whether a query, which is a position
        of a block, attends to a key, which is a position of the block's context.

        Along each dimension the key must be within the tensor and the radius. If `causal`,
        the key must also not be after the query in raster order: the order of `dims`, in
        which the last dimension changes fastest.
        """
        context_indices = self._unmerged_indices(self.context, self.context_dims)
        query_indices = self._unmerged_indices(self.in_block, self.in_block_dims)
        conditions = []
        # Whether the key is not after the query: a lexicographic comparison, from the last
        # dimension to the first, since an earlier dimension decides before all later ones.
        not_after = None
        dims_and_indices = list(zip(self.dims, context_indices, query_indices))
        for dim, context_index, query_index in reversed(dims_and_indices):
            # The index of the key, plus `halo_before`: the halo of the first block begins
            # before the tensor.
            block_start = index_range(self.mesh, dim.blocks) * dim.block_size
            padded_index = outer(block_start, context_index, add)
            conditions.append(padded_index >= dim.halo_before)
            conditions.append(padded_index < dim.halo_before + dim.size)
            # The index of the key minus the index of the query.
            offset = outer(context_index, query_index, subtract) - dim.halo_before
            if dim.radius is not None:
                conditions.append(abs(offset) <= dim.radius)
            if not_after is None:
                not_after = offset <= 0
            else:
                not_after = (offset < 0) | ((offset == 0) & not_after)
        if causal and not_after is not None:
            conditions.append(not_after)
        return functools.reduce(lambda x, y: outer(x, y, logical_and), conditions)

    def _unmerged_indices(self, merged: Dimension, dims: Shape) -> list[Tensor]:
        """Returns the index along each of `dims` of each entry of the dimension that they
        were merged into: int32 [merged] for each dimension.
        """
        index = index_range(self.mesh, merged)
        indices = []
        for size in reversed(dims.sizes):
            indices.append(index % size)
            index = index // size
        return indices[::-1]
