"""Reductions and updates by integer index: segment_max, segment_min, segment_mean, scatter,
scatter_add, scatter_update.

    best = mtf.math.segment_max(scores, ids, "bins:16")           # [batch], [batch] -> [bins]
    y = mtf.scatter(updates, ids, "slots:8")                 # [batch d], [batch] -> [slots d]
    cache = mtf.scatter_update(cache, ids, updates, "slots") # cache, with updates at ids

Updates with a negative id are dropped. An id that is too large is an error under every
layout, as in gather; under XLA its update is dropped. If several updates have one id,
scatter and scatter_update take the last of them, under every layout. Where the updated
dimension is sharded, each device computes its shard of the result. Where the updates are
sharded, devices reduce their results by maximum or by sum.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    Op,
    PaddingValue,
    Role,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import Dimension, Names, Shape, ShapeLike, accumulation_dtype
from meshtf.ops.common.checks import require_dim_of_caller
from meshtf.ops.common.tensorflow_functions import tf_function
from meshtf.ops.control.stop_gradient import ComputedOnce
from meshtf.ops.elementwise.arithmetic import add, divide, equal, greater_equal, maximum
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.indexing.gather import (
    SegmentSum,
    check_segments,
    gather_with_bounds,
    segment_dim_and_output_shape,
    segment_sum,
)
from meshtf.ops.indexing.index_bounds import reduce_segments
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.reductions.broadcast import broadcast
from meshtf.ops.shapes.reshape import flatten, reshape, transpose
from meshtf.ops.variables.fill import ones

_SEGMENT_KERNELS = {
    "max": tf_function("math.unsorted_segment_max"),
    "min": tf_function("math.unsorted_segment_min"),
}
_SCATTERED = ".updates"  # the temporary name of the merged dimensions of updates


class SegmentExtreme(Op):
    """The maximum or minimum of x by segment: x [*batch, *reduced, *rest], ids
    [*batch, *reduced] -> [*batch, dim, *rest].

    A segment consists of the elements of x that have the same id.

    Attributes:
      kind: "max" or "min".
      dim: the new dimension, which ids index.
      output_shape: the shape of the output, [*batch, dim, *rest] in any order.
    """

    kind: str
    dim: str
    output_shape: Shape
    # Test inputs: the attributes (kind, dim, output_shape), then each input's kind of values and
    # shape. Integers are less than `below`; "ties" are floats, many of which are equal.
    conformance_samples = (
        Sample(("max", "v", Shape("v:8;d:4")), ("ties b:4;d:4", "int b:4")),
        Sample(("min", "v", Shape("d:2;v:8")), ("d:2;b:4;c:2", "int c:2;b:4")),
        Sample(
            ("max", "v", Shape("g:4;v:4")), ("ties c:4;g:4", "int g:4;c:4"), below=4
        ),
        Sample(("min", "v", Shape("v:5")), ("int b:6", "int b:6"), below=5),
    )

    def output_specs(self, x: Spec, ids: Spec) -> Specs:
        op_name = f"segment_{self.kind}"
        check_segments(op_name, self.dim, self.output_shape, x=x, ids=ids)
        return (Spec(self.output_shape, x.dtype),)

    def role(self, factor: str) -> Role:
        # What sharding `factor`, a dimension of x or of the output, does: the output is
        # sharded too, or each shard has a partial maximum or minimum.
        if factor in self.output_shape:
            return Role.MAP
        return Role(self.kind)

    def padding_value(self, input_index: int, factor: str) -> PaddingValue:
        if input_index == 1:
            return 0.0  # ids must be valid
        if factor in self.output_shape:
            return None
        return -math.inf if self.kind == "max" else math.inf

    def local(self, context: LocalContext, x: Any, ids: Any) -> LocalTensors:
        y = reduce_segments(
            _SEGMENT_KERNELS[self.kind],
            context,
            dim=self.dim,
            x=x,
            ids=ids,
            out_of_range="negative",  # negative ids are ignored, too large ones are errors
        )
        if y.dtype.is_floating:
            # For empty segments, and for segments of infinities only, the kernels return
            # the type's lowest or highest finite number.
            if self.kind == "max":
                is_lowest = y <= y.dtype.min
                y = tf.where(is_lowest, tf.constant(-np.inf, y.dtype), y)
            else:
                is_highest = y >= y.dtype.max
                y = tf.where(is_highest, tf.constant(np.inf, y.dtype), y)
        return (y,)

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor, ids: Tensor) -> Cotangents:
        def at_elements(segments: Tensor) -> Tensor:
            """Returns the value of each element's segment, in the shape of x."""
            # Ids out of range, which are checked already, give zeros here.
            values = gather_with_bounds(segments, ids, self.dim, out_of_range="zeros")
            return transpose(values, x.shape)

        # If several elements are the extreme of a segment, each gets an equal share of the
        # cotangent, as in TensorFlow.
        is_extreme = equal(x, at_elements(y))
        count_op = SegmentSum(self.dim, self.output_shape, out_of_range="zeros")
        count = apply(count_op, cast(is_extreme, x.dtype), ids)
        share = divide(dy, maximum(count, 1.0))
        return [where(is_extreme, at_elements(share), 0.0), None]

    def flops(self, x: Spec, ids: Spec) -> int:
        return x.shape.size


