"""Slices whose start is a tensor: dynamic_slice, dynamic_update, dynamic_shift.

    window = mtf.dynamic_slice(x, "length", begin, "window:4")   # elements begin .. begin + 3
    cache = mtf.dynamic_update(cache, "length", step, entry)     # entry[batch d], at index step
    y = mtf.dynamic_shift(x, "length", by)                       # y[i] = x[i - by]

The start is an integer tensor: a scalar, or a tensor of some of the other dimensions of x,
such as [batch], with a start for each of their elements. Where the sliced dimension is
sharded, each shard compares the indices with its range. So an update communicates only the
new elements, and a slice is a partial sum over the shards.
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
from meshtf.names.arguments import check_bools
from meshtf.ops.common.broadcasting import align
from meshtf.ops.common.checks import require_dim, same_dtype, single_dim, tensor_along
from meshtf.ops.common.local_reshape import broadcast_to
from meshtf.ops.elementwise.arithmetic import add, outer, subtract
from meshtf.ops.elementwise.where_cast_clip import cast, clip, where
from meshtf.ops.indexing.gather import gather_along, gather_with_bounds
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.shapes.reshape import rename, reshape, transpose
from meshtf.ops.variables.fill import zeros_like


class DynamicUpdate(Op):
    """x with a slice of `dim`, which starts at `begin`, replaced by updates.

    x and the output are [*outer, dim, *inner], updates [*outer, update_dim, *inner], and
    begin has any of the outer dimensions. All updates lie within x. Where `begin` is a
    scalar and x is not used again, as in a loop, TensorFlow updates x in place.

    Attributes:
      dim: the dimension of x that is updated.
      update_dim: the dimension of the updates in place of `dim`.
    """

    dim: str
    update_dim: str
    # Test inputs: the attributes (dim, update_dim), then each input's kind of values and
    # shape; "int " is a scalar. Integers are less than `below`.
    conformance_samples = (
        Sample(("n", "r"), ("a:2;n:8", "int a:2", "a:2;r:2")),
        Sample(("n", "r"), ("n:8;d:4", "int ", "r:3;d:4"), below=6),
        Sample(("n", "r"), ("b:2;a:4;n:4", "int a:4", "b:2;a:4;r:1"), below=4),
        Sample(("n", "r"), ("int n:8", "int ", "int r:1"), below=8),
    )

    def output_specs(self, x: Spec, begin: Spec, updates: Spec) -> Specs:
        return (Spec(x.shape, same_dtype(x, updates)),)

    def role(self, factor: str) -> Role:
        # What sharding `factor`, a dimension of x or of the updates, does.
        if factor == self.update_dim:
            return Role.UNSHARDED
        return Role.MAP  # the output is sharded too

    def local(
        self, context: LocalContext, x: Any, begin: Any, updates: Any
    ) -> LocalTensors:
        x_shape, begin_shape, _ = context.inputs
        axis = context.axis(0, self.dim)  # in the shape of x, input 0
        outer_shape = x_shape.only(x_shape.names[:axis])
        local_size = context.local_size(self.dim)
        num_updates = context.local_size(self.update_dim)
        is_sharded = context.num_shards(self.dim) > 1
        if is_sharded:
            begin = begin - context.shard_offset(self.dim)
        if context.compiled and axis == 0 and num_updates == 1:
            return (_write_entry(x, begin, updates, may_lie_outside=is_sharded),)
        # The outer dimensions are merged into groups, and so are the inner dimensions.
        x_3d = tf.reshape(x, [outer_shape.size, local_size, -1])
        updates = tf.reshape(updates, [outer_shape.size, num_updates, -1])
        may_cross_shards = is_sharded and num_updates > 1
        if context.compiled or begin_shape.names or may_cross_shards:
            # Each group has a start index. Updates that lie in other shards are dropped.
            begins = align(begin, begin_shape, outer_shape)
            begins = broadcast_to(begins, outer_shape.sizes)
            begins = tf.reshape(begins, [-1, 1, 1])
            y = _scatter_slices(x_3d, begins, updates)
        else:
            if is_sharded:
                # There is one update. If it lies in another shard, the element of x at
                # this index modulo the local size is written back.
                is_local = (begin >= 0) & (begin < local_size)
                begin = begin % local_size
                current = tf.expand_dims(tf.gather(x_3d, begin, axis=1), axis=1)
                updates = tf.where(is_local, updates, current)
            y = _write_slice(x_3d, begin, updates)
        return (tf.reshape(y, x.shape),)

    def gradient(
        self, dy: Tensor, y: Tensor, x: Tensor, begin: Tensor, updates: Tensor
    ) -> Cotangents:
        dx = apply(self, dy, begin, zeros_like(updates))
        steps = index_range(x.mesh, updates.shape.dim(self.update_dim))
        indices = begin + steps
        # An index that is too large becomes negative, and the gather gives zero for it.
        indices = where(indices < x.shape[self.dim], indices, -1)
        dupdates = gather_with_bounds(dy, indices, self.dim, out_of_range="zeros")
        return [dx, None, transpose(dupdates, updates.shape.names)]


def _write_slice(x: Any, begin: Any, updates: Any) -> Any:
    """Returns x with updates from index `begin` of axis 1 on, by a kernel that works in
    place where x is not used again. XLA cannot compile it, since `begin` is no constant.

    Args:
      x: a TensorFlow tensor [groups, n, inner].
      begin: the start index, a scalar TensorFlow tensor.
      updates: the new elements, [groups, size, inner], all within x.
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


