"""Tensors between a dimension of n elements, and the p equal blocks that a collective sends.

    blocks = to_blocks(x, axis=0, axis_sizes=(4,), ops=ops)               # [10] -> [12]
    x = from_blocks(blocks, axis=0, size=10, axis_sizes=(4,), ops=ops)    # [12] -> [10]

A block is what one shard of the dimension stores (see `mesh/shard_sizes.py`). If the sizes of
the axes divide n, both functions return their argument. Otherwise padding is added to the
end of each block that is short, and removed from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from meshtf.mesh import Mesh, Sharded, State
from meshtf.mesh.shard_sizes import is_padded, shard_size
from meshtf.partition import ReshardStep
from meshtf.partition.cost import local_shape
from meshtf.runtime.lowering.padding.element_ranges import take_elements


class BlockOps(Protocol):
    """The ops that this file needs."""

    def pad_end(self, x: Any, axis: int, size: int) -> Any:
        """Returns x with elements of any value at the end of an axis, which then has `size`
        elements.
        """

    def crop_end(self, x: Any, axis: int, size: int) -> Any:
        """Returns the first `size` elements of an axis."""

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        """Returns x in another shape."""


class TensorFlowOps:
    """`BlockOps` for TensorFlow tensors on the current device."""

    def pad_end(self, x: Any, axis: int, size: int) -> Any:
        """Returns x with zeros at the end of an axis, which then has `size` elements."""
        return take_elements(x, axis, start=0, stop=size, fill=0)

    def crop_end(self, x: Any, axis: int, size: int) -> Any:
        """Returns the first `size` elements of an axis."""
        return take_elements(x, axis, start=0, stop=size, fill=0)

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        """Returns x in another shape."""
        return tf.reshape(x, list(shape))


class NumpyOps:
    """`BlockOps` for NumPy arrays."""

    def pad_end(self, x: Any, axis: int, size: int) -> Any:
        """Returns x with zeros at the end of an axis, which then has `size` elements."""
        pads = [(0, 0)] * x.ndim
        pads[axis] = (0, size - x.shape[axis])
        return np.pad(x, pads)

    def crop_end(self, x: Any, axis: int, size: int) -> Any:
        """Returns the first `size` elements of an axis."""
        return x[(slice(None),) * axis + (slice(size),)]

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        """Returns x in another shape."""
        return x.reshape(shape)


def to_blocks(x: Any, axis: int, axis_sizes: Sequence[int], ops: BlockOps) -> Any:
    """Returns x with an axis in blocks of equal size, one for each shard.

    Args:
      x: the tensor.
      axis: the axis that the mesh axes shard.
      axis_sizes: the sizes of these mesh axes, the major one first.
      ops: the ops.
    """
    sizes = [int(size) for size in x.shape]
    if not is_padded(sizes[axis], axis_sizes):
        return x
    num_shards, *minor_sizes = axis_sizes
    shard = shard_size(sizes[axis], num_shards)
    if shard * num_shards != sizes[axis]:
        x = ops.pad_end(x, axis, shard * num_shards)
    if not minor_sizes:
        return x
    x = ops.reshape(x, [*sizes[:axis], num_shards, shard, *sizes[axis + 1 :]])
    x = to_blocks(x, axis + 1, minor_sizes, ops)
    return ops.reshape(x, [*sizes[:axis], -1, *sizes[axis + 1 :]])


def from_blocks(
    x: Any, axis: int, size: int, axis_sizes: Sequence[int], ops: BlockOps
) -> Any:
    """Returns x with the `size` elements of an axis that are in blocks; see `to_blocks`."""
    if not is_padded(size, axis_sizes):
        return x
    sizes = [int(n) for n in x.shape]
    num_shards, *minor_sizes = axis_sizes
    shard = shard_size(size, num_shards)
    if minor_sizes and is_padded(shard, minor_sizes):
        block = sizes[axis] // num_shards
        x = ops.reshape(x, [*sizes[:axis], num_shards, block, *sizes[axis + 1 :]])
        x = from_blocks(x, axis + 1, shard, minor_sizes, ops)
        merged = num_shards * shard
        x = ops.reshape(x, [*sizes[:axis], merged, *sizes[axis + 1 :]])
    if shard * num_shards == size:
        return x
    return ops.crop_end(x, axis, size)


class ReshardBlocks:
    """The blocks of one reshard: what it sends is in blocks before a slice, reduce_scatter or
    all_to_all, and after an all_gather or all_to_all.

    Args:
      step: the reshard.
      mesh: the mesh.
    """

    def __init__(self, step: ReshardStep, mesh: Mesh) -> None:
        assert step.src.spec is not None
        self._step = step
        self._shape = step.src.spec.shape
        self._mesh = mesh
        self._axis_sizes = [mesh.axes[axis] for axis in step.reshard.axes]

    @property
    def any_padded(self) -> bool:
        """Whether a block has padding."""
        if not self._mesh.pads:
            return False
        before = self._step.reshard.before
        after = self._step.reshard.after
        return self._is_padded(before, self._step.out.placement) or self._is_padded(
            after, self._step.src.placement
        )

    def before(self, x: Any, ops: BlockOps) -> Any:
        """Returns the tensor that the collective takes, for the shard x."""
        state = self._step.reshard.after
        if not isinstance(state, Sharded) or not self._mesh.pads:
            return x
        return to_blocks(x, self._shape.index(state.dim), self._axis_sizes, ops)

    def after(self, x: Any, ops: BlockOps) -> Any:
        """Returns the shard for the result x of the collective."""
        state = self._step.reshard.before
        if not isinstance(state, Sharded) or not self._mesh.pads:
            return x
        size = local_shape(self._shape, self._step.out.placement, self._mesh)[state.dim]
        axis = self._shape.index(state.dim)
        return from_blocks(x, axis, size, self._axis_sizes, ops)

    def _is_padded(self, state: State, placement: Any) -> bool:
        """Returns whether the blocks of the dimension of a state have padding.

        Args:
          state: the state along the axes of the reshard.
          placement: the placement in which these axes do not shard the dimension.
        """
        if not isinstance(state, Sharded):
            return False
        size = local_shape(self._shape, placement, self._mesh)[state.dim]
        return is_padded(size, self._axis_sizes)
