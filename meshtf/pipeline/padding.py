"""Padding of a batch whose size is not a multiple of the number of microbatches.

Example:

    pad_batch(x, "batch", 4)         # [batch:6 d] -> [batch:8 d]; the last two are zeros
    batch_weights(x, "batch", 4)     # [batch:8]: 8/6 for the first six, 0 for the padding
"""

from __future__ import annotations

import math

from meshtf.graph import Tensor
from meshtf.names import Dimension
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.shapes.slice import pad


def pad_batch(x: Tensor, dim: str, microbatches: int) -> Tensor:
    """Returns x, padded with zeros at the end of `dim` to `padded_size` elements.

    Returns x itself if it has no such dimension, or needs no padding.
    """
    if dim not in x.shape:
        return x
    num_added = padded_size(x, dim, microbatches) - x.shape[dim]
    if num_added == 0:
        return x
    return pad(x, dim, before=0, after=num_added)


def padded_size(x: Tensor, dim: str, microbatches: int) -> int:
    """Returns the size of `dim` with padding: a multiple of `microbatches` times the
    number of shards of `dim`, so that shards are equal.
    """
    size = x.shape[dim]
    mesh = x.mesh
    assert mesh is not None
    axes = mesh.layout.axes(dim)
    num_shards = math.prod(mesh.axes.get(axis, 1) for axis in axes)
    padding = -size % (microbatches * num_shards)
    return size + padding


def batch_weights(x: Tensor, dim: str, microbatches: int) -> Tensor:
    """Returns the float32 weights [dim] of the elements of a padded batch: 0 for padding,
    and one value for all other elements, such that the mean weight is 1.
    """
    size = x.shape[dim]
    size_with_padding = padded_size(x, dim, microbatches)
    index = index_range(x.mesh, Dimension(dim, size_with_padding))
    return cast(index < size, "float32") * (size_with_padding / size)
