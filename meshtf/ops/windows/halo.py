"""Blocks of rows with the rows around them: for what looks at its neighbours, block by
block.

    x = mtf.split_dim(x, "length", "blocks:8;rows:16")
    near = mtf.halo_exchange(x, "blocks", "rows", 4, 0)      # [blocks:8 rows:20]: 4 rows before

Where blocks are cut, these rows alone are moved, from the neighbours that hold them.
Convolutions and pooling need none of this: they cut rows themselves, and say what they
read.
"""

from __future__ import annotations

from meshtf.errors import ShapeError
from meshtf.graph import Tensor
from meshtf.names.arguments import as_bool, as_int
from meshtf.ops.common.checks import tensor_along
from meshtf.ops.shapes.slice import concat, slice
from meshtf.ops.windows.shift import roll, shift


def halo_exchange(
    x: Tensor, blocks: str, rows: str, before: int, after: int, wrap: bool = False
) -> Tensor:
    """Returns blocks, each with the rows of its neighbours before and after its own.

    Args:
      x: such as [batch, blocks, rows].
      blocks: the name along which blocks follow each other.
      rows: the name of the rows in a block; there are `before` + `after` more of them
        in the result.
      before: rows taken from the blocks before, from as many blocks as it takes.
      after: rows taken from the blocks after.
      wrap: whether the last block comes before the first; if not, zeros do.

    Raises:
      ShapeError: x lacks a name, or a number of rows is negative.
    """
    x, blocks = tensor_along(x, blocks, dim_name="blocks")
    x, rows = tensor_along(x, rows, dim_name="rows")
    before, after = as_int("before", before), as_int("after", after)
    as_bool("wrap", wrap)
    if before < 0 or after < 0:
        raise ShapeError(f"halo_exchange takes rows to add, not {before} and {after}.")
    size, move = x.shape[rows], roll if wrap else shift
    pieces = [x]
    for hop, start in enumerate(range(0, before, size), start=1):
        part = min(size, before - start)
        pieces.insert(0, move(slice(x, rows, size - part, part), blocks, hop))
    for hop, start in enumerate(range(0, after, size), start=1):
        pieces.append(move(slice(x, rows, 0, min(size, after - start)), blocks, -hop))
    return concat(pieces, rows)