def _write_entry(x: Any, begin: Any, updates: Any, may_lie_outside: bool) -> Any:
    """Returns x with another entry at an index of axis 0, by the ops of a `tf.TensorArray`: XLA
    updates x in place for them, and copies it for a scatter.

    Args:
      x: a TensorFlow tensor [n, ...].
      begin: the index, a scalar TensorFlow tensor.
      updates: the new entry, [1, ...].
      may_lie_outside: whether the index may lie out of range; then the result is x.
    """
    size = x.shape[0]
    entry = updates[0]
    if may_lie_outside:
        is_within = (begin >= 0) & (begin < size)
        begin = begin % size
        entry = tf.where(is_within, entry, tf.gather(x, begin))
    entries = tf.TensorArray(x.dtype, size=size, element_shape=x.shape[1:])
    return entries.unstack(x).write(begin, entry).stack()


def _scatter_slices(x: Any, begin: Any, updates: Any) -> Any:
    """Returns x with updates of each group from its index `begin` of axis 1 on; updates out
    of range are dropped.

    Args:
      x: a TensorFlow tensor [groups, n, inner].
      begin: the start index of each group, [groups, 1, 1].
      updates: the new elements, [groups, size, inner].
    """
    groups, size = updates.shape[:2]
    # The indices of updates, pairs (group, step) of [groups, size, 2]; `begin` is added to
    # the steps.
    grid = np.meshgrid(range(groups), range(size), indexing="ij")
    group_and_step = np.stack(grid, -1).astype("int32")
    indices = group_and_step + begin * np.array([0, 1], "int32")
    return tf.raw_ops.TensorScatterUpdate(
        tensor=x,
        indices=indices,
        updates=updates,
        bad_indices_policy="IGNORE",
    )


def dynamic_slice(x: Tensor, dim: str, begin: Tensor, size: int | ShapeLike) -> Tensor:
    """Returns a slice of one dimension that starts at index `begin`: [..., dim, ...] ->
    [..., size, ...].

    As in XLA, `begin` is clamped so that the slice lies within x.

    Args:
      x: a tensor.
      dim: the name of the dimension to slice.
      begin: the start index, an integer tensor: a scalar, or with names of x.
      size: the size of the slice; or its new dimension, such as "window:4", which is
        not sharded by the layout of `dim`.

    Raises:
      ShapeError: x lacks `dim` or a name of `begin`, or `dim` is smaller than the slice.
      DTypeError: `begin` is not an integer.
    """
    x, dim = tensor_along(x, dim)
    if isinstance(size, int):
        slice_dim = Dimension(dim, size)
    else:
        slice_dim = single_dim(size)
    begin = _clamp_start(x, dim, begin, size=slice_dim.size)
    # A temporary name, since indices cannot have the dimension that they index.
    step_dim = Dimension("." + dim, slice_dim.size)
    steps = index_range(x.mesh, step_dim)
    indices = outer(begin, steps, add)  # begin + step for all pairs
    return gather_along(x, dim, indices, new_dim=slice_dim.name)


