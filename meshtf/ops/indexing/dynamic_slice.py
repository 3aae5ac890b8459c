"""Slices whose start is a tensor: dynamic_slice, dynamic_update, dynamic_shift.

    window = mtf.dynamic_slice(x, "length", begin, "window:4")   # elements begin .. begin + 4
    cache = mtf.dynamic_update(cache, "length", step, entry)     # entry[batch d], at index step
    y = mtf.dynamic_shift(x, "length", by)                       # y[i] = x[i - by]

The start is an integer tensor: a scalar, or one index for each element of dimensions that
x has, as [batch]. Where the dimension is sharded, each shard compares the indices with its
own range: an update communicates only the new elements, and what is read is a partial sum
over the shards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    Op,
    Role,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import Dimension, ShapeLike, is_integer
from meshtf.names.arguments import as_bool
from meshtf.ops.common.broadcasting import align
from meshtf.ops.common.checks import require_dim, same_dtype, single_dim, tensor_along
from meshtf.ops.elementwise.arithmetic import add, floormod, less, outer, subtract
from meshtf.ops.elementwise.where_cast_clip import cast, clip, where
from meshtf.ops.indexing.gather import gather_with_bounds
from meshtf.ops.indexing.gather import range as index_range
from meshtf.ops.indexing.index_bounds import OutOfRange
from meshtf.ops.shapes.reshape import rename, reshape, transpose
from meshtf.ops.variables.fill import zeros_like


class DynamicUpdate(Op):
    """x[*outer, dim, *inner] with elements begin[*outer] .. begin + size of `dim` replaced
    by updates[*outer, update_dim, *inner].

    `begin` may lack dimensions; all updates lie within x. Where `begin` is a scalar and x
    is not used again, as in a loop, TensorFlow updates x in place.

    Attributes:
      dim: the dimension of x that is updated.
      update_dim: the dimension of the updates in its place.
    """

    dim: str
    update_dim: str
    samples = (
        Sample(("n", "r"), ("a:2;n:8", "int a:2", "a:2;r:2")),
        Sample(("n", "r"), ("n:8;d:4", "int ", "r:3;d:4"), 6),
        Sample(("n", "r"), ("b:2;a:4;n:4", "int a:4", "b:2;a:4;r:1"), 4),
        Sample(("n", "r"), ("int n:8", "int ", "int r:1"), 8),
    )

    def output_specs(self, x: Spec, begin: Spec, updates: Spec) -> Specs:
        return (Spec(x.shape, same_dtype(x, updates)),)

    def role(self, factor: str) -> Role:
        if factor == self.update_dim:
            return Role.UNSHARDED
        return Role.MAP

    def local(
        self, context: LocalContext, x: Any, begin: Any, updates: Any
    ) -> LocalTensors:
        x_shape, begin_shape, _ = context.inputs
        axis = context.axis(0, self.dim)
        outer = x_shape.only(x_shape.names[:axis])
        local_size = context.local_size(self.dim)
        num_updates = context.local_size(self.update_dim)
        is_sharded = context.num_shards(self.dim) > 1
        if is_sharded:
            begin = begin - context.shard_offset(self.dim)
        x_3d = tf.reshape(x, [outer.size, local_size, -1])
        updates = tf.reshape(updates, [outer.size, num_updates, -1])
        crosses_shards = is_sharded and num_updates > 1
        if context.compiled or begin_shape.names or crosses_shards:
            begins = tf.broadcast_to(align(begin, begin_shape, outer), outer.sizes)
            begins = tf.reshape(begins, [-1, 1, 1])
            y = _scatter_slices(x_3d, begins, updates)
        else:
            if is_sharded:
                # Where the element lies in another shard, one of x is written back.
                is_local = (begin >= 0) & (begin < local_size)
                begin = begin % local_size
                current = tf.expand_dims(tf.gather(x_3d, begin, axis=1), 1)
                updates = tf.where(is_local, updates, current)
            y = _write_slice(x_3d, begin, updates)
        return (tf.reshape(y, x.shape),)

    def gradient(
        self, dy: Tensor, y: Tensor, x: Tensor, begin: Tensor, updates: Tensor
    ) -> Cotangents:
        dx = apply(self, dy, begin, zeros_like(updates))
        steps = index_range(x.mesh, updates.shape.dim(self.update_dim))
        indices = add(begin, steps)
        indices = where(less(indices, x.shape[self.dim]), indices, -1)
        dupdates = gather_with_bounds(dy, indices, self.dim, "zeros")
        return [dx, None, transpose(dupdates, updates.shape.names)]


def _write_slice(x: Any, begin: Any, updates: Any) -> Any:
    """Returns x[groups, n, inner] with updates[groups, size, inner] from index begin[] on,
    all within x.

    Of TensorFlow's update kernels this one works in place where x is not used again. XLA
    would need `begin` to be a constant.
    """
    groups, _, inner = x.shape
    size = updates.shape[1]
    return tf.raw_ops.TensorStridedSliceUpdate(
        input=x,
        begin=tf.stack([0, begin, 0]),
        end=tf.stack([groups, begin + size, inner]),
        strides=[1, 1, 1],
        value=updates,
    )


def _scatter_slices(x: Any, begin: Any, updates: Any) -> Any:
    """Returns x[groups, n, inner] with updates[groups, size, inner] from index
    begin[groups, 1, 1] on; updates out of range are dropped.
    """
    groups, size = updates.shape[:2]
    grid = np.meshgrid(range(groups), range(size), indexing="ij")
    group_and_step = np.stack(grid, -1).astype("int32")  # [groups, size, 2]
    indices = group_and_step + begin * np.array([0, 1], "int32")
    return tf.raw_ops.TensorScatterUpdate(
        tensor=x,
        indices=indices,
        updates=updates,
        bad_indices_policy="IGNORE",
    )


def dynamic_slice(x: Tensor, dim: str, begin: Tensor, size: int | ShapeLike) -> Tensor:
    """Returns a slice of one dimension from index `begin` on: [..., dim, ...] ->
    [..., size, ...].

    As in XLA, `begin` is clamped so that the slice lies within x.

    Args:
      x: any tensor.
      dim: the name of the dimension to slice.
      begin: the start index, an integer tensor, scalar or with names of x.
      size: of the slice; or with a new name, such as "window:4", which a layout
        of `dim` does not shard.

    Raises:
      ShapeError: x lacks `dim` or a name of `begin`, or `dim` is smaller than the slice.
      DTypeError: `begin` is no integer.
    """
    x, dim = tensor_along(x, dim)
    if isinstance(size, int):
        slice_dim = Dimension(dim, size)
    else:
        slice_dim = single_dim(size)
    begin = _clamp_start(x, dim, begin, slice_dim.size)
    step_dim = Dimension("." + dim, slice_dim.size)
    steps = index_range(x.mesh, step_dim)
    indices = outer(begin, steps, add)
    return _gather_along(x, dim, indices, slice_dim.name)


def dynamic_update(x: Tensor, dim: str, begin: Tensor, updates: Tensor) -> Tensor:
    """Returns x [..., dim, ...] with the elements of one dimension from index `begin` on
    replaced.

    As in XLA, `begin` is clamped so that all new elements lie within x.

    Args:
      x: any tensor.
      dim: the name of the dimension to update.
      begin: the start index, an integer tensor, scalar or with names of x.
      updates: the new elements, a tensor like x, which has instead of `dim` another size
        of it, or another name, or no such dimension: then it is one element of `dim`.
        Dimensions may be in any order.

    Raises:
      ShapeError: x lacks `dim` or a name of `begin`, or `updates` do not fit.
      DTypeError: `begin` is no integer, or data types differ.
    """
    x, dim = tensor_along(x, dim)
    updates = as_tensor("updates", updates)
    update_dim = _update_dim(x, dim, updates)
    num_updates = update_dim.size if update_dim else 1
    begin = _clamp_start(x, dim, begin, num_updates)
    # The op takes the dimensions of `begin` before `dim`.
    order = list(x.shape.names)
    axis = order.index(dim)
    if any(order.index(name) > axis for name in begin.shape.names):
        remaining = [name for name in order if name not in begin.shape]
        order = [*begin.shape.names, *remaining]
    new_name = "." + dim
    updates = _arrange_updates(updates, update_dim, dim, new_name, order)
    op = DynamicUpdate(dim, new_name)
    y = apply(op, transpose(x, order), begin, updates)
    return transpose(y, x.shape)


def _update_dim(x: Tensor, dim: str, updates: Tensor) -> Dimension | None:
    """Returns the dimension of updates that replaces `dim` of x, or None if they lack one.

    Raises:
      ShapeError: updates and x differ in other dimensions.
    """
    other_dims = set(x.shape.without(dim))
    new_dims = [d for d in updates.shape if d not in other_dims]
    if len(new_dims) > 1 or not other_dims <= set(updates.shape):
        raise ShapeError(
            explain_error(
                f'the new elements differ from the tensor in more than "{dim}".',
                tensor=repr(x.shape),
                updates=repr(updates.shape),
            )
        )
    if not new_dims:
        return None
    return new_dims[0]


def _arrange_updates(
    updates: Tensor,
    update_dim: Dimension | None,
    dim: str,
    new_name: str,
    order: list[str],
) -> Tensor:
    """Returns updates in the order of dimensions `order`, with `new_name` in place of
    `dim`.
    """
    axis = order.index(dim)
    before = order[:axis]
    after = order[axis + 1 :]
    if update_dim is not None:
        updates = rename(updates, {update_dim.name: new_name})
        return transpose(updates, [*before, new_name, *after])
    updates = transpose(updates, [*before, *after])
    dims = list(updates.shape)
    dims.insert(axis, Dimension(new_name, 1))
    return reshape(updates, dims)


def dynamic_shift(x: Tensor, dim: str, by: Tensor, wrap: bool = False) -> Tensor:
    """Returns x [..., dim, ...] shifted along one dimension: element i is element i - by
    of x.

    Where `dim` is sharded, every shard may need any element, so this communicates as much
    as all of x; `shift` and `roll`, whose offset is a Python integer, communicate only
    the elements that cross shards.

    Args:
      x: any tensor of numbers.
      dim: the name along which elements move.
      by: an integer tensor, scalar or with names of x.
      wrap: whether elements that leave at one end enter at the other; else zeros enter.

    Raises:
      ShapeError: x lacks `dim` or a name of `by`.
      DTypeError: `by` is no integer.
    """
    x, dim = tensor_along(x, dim)
    as_bool("wrap", wrap)
    by = _check_index(x, dim, by)
    size = x.shape[dim]
    sources = outer(index_range(x.mesh, Dimension("." + dim, size)), by, subtract)
    if wrap:
        return _gather_along(x, dim, floormod(sources, size), dim)
    return _gather_along(x, dim, sources, dim, "zeros")


def _gather_along(
    x: Tensor,
    dim: str,
    indices: Tensor,
    new_dim: str,
    out_of_range: OutOfRange = "trusted",
) -> Tensor:
    """Returns the elements of x at indices[..., "." + dim], as `new_dim` in place of
    `dim`.
    """
    y = gather_with_bounds(x, indices, dim, out_of_range)
    y = rename(y, {"." + dim: new_dim})
    return transpose(y, [new_dim if n == dim else n for n in x.shape.names])


def _clamp_start(x: Tensor, dim: str, begin: Tensor, size: int) -> Tensor:
    """Returns `begin`, clamped so that `size` elements of `dim` follow it."""
    begin = _check_index(x, dim, begin)
    if not 0 < size <= x.shape[dim]:
        raise ShapeError(
            explain_error(
                f"{x.shape.dim(dim)!r} has no {size} elements.", tensor=repr(x.shape)
            )
        )
    return clip(begin, 0, x.shape[dim] - size)


def _check_index(x: Tensor, dim: str, index: Tensor) -> Tensor:
    """Returns an index into `dim` of x as int32.

    Raises:
      ShapeError: x lacks `dim`, or `index` has it or a dimension that x lacks.
      DTypeError: it is no integer.
    """
    index = as_tensor("begin", index)
    require_dim(x.shape, dim)
    if not is_integer(index.dtype):
        raise DTypeError(
            explain_error(
                f"an index is an integer, not {index.dtype}.",
                way_out='Convert it: mtf.cast(begin, "int32").',
            )
        )
    if dim in index.shape or not set(index.shape) <= set(x.shape):
        raise ShapeError(
            explain_error(
                f'there is one index into "{dim}" for each element of other dimensions '
                "of the tensor, or one for all.",
                tensor=repr(x.shape),
                index=repr(index.shape),
            )
        )
    return cast(index, "int32")
