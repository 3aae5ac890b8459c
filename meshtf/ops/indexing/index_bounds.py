"""Bounds checks of integer indices into a dimension, and their conversion to local indices.

What an op does with an index outside of [0, size) is its policy (`OutOfRange`):

    "error"      any index out of range is an error, with the op and its line
    "negative"   a negative index is ignored; one that is too large is an error
    "zeros"      an index out of range is ignored
    "trusted"    no index is out of range: an op has computed them

What is refused does not depend on the layout. TensorFlow's CPU kernels refuse indices
that are too large by themselves. They do not where the dimension is sharded, where there
are batch dimensions, or on a GPU: there the check is one comparison, one reduction and an
assertion. XLA cannot raise errors: under every layout, `gather` then gives NaN (the
smallest integer, for integers), a cross entropy NaN, and segment sums ignore the index.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import tensorflow as tf

from meshtf.graph import LocalContext
from meshtf.names import Shape
from meshtf.ops.shapes.reshape import arrange

OutOfRange: TypeAlias = Literal["error", "negative", "zeros", "trusted"]


def bounds_checks(
    context: LocalContext, dim: str, ids: Any, out_of_range: OutOfRange
) -> list[Any]:
    """Returns the assertion to run before indices of `dim` are used; empty if none is
    needed.

    Raises:
      InvalidArgumentError: an index is out of range, where values are known already.
    """
    if context.compiled or out_of_range in ("zeros", "trusted"):
        return []
    size = context.global_size(dim)
    in_range = _is_in_range(ids, size, out_of_range)
    all_in_range = tf.reduce_all(in_range)
    interval = f'[0, {size}) of "{dim.lstrip(".")}"'
    if not tf.executing_eagerly():
        message = tf.constant(f"an index is not in {interval}")
        return [tf.raw_ops.Assert(condition=all_in_range, data=[message])]
    if not all_in_range:
        index = ids.numpy()[~in_range.numpy()].ravel()[0]
        raise tf.errors.InvalidArgumentError(
            None, None, f"the index {index} is not in {interval}"
        )
    return []


def check_bounds(
    context: LocalContext, dim: str, ids: Any, out_of_range: OutOfRange
) -> Any:
    """Returns ids, computed after their `bounds_checks`."""
    return with_dependencies(bounds_checks(context, dim, ids, out_of_range), ids)


def with_dependencies(dependencies: list[Any], x: Any) -> Any:
    """Returns x, available only after the dependencies have run."""
    if not dependencies:
        return x
    with tf.control_dependencies(dependencies):
        return tf.identity(x)


def to_local_ids(context: LocalContext, dim: str, ids: Any) -> tuple[Any, Any]:
    """Returns int64 indices relative to the start of the local shard of `dim`, and a mask
    of those that lie in it.
    """
    # In int64: TensorFlow computes int32 on the host, even for a GPU.
    ids = tf.cast(ids, tf.int64)
    if context.num_shards(dim) > 1:
        ids -= tf.cast(context.shard_offset(dim), tf.int64)
    is_local = (ids >= 0) & (ids < context.local_size(dim))
    return ids, is_local


def as_index_dtype(ids: Any) -> Any:
    """Returns ids in a type that TensorFlow's kernels take as indices: int32 or int64."""
    if ids.dtype in (tf.int32, tf.int64):
        return ids
    return tf.cast(ids, tf.int64)


def mark_out_of_range(
    context: LocalContext, dim: str, y: Any, ids: Any, out_of_range: OutOfRange
) -> Any:
    """Returns y[*ids, ...], under XLA with NaN or the smallest integer where an index of
    `dim` is an error.

    Shards of `dim` give partial sums of y, so only the first one marks.
    """
    if not context.compiled or out_of_range in ("zeros", "trusted"):
        return y
    keep = _is_in_range(ids, context.global_size(dim), out_of_range)
    if context.num_shards(dim) > 1:
        keep = keep | tf.not_equal(context.shard_index(dim), 0)
    has_nan = y.dtype.is_floating or y.dtype.is_complex
    marker = math.nan if has_nan else y.dtype.min
    num_rest = len(y.shape) - len(ids.shape)
    keep = tf.reshape(keep, [*ids.shape, *[1] * num_rest])
    return tf.where(keep, y, tf.constant(marker, y.dtype))


def reduce_segments(
    kernel: Callable[..., Any],
    context: LocalContext,
    dim: str,
    x: Any,
    ids: Any,
    out_of_range: OutOfRange,
) -> Any:
    """Returns the segments of the local shard of `dim`, reduced by a TensorFlow kernel.

    Args:
      kernel: an unsorted segment kernel, such as tf.math.unsorted_segment_sum. It ignores
        negative ids.
      context: the shapes of the inputs x and ids, and of the output.
      dim: the dimension of the segments.
      x: `[*batch, *reduced, *rest]`, in any order.
      ids: the segment of each element, `[*batch, *reduced]`, in any order.
      out_of_range: what ids out of range do.
    """
    x_shape, ids_shape = context.inputs
    out = context.outputs[0]
    batch = [n for n in ids_shape.names if n in out]
    reduced = [n for n in ids_shape.names if n not in out]
    rest = [n for n in out.names if n not in batch and n != dim]
    num_segments = context.local_size(dim)
    is_sharded = context.num_shards(dim) > 1
    kernel_checks = (
        context.kernels_refuse
        and not batch
        and not is_sharded
        and out_of_range != "error"
    )
    if not kernel_checks:
        ids = check_bounds(context, dim, ids, out_of_range)
    ids = arrange(ids, ids_shape.names, batch + reduced)
    num_groups = math.prod(out[n] for n in batch)
    if batch or is_sharded or out_of_range == "zeros":
        ids, is_local = to_local_ids(context, dim, ids)
        if batch:  # segment i of group g is segment g * num_segments + i of the kernel
            ids += _group_offsets(batch, reduced, ids_shape, num_groups, num_segments)
        ids = tf.where(is_local, ids, -1)
    x = arrange(x, x_shape.names, batch + reduced + rest)
    y = kernel(x, as_index_dtype(ids), num_groups * num_segments)
    if batch:
        batch_sizes = [out[n] for n in batch]
        rest_sizes = [out[n] for n in rest]
        y = tf.reshape(y, [*batch_sizes, num_segments, *rest_sizes])
    return arrange(y, [*batch, dim, *rest], out.names)


def _group_offsets(
    batch: list[str],
    reduced: list[str],
    ids_shape: Shape,
    num_groups: int,
    num_segments: int,
) -> Any:
    """Returns the offset of each group's segments, to broadcast with ids
    `[*batch, *reduced]`.
    """
    offsets = tf.range(0, num_groups * num_segments, num_segments, dtype=tf.int64)
    batch_sizes = [ids_shape[n] for n in batch]
    return tf.reshape(offsets, [*batch_sizes, *[1] * len(reduced)])


def _is_in_range(ids: Any, size: int, out_of_range: OutOfRange) -> Any:
    """Returns a mask of the ids that are no error: below `size`, and for the policy
    "error" not negative.
    """
    if size > ids.dtype.max:  # the type has no constant `size`, and no larger index
        is_below = tf.ones_like(ids, tf.bool)
    else:
        is_below = ids < tf.constant(size, ids.dtype)
    if out_of_range == "error":
        return is_below & (ids >= 0)
    return is_below