def dynamic_update(x: Tensor, dim: str, begin: Tensor, updates: Tensor) -> Tensor:
    """Returns x [..., dim, ...] with a slice of one dimension, which starts at index
    `begin`, replaced by updates.

    As in XLA, `begin` is clamped so that all new elements lie within x.

    Args:
      x: a tensor.
      dim: the name of the dimension to update.
      begin: the start index, an integer tensor: a scalar, or with names of x.
      updates: the new elements, a tensor with the dimensions of x in any order, except
        for `dim`: it has another size or another name, or is missing if one element of
        `dim` is updated.

    Raises:
      ShapeError: x lacks `dim` or a name of `begin`, or `updates` do not fit.
      DTypeError: `begin` is not an integer, or data types differ.
    """
    x, dim = tensor_along(x, dim)
    updates = as_tensor("updates", updates)
    update_dim = _update_dim(x, dim, updates)
    num_updates = update_dim.size if update_dim else 1
    begin = _clamp_start(x, dim, begin, size=num_updates)
    # The op requires that x has the dimensions of `begin` before `dim`.
    order = list(x.shape.names)
    axis = order.index(dim)
    if any(order.index(name) > axis for name in begin.shape.names):
        remaining_names = [name for name in order if name not in begin.shape]
        order = [*begin.shape.names, *remaining_names]
    new_name = "." + dim
    updates = _arrange_updates(
        updates, update_dim, dim=dim, new_name=new_name, order=order
    )
    op = DynamicUpdate(dim, update_dim=new_name)
    y = apply(op, transpose(x, order), begin, updates)
    return transpose(y, x.shape)


def _update_dim(x: Tensor, dim: str, updates: Tensor) -> Dimension | None:
    """Returns the dimension of updates in place of `dim` of x; None if updates have none,
    since they are one element of `dim`.

    Raises:
      ShapeError: updates and x differ in other dimensions.
    """
    other_dims = set(x.shape.without(dim))
    new_dims = [
        update_dim for update_dim in updates.shape if update_dim not in other_dims
    ]
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
    """Returns updates with dimensions in the order of x.

    Args:
      updates: the new elements.
      update_dim: the dimension of updates in place of `dim`, or None: it is added.
      dim: the name of the dimension of x that is updated.
      new_name: the name that replaces that of `update_dim`.
      order: the names of x, in order.
    """
    axis = order.index(dim)
    names_before = order[:axis]
    names_after = order[axis + 1 :]
    if update_dim is not None:
        updates = rename(updates, {update_dim.name: new_name})
        return transpose(updates, [*names_before, new_name, *names_after])
    updates = transpose(updates, [*names_before, *names_after])
    dims = list(updates.shape)
    dims.insert(axis, Dimension(new_name, 1))
    return reshape(updates, dims)


def dynamic_shift(x: Tensor, dim: str, by: Tensor, wrap: bool = False) -> Tensor:
    """Returns x [..., dim, ...] shifted along one dimension: element i is element i - by
    of x.

    Where `dim` is sharded, every shard may need any element, so this communicates as many
    bytes as x has. `shift` and `roll`, whose offset is a Python integer, communicate only
    the elements that cross shards.

    Args:
      x: a tensor of numbers.
      dim: the name of the dimension along which elements move.
      by: the number of indices by which elements move, an integer tensor: a scalar, or
        with names of x.
      wrap: whether elements that leave at one end enter at the other; if not, zeros enter.

    Raises:
      ShapeError: x lacks `dim` or a name of `by`.
      DTypeError: `by` is not an integer.
    """
    x, dim = tensor_along(x, dim)
    check_bools(wrap=wrap)
    by = _as_index(x, dim, by)
    size = x.shape[dim]
    sources = outer(index_range(x.mesh, Dimension("." + dim, size)), by, subtract)
    if wrap:
        return gather_along(x, dim, sources % size, new_dim=dim)
    return gather_along(x, dim, sources, new_dim=dim, out_of_range="zeros")


def _clamp_start(x: Tensor, dim: str, begin: Tensor, size: int) -> Tensor:
    """Returns `begin` clamped to [0, size of `dim` - size], so that a slice of `size`
    elements of `dim` lies within x.

    Raises:
      ShapeError: the slice is longer than the dimension, or as in `_as_index`.
      DTypeError: `begin` is not an integer.
    """
    begin = _as_index(x, dim, begin)
    if not 0 < size <= x.shape[dim]:
        raise ShapeError(
            explain_error(
                f"{x.shape.dim(dim)!r} has no {size} elements.", tensor=repr(x.shape)
            )
        )
    return clip(begin, low=0, high=x.shape[dim] - size)


def _as_index(x: Tensor, dim: str, index: Tensor) -> Tensor:
    """Returns an index into `dim` of x as an int32 tensor.

    Raises:
      ShapeError: x lacks `dim`, or `index` has it or a dimension that x lacks.
      DTypeError: the index is not an integer.
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