def segment_max(x: Tensor, ids: Tensor, dim: ShapeLike, batch: Names = ()) -> Tensor:
    """Returns maxima of x by segment, [*batch, dim, *(x without names of ids)]: element i
    of the new `dim` is the largest of the elements of x where ids are i.

    Empty segments are -inf, or the smallest integer. Equal largest elements share the
    gradient. Whether a segment with NaN gives NaN is not defined: `mtf.check_numerics`
    finds NaN before.

    Args:
      x: a tensor with all dimensions of ids.
      ids: the segment of each element, integers; elements with negative ids are ignored.
      dim: the dimension of the segments, such as "segment:8".
      batch: names of ids that the result keeps: each of their entries has segments of its
        own.

    Raises:
      ShapeError, DTypeError: as in `segment_sum`.
    """
    dim_name, output_shape = segment_dim_and_output_shape(x, ids, dim=dim, batch=batch)
    op = SegmentExtreme(kind="max", dim=dim_name, output_shape=output_shape)
    return apply(op, apply(ComputedOnce(), x), ids)


def segment_min(x: Tensor, ids: Tensor, dim: ShapeLike, batch: Names = ()) -> Tensor:
    """Returns minima of x by segment, [*batch, dim, *(x without names of ids)]: element i
    of the new `dim` is the smallest of the elements of x where ids are i.

    Empty segments are inf, or the largest integer. Equal smallest elements share the
    gradient. NaN, arguments and errors are as in `segment_max`.
    """
    dim_name, output_shape = segment_dim_and_output_shape(x, ids, dim=dim, batch=batch)
    op = SegmentExtreme(kind="min", dim=dim_name, output_shape=output_shape)
    return apply(op, apply(ComputedOnce(), x), ids)


def segment_mean(x: Tensor, ids: Tensor, dim: ShapeLike, batch: Names = ()) -> Tensor:
    """Returns means of x by segment, [*batch, dim, *(x without names of ids)]; 0 for empty
    segments.

    x is a tensor of floats. Arguments and errors are those of `segment_sum`.
    """
    x = as_tensor("x", x)
    ids = as_tensor("ids", ids)
    # In bfloat16, counts would stop at 256.
    dtype = accumulation_dtype(x.dtype)
    count = segment_sum(ones(ids.mesh, ids.shape, dtype), ids, dim, batch)
    total = segment_sum(cast(x, dtype), ids, dim, batch)
    mean = divide(total, maximum(count, 1.0))
    return cast(mean, x.dtype)


def scatter(updates: Tensor, ids: Tensor, dim: ShapeLike, batch: Names = ()) -> Tensor:
    """Returns updates placed by index, [*batch, dim, *(updates without names of ids)]:
    element i of the new `dim` is the last update whose id is i, or 0 if there is none.

    Arguments are those of `segment_sum`, which adds updates of the same id.

    Raises:
      ShapeError: updates lack a name of ids, or have `dim`.
      DTypeError: ids are not integers.
    """
    updates = as_tensor("updates", updates)
    ids = as_tensor("ids", ids)
    dim_name, output_shape = segment_dim_and_output_shape(
        updates, ids, dim=dim, batch=batch
    )
    y, _ = _last_updates(updates, ids, dim_name, output_shape)
    return y


