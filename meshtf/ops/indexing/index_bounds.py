"""Bounds checks of integer indices into a dimension, and their conversion to local indices.

An op has a policy (`OutOfRange`) for indices outside of [0, size):

    "error"      any index out of range is an error, which names the op and its line
    "negative"   a negative index is ignored; one that is too large is an error
    "zeros"      an index out of range is ignored
    "trusted"    no index is out of range, since an op has computed the indices

To ignore an index means that a lookup gives zero, and that a segment sum drops the value.

Which indices are errors does not depend on the layout. TensorFlow's CPU kernels raise errors
for indices that are too large. Kernels of GPUs do not; and if the dimension is sharded, or
there are batch dimensions, the kernel gets other indices, computed from these. Then the check
is one comparison, one reduction and an assertion.
XLA cannot raise errors: under every layout, `gather` then gives NaN (for integers, the
smallest integer), a cross entropy gives NaN, and segment sums ignore the index. On live
meshes, whose devices run programs of XLA by jax, a program records its first failure, and the
host raises the error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import LocalContext, Spec
from meshtf.names import Shape, is_integer
from meshtf.ops.shapes.reshape import arrange

OutOfRange: TypeAlias = Literal["error", "negative", "zeros", "trusted"]


def check_ids(ids: Spec, dim: str) -> None:
    """Checks that ids are integers without the dimension that they index.

    Raises:
      DTypeError: ids are no integers.
      ShapeError: ids have `dim`.
    """
    if not is_integer(ids.dtype):
        raise DTypeError(
            explain_error(
                f"indices are integers, not {ids.dtype}.",
                way_out='Convert them: mtf.cast(ids, "int32").',
            )
        )
    if dim in ids.shape:
        raise ShapeError(
            explain_error(
                f'"{dim}" is the dimension that the indices point into, so they cannot '
                "have it themselves.",
                ids=repr(ids.shape),
                way_out=f'Rename it: mtf.rename(ids, "{dim}", "{dim}_out").',
            )
        )


def bounds_checks(
    context: LocalContext, dim: str, ids: Any, out_of_range: OutOfRange
) -> list[Any]:
    """Returns the assertions to run before ids are used, in a list that may be empty: on a
    live mesh the check is recorded instead (`LocalContext.record_check`).

    Args:
      context: the shard that uses the ids.
      dim: the dimension that they index.
      ids: the global indices, any shape.
      out_of_range: the policy for indices out of range.

    Raises:
      InvalidArgumentError: an index is out of range, in eager execution.
    """
    is_checked = context.record_check is not None or not context.compiled
    if out_of_range in ("zeros", "trusted") or not is_checked:
        return []
    size = context.global_size(dim)
    is_valid = _is_valid(ids, size, out_of_range)
    # Names that begin with "." are dimensions that ops make for themselves.
    interval = f'[0, {size}) of "{dim.lstrip(".")}"'
    if context.record_check is not None:
        context.record_check(is_valid, ids, interval)
        return []
    all_valid = tf.reduce_all(is_valid)
    if not tf.executing_eagerly():
        message = tf.constant(f"an index is not in {interval}")
        return [tf.raw_ops.Assert(condition=all_valid, data=[message])]
    if not all_valid:
        invalid_ids = ids.numpy()[~is_valid.numpy()]
        index = invalid_ids.flat[0]
        raise tf.errors.InvalidArgumentError(
            None, None, f"the index {index} is not in {interval}"
        )
    return []


def check_bounds(
    context: LocalContext, dim: str, ids: Any, out_of_range: OutOfRange
) -> Any:
    """Returns ids, which are available only after their `bounds_checks` have run."""
    return with_dependencies(bounds_checks(context, dim, ids, out_of_range), ids)


def with_dependencies(dependencies: list[Any], x: Any) -> Any:
    """Returns x, available only after the dependencies have run."""
    if not dependencies:
        return x
    with tf.control_dependencies(dependencies):
        return tf.identity(x)


def to_local_ids(context: LocalContext, dim: str, ids: Any) -> tuple[Any, Any]:
    """Returns int64 indices relative to the start of the local shard of `dim`, and a
    boolean mask that is true for indices that lie in the shard.
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
    """Returns y; under XLA, with a marker in place of elements whose index is an error.

    The marker is NaN, or the smallest integer. If `dim` is sharded, the shards' y are
    partial sums, so only the first shard marks.

    Args:
      context: the shard.
      dim: the dimension that ids index.
      y: the result of a lookup, [*ids, ...].
      ids: the global indices of the lookup.
      out_of_range: the policy for indices out of range.
    """
    if not context.compiled or out_of_range in ("zeros", "trusted"):
        return y
    keep = _is_valid(ids, context.global_size(dim), out_of_range)
    if context.num_shards(dim) > 1:
        keep = keep | tf.not_equal(context.shard_index(dim), 0)
    has_nan = y.dtype.is_floating or y.dtype.is_complex
    marker = math.nan if has_nan else y.dtype.min
    num_rest = len(y.shape) - len(ids.shape)
    keep = tf.reshape(keep, list(ids.shape) + [1] * num_rest)
    return tf.where(keep, y, tf.constant(marker, y.dtype))


