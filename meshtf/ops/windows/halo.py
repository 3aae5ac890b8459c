"""Halo exchange: blocks of elements, extended by elements of the neighbouring blocks.

    x = mtf.unflatten(x, "length", "blocks:8;elements:16")
    y = mtf.halo_exchange(x, "blocks", "elements", before=4, after=0)  # [blocks:8 elements:20]

Each block of y starts with the last 4 elements of the block before it; the first block
starts with zeros.

Where `blocks` is sharded, devices receive only the added elements, from the devices that
hold them. Convolutions and pooling do not need `halo_exchange`: they exchange the
elements at the borders of shards themselves.
"""

from __future__ import annotations

from meshtf.errors import ShapeError
from meshtf.graph import Tensor
from meshtf.names.arguments import as_bool, as_int
from meshtf.ops.common.checks import tensor_along
from meshtf.ops.shapes.slice import concat, slice
from meshtf.ops.windows.shift import roll, shift


def halo_exchange(
    x: Tensor, blocks: str, elements: str, before: int, after: int, wrap: bool = False
) -> Tensor:
    """Returns x with each block extended by elements of the blocks before and after it,
    such as [batch, blocks, before + elements + after].

    Args:
      x: a tensor, such as [batch, blocks, elements].
      blocks: the name of the dimension of blocks.
      elements: the name of the dimension of the elements of a block.
      before: the number of elements added before each block; they may span several blocks.
      after: the number of elements added after each block.
      wrap: whether the last block precedes the first one and the first one follows the
        last one; if not, zeros do.

    Raises:
      ShapeError: x lacks a name, or `before` or `after` is negative.
    """
    x, blocks = tensor_along(x, blocks, dim_name="blocks")
    x, elements = tensor_along(x, elements, dim_name="elements")
    before = as_int("before", before)
    after = as_int("after", after)
    wrap = as_bool("wrap", wrap)
    if before < 0 or after < 0:
        raise ShapeError(
            "halo_exchange adds zero or more elements before and after, not "
            f"{before} and {after}."
        )
    block_size = x.shape[elements]
    shift_blocks = roll if wrap else shift
    tensors = [x]
    # If `before` exceeds the size of a block, several blocks add elements: the block at
    # distance 1 first, then that at distance 2, and so on. The same holds for `after`.
    for distance, num_added in enumerate(range(0, before, block_size), start=1):
        count = min(block_size, before - num_added)
        border = slice(x, elements, begin=block_size - count, size=count)
        tensors.insert(0, shift_blocks(border, blocks, distance))
    for distance, num_added in enumerate(range(0, after, block_size), start=1):
        count = min(block_size, after - num_added)
        border = slice(x, elements, begin=0, size=count)
        tensors.append(shift_blocks(border, blocks, -distance))
    return concat(tensors, elements)
