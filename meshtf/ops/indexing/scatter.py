"""Reductions and updates by integer index: segment_max, segment_min, segment_mean, scatter,
scatter_add, scatter_update.

    best = mtf.math.segment_max(scores, ids, "bins:16")           # [batch], [batch] -> [bins]
    y = mtf.scatter(updates, ids, "slots:8")                 # [batch d], [batch] -> [slots d]
    cache = mtf.scatter_update(cache, ids, updates, "slots") # cache, with updates at ids

Updates with a negative id are dropped. An id that is too large is refused under every
layout, as by gather, but under XLA its update is dropped. Of several updates with one id
scatter and scatter_update take the last, under every layout. Where the updated dimension
is sharded, each device computes its own shard; where the updates are sharded, devices
reduce their results by max or by sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import ShapeError, explain_error
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
from meshtf.names import Dimension, Names, Shape, ShapeLike, accumulation_dtype
from meshtf.ops.common.checks import require_dim
from meshtf.ops.elementwise.arithmetic import add, divide, equal, greater_equal, maximum
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.indexing.gather import (
    SegmentSum,
    check_segments,
    gather_with_bounds,
    segment_sum,
    segments_like,
)
from meshtf.ops.indexing.gather import range as index_range
from meshtf.ops.indexing.index_bounds import reduce_segments
from meshtf.ops.reductions.broadcast import broadcast
from meshtf.ops.shapes.reshape import flatten, reshape, transpose
from meshtf.ops.variables.fill import ones

_KERNELS = {"max": tf.math.unsorted_segment_max, "min": tf.math.unsorted_segment_min}


class SegmentExtreme(Op):
    """Max or min by segment: x [*batch, *reduced, *rest], ids [*batch, *reduced] ->
    like [*batch, dim, *rest].
    """

    kind: str
    dim: str
    like: Shape
    samples = (
        Sample(("max", "v", Shape("v:8;d:4")), ("ties b:4;d:4", "int b:4")),
        Sample(("min", "v", Shape("d:2;v:8")), ("d:2;b:4;c:2", "int c:2;b:4")),
        Sample(("max", "v", Shape("g:4;v:4")), ("ties c:4;g:4", "int g:4;c:4"), 4),
        Sample(("min", "v", Shape("v:5")), ("int b:6", "int b:6"), 5),
    )

    def output_specs(self, x: Spec, ids: Spec) -> Specs:
        check_segments(f"segment_{self.kind}", self.dim, self.like, x, ids)
        return (Spec(self.like, x.dtype),)

    def role(self, factor: str) -> Role:
        if factor in self.like:
            return Role.MAP
        return Role(self.kind)

    def local(self, context: LocalContext, x: Any, ids: Any) -> LocalTensors:
        y = reduce_segments(_KERNELS[self.kind], context, self.dim, x, ids, "negative")
        if y.dtype.is_floating:
            # Of an empty segment, and of infinities, the kernels give a finite number.
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
            values = gather_with_bounds(segments, ids, self.dim, "zeros")
            return transpose(values, x.shape)

        # Equal elements share the cotangent, as in TensorFlow.
        is_extreme = equal(x, at_elements(y))
        count_op = SegmentSum(self.dim, self.like, "zeros")
        count = apply(count_op, cast(is_extreme, x.dtype), ids)
        share = divide(dy, maximum(count, 1.0))
        return [where(is_extreme, at_elements(share), 0.0), None]

    def flops(self, x: Spec, ids: Spec) -> int:
        return x.shape.size


def segment_max(x: Tensor, ids: Tensor, dim: ShapeLike, batch: Names = ()) -> Tensor:
    """Returns maxima [..., dim] of x by segment: element i of the new `dim` is the
    largest where ids are i.

    Empty segments are -inf, or the smallest integer. Equal elements share the gradient.
    Shapes, arguments and errors are those of `segment_sum`.
    """
    return apply(SegmentExtreme("max", *segments_like(x, ids, dim, batch)), x, ids)


def segment_min(x: Tensor, ids: Tensor, dim: ShapeLike, batch: Names = ()) -> Tensor:
    """Returns minima [..., dim] of x by segment; empty segments are inf, or the largest
    integer: see `segment_max`.
    """
    return apply(SegmentExtreme("min", *segments_like(x, ids, dim, batch)), x, ids)


def segment_mean(x: Tensor, ids: Tensor, dim: ShapeLike, batch: Names = ()) -> Tensor:
    """Returns means [..., dim] of floats by segment, 0 for empty ones: see
    `segment_sum`.
    """
    x = as_tensor("x", x)
    ids = as_tensor("ids", ids)
    dtype = accumulation_dtype(x.dtype)  # bfloat16 counts to 256 only
    count = segment_sum(ones(ids.mesh, ids.shape, dtype), ids, dim, batch)
    total = segment_sum(cast(x, dtype), ids, dim, batch)
    mean = divide(total, maximum(count, 1.0))
    return cast(mean, x.dtype)


def scatter(updates: Tensor, ids: Tensor, dim: ShapeLike, batch: Names = ()) -> Tensor:
    """Returns updates placed by index, [..., dim]: element i of the new `dim` is the
    last update whose id is i, or 0.

    Shapes and arguments are those of `segment_sum`, which adds the updates instead.

    Raises:
      ShapeError: updates lack a name of ids, or have `dim`.
      DTypeError: ids are no integers.
    """
    updates = as_tensor("updates", updates)
    ids = as_tensor("ids", ids)
    dim_name, like = segments_like(updates, ids, dim, batch)
    y, _ = _last_updates(updates, ids, dim_name, like)
    return y


def scatter_add(x: Tensor, ids: Tensor, updates: Tensor, dim: str) -> Tensor:
    """Returns x with updates added at the indices `ids` of `dim`; updates with the same
    id are all added.

    Args:
      x: [*batch, dim, *rest], in any order.
      ids: integers [*batch, *scattered]; names that x has too are batch dimensions.
      updates: [*batch, *scattered, *rest], in any order.
      dim: the name of the dimension that ids index.

    Raises:
      ShapeError: the shapes do not fit.
      DTypeError: ids are no integers, or the types of x and updates differ.
    """
    x = as_tensor("x", x)
    ids = as_tensor("ids", ids)
    updates = as_tensor("updates", updates)
    _check_updates(x, ids, updates, dim)
    return add(x, apply(SegmentSum(dim, x.shape), updates, ids))


def scatter_update(x: Tensor, ids: Tensor, updates: Tensor, dim: str) -> Tensor:
    """Returns x [..., dim, ...] with the elements at the indices `ids` of `dim`
    replaced, by the last of the updates with the same id.

    Arguments and errors are those of `scatter_add`.
    """
    x = as_tensor("x", x)
    ids = as_tensor("ids", ids)
    updates = as_tensor("updates", updates)
    _check_updates(x, ids, updates, dim)
    new, update_index = _last_updates(updates, ids, dim, x.shape)
    return transpose(where(greater_equal(update_index, 0), new, x), x.shape)


def _last_updates(
    updates: Tensor, ids: Tensor, dim: str, like: Shape
) -> tuple[Tensor, Tensor]:
    """Returns the last update of each element of `dim`, of shape `like` and 0 where
    there is none, and its index [*batch, dim], negative where there is none.
    """
    scattered = [n for n in ids.shape.names if n not in like]
    ids = _merge_scattered(ids, scattered)
    updates = _merge_scattered(updates, scattered)
    (update_dim,) = (d for d in ids.shape if d.name not in like)
    indices = broadcast(index_range(ids.mesh, update_dim), ids.shape)
    batch = like.only(ids.shape.names)
    last = apply(SegmentExtreme("max", dim, batch + like.dim(dim)), indices, ids)
    y = gather_with_bounds(updates, last, update_dim.name, "zeros")
    return transpose(y, like), last


_SCATTERED = ".updates"


def _merge_scattered(x: Tensor, scattered: list[str]) -> Tensor:
    """Returns x with one dimension in place of the dimensions `scattered`; of size 1 if
    there are none.
    """
    if not scattered:
        return reshape(x, [Dimension(_SCATTERED, 1), *x.shape])
    if len(scattered) == 1:
        return x
    return flatten(x, scattered, _SCATTERED)


def _check_updates(x: Tensor, ids: Tensor, updates: Tensor, dim: str) -> None:
    require_dim(x.shape, dim)
    expected = ids.shape + x.shape.without(dim, *ids.shape.names)
    if dim in ids.shape or set(expected) != set(updates.shape):
        raise ShapeError(
            explain_error(
                f'the updates along "{dim}" have the dimensions of ids and the '
                "remaining ones of x.",
                x=repr(x.shape),
                ids=repr(ids.shape),
                updates=repr(updates.shape),
                way_out=f"Bring them to {expected!r}, in any order.",
            )
        )