def reduce_segments(
    kernel: Callable[..., Any],
    context: LocalContext,
    dim: str,
    x: Any,
    ids: Any,
    out_of_range: OutOfRange,
) -> Any:
    """Returns the local shard [*batch, dim, *rest] of a reduction by segment, in the order
    of the output.

    Args:
      kernel: an unsorted segment kernel, such as tf.math.unsorted_segment_sum. It ignores
        negative ids.
      context: the shapes of the inputs x and ids, and of the output.
      dim: the dimension of the segments.
      x: `[*batch, *reduced, *rest]`, in any order.
      ids: the segment of each element, `[*batch, *reduced]`, in any order.
      out_of_range: the policy for ids out of range.
    """
    x_shape, ids_shape = context.inputs
    (output_shape,) = context.outputs
    batch_names = [name for name in ids_shape.names if name in output_shape]
    reduced_names = [name for name in ids_shape.names if name not in output_shape]
    rest_names = [
        name for name in output_shape.names if name not in batch_names and name != dim
    ]
    num_segments = context.local_size(dim)
    is_sharded = context.num_shards(dim) > 1
    # Where `kernels_refuse` is true (CPUs without XLA), the kernel itself raises for ids that
    # are too large, and ignores negative ones: the policy "negative". It serves "zeros" too,
    # since the code below first sets all ids out of range to -1, and "trusted", which has
    # none. Under "error" negative ids are errors too. With batch dimensions or a sharded
    # `dim`, the kernel gets other ids than these.
    kernel_checks_bounds = (
        context.kernels_refuse
        and not batch_names
        and not is_sharded
        and out_of_range != "error"
    )
    if not kernel_checks_bounds:
        ids = check_bounds(context, dim, ids, out_of_range)
    ids = arrange(ids, ids_shape.names, batch_names + reduced_names)
    # A group is one index of the batch dimensions.
    num_groups = math.prod(output_shape[name] for name in batch_names)
    if batch_names or is_sharded or out_of_range == "zeros":
        ids, is_local = to_local_ids(context, dim, ids)
        if batch_names:
            # Segment i of group g is segment g * num_segments + i of the kernel.
            ids += _group_offsets(
                batch_names,
                reduced_names,
                ids_shape,
                num_groups=num_groups,
                num_segments=num_segments,
            )
        ids = tf.where(is_local, ids, -1)
    x = arrange(x, x_shape.names, batch_names + reduced_names + rest_names)
    y = kernel(x, as_index_dtype(ids), num_groups * num_segments)
    if batch_names:
        batch_sizes = [output_shape[name] for name in batch_names]
        rest_sizes = [output_shape[name] for name in rest_names]
        y = tf.reshape(y, [*batch_sizes, num_segments, *rest_sizes])
    return arrange(y, [*batch_names, dim, *rest_names], output_shape.names)


def entry_of_shard(
    context: LocalContext, dim: str, x: Any, index: Any, out_of_range: OutOfRange
) -> tuple[Any, Any]:
    """Returns (x, its index in the local shard of a dimension): zeros and index 0 if it lies in
    another shard, or out of range.

    Args:
      context: the shapes of the shards.
      dim: the dimension.
      x: the entry of `dim` at an index, without `dim`.
      index: the global index, a scalar.
      out_of_range: the policy for an index out of range.
    """
    if out_of_range == "trusted" and context.num_shards(dim) == 1:
        return x, as_index_dtype(index)
    index = check_bounds(context, dim, index, out_of_range)
    index, is_local = to_local_ids(context, dim, index)
    return tf.where(is_local, x, tf.zeros([], x.dtype)), tf.where(is_local, index, 0)


def with_infinities(kind: str, y: Any) -> Any:
    """Returns maxima or minima by segment, of floats infinite for empty segments, and for
    segments of infinities only: there kernels return the lowest or highest finite number.
    """
    if y.dtype.is_floating and kind == "max":
        return tf.where(y <= y.dtype.min, tf.constant(-math.inf, y.dtype), y)
    if y.dtype.is_floating and kind == "min":
        return tf.where(y >= y.dtype.max, tf.constant(math.inf, y.dtype), y)
    return y


def _group_offsets(
    batch_names: list[str],
    reduced_names: list[str],
    ids_shape: Shape,
    num_groups: int,
    num_segments: int,
) -> Any:
    """Returns the index of each group's first segment, g * num_segments, in a shape that
    broadcasts with ids: `[*batch, 1, ..., 1]`.
    """
    offsets = tf.range(0, num_groups * num_segments, num_segments, dtype=tf.int64)
    batch_sizes = [ids_shape[name] for name in batch_names]
    return tf.reshape(offsets, batch_sizes + [1] * len(reduced_names))


def _is_valid(ids: Any, size: int, out_of_range: OutOfRange) -> Any:
    """Returns a boolean mask that is false for ids that are errors under a policy.

    Under "error", ids of [0, size) are valid. Under "negative", all ids below `size` are
    valid, negative ones too. The other policies have no errors, so nothing calls this.
    """
    if size > ids.dtype.max:
        # Every id is below `size`, which the type cannot represent.
        is_below = tf.ones_like(ids, tf.bool)
    else:
        is_below = ids < tf.constant(size, ids.dtype)
    if out_of_range == "error":
        return is_below & (ids >= 0)
    return is_below