def scatter_add(x: Tensor, ids: Tensor, updates: Tensor, dim: str) -> Tensor:
    """Returns x with updates added at the indices `ids` of `dim`; all updates with the same
    id are added.

    Args:
      x: a tensor [*batch, dim, *rest], in any order.
      ids: an integer tensor [*batch, *scattered]; names that x has too are batch
        dimensions.
      updates: a tensor [*batch, *scattered, *rest], in any order.
      dim: the name of the dimension of x that ids index.

    Raises:
      ShapeError: the shapes do not fit.
      DTypeError: ids are not integers, or the types of x and updates differ.
    """
    x = as_tensor("x", x)
    ids = as_tensor("ids", ids)
    updates = as_tensor("updates", updates)
    _check_updates(x, ids, updates, dim)
    return add(x, apply(SegmentSum(dim, x.shape), updates, ids))


def scatter_update(x: Tensor, ids: Tensor, updates: Tensor, dim: str) -> Tensor:
    """Returns x [..., dim, ...] with the elements at the indices `ids` of `dim` replaced by
    updates; the last of several updates with the same id counts.

    Arguments and errors are those of `scatter_add`.
    """
    x = as_tensor("x", x)
    ids = as_tensor("ids", ids)
    updates = as_tensor("updates", updates)
    _check_updates(x, ids, updates, dim)
    new_values, update_index = _last_updates(updates, ids, dim, x.shape)
    is_updated = greater_equal(update_index, 0)
    return transpose(where(is_updated, new_values, x), x.shape)


def _last_updates(
    updates: Tensor, ids: Tensor, dim: str, output_shape: Shape
) -> tuple[Tensor, Tensor]:
    """Returns the last update of each element of `dim`, and the index of that update.

    Args:
      updates: the updates, [*batch, *scattered, *rest].
      ids: the index of each update in `dim`, [*batch, *scattered].
      dim: the name of the updated dimension.
      output_shape: the shape of the result, [*batch, dim, *rest].

    Returns:
      The updates, of shape `output_shape`; 0 where there is none. Their indices in the merged
      scattered dimensions, [*batch, dim]; negative where there is none.
    """
    scattered_names = [name for name in ids.shape.names if name not in output_shape]
    ids = _merge_scattered(ids, scattered_names)
    updates = _merge_scattered(updates, scattered_names)
    (update_dim,) = (
        ids_dim for ids_dim in ids.shape if ids_dim.name not in output_shape
    )
    # The last update of an element is the maximum of the indices of its updates.
    indices = broadcast(index_range(ids.mesh, update_dim), ids.shape)
    batch = output_shape.only(ids.shape.names)
    last_op = SegmentExtreme(
        kind="max", dim=dim, output_shape=batch + output_shape.dim(dim)
    )
    last_update_index = apply(last_op, indices, ids)
    new_values = gather_with_bounds(
        updates, last_update_index, update_dim.name, out_of_range="zeros"
    )
    return transpose(new_values, output_shape), last_update_index


def _merge_scattered(x: Tensor, scattered_names: list[str]) -> Tensor:
    """Returns x with the dimensions `scattered_names` merged into one, or with an added dimension
    of size 1 if there are none.
    """
    if not scattered_names:
        return reshape(x, [Dimension(_SCATTERED, 1), *x.shape])
    if len(scattered_names) == 1:
        return x
    return flatten(x, scattered_names, _SCATTERED)


def _check_updates(x: Tensor, ids: Tensor, updates: Tensor, dim: str) -> None:
    """Checks the shapes of the arguments of `scatter_add`. Raises ShapeError."""
    require_dim_of_caller(x.shape, dim)
    expected = ids.shape + x.shape.without(dim, *ids.shape.names)
    if dim in ids.shape or set(expected) != set(updates.shape):
        raise ShapeError(
            explain_error(
                f'the updates along "{dim}" must have the dimensions of ids and the '
                "remaining ones of x.",
                x=repr(x.shape),
                ids=repr(ids.shape),
                updates=repr(updates.shape),
                way_out=f"Bring them to {expected!r}, in any order.",
            )
        )
