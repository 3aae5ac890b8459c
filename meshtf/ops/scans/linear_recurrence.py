"""Linear recurrences along a dimension: h[i] = a[i] * h[i - 1] + b[i].

Where the dimension is sharded, a shard exchanges the product of its a, and its last h for an
initial value of 0. From both follows its last h for any initial value. The gradients of
cumprod, cummax, cummin and cumulative_logsumexp are such recurrences. They need no division,
so they are exact for factors of zero, and do not overflow for large values.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.errors import ShapeError
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    OpWithStatistics,
    Sample,
    Spec,
    Specs,
    Statistics,
    Tensor,
    apply,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import accumulation_dtype
from meshtf.names.arguments import as_dim
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.broadcasting import broadcast_operands, broadcast_shape
from meshtf.ops.common.checks import require_dim, require_floating, same_dtype
from meshtf.ops.elementwise.arithmetic import multiply
from meshtf.ops.reductions.broadcast import broadcast
from meshtf.ops.scans.scan_kernels import running_linear
from meshtf.ops.windows.shift import shift


class LinearRecurrence(OpWithStatistics):
    """h[i] = a[i] * h[i - 1] + b[i] along a dimension, with 0 before the first element.

    Attributes:
      dim: the dimension.
      reverse: whether the recurrence runs from the end: h[i] = a[i] * h[i + 1] + b[i].
    """

    dim: str
    reverse: bool = False
    conformance_samples = (
        Sample(("d",), ("b:4;d:8", "b:4;d:8")),
        Sample(("d", True), ("d:6;b:2", "d:6;b:2")),
        Sample(("d", True), ("d:4", "d:4")),
        Sample(("d",), ("d:5;b:3", "d:5;b:3")),
    )

    def output_specs(self, a: Spec, b: Spec) -> Specs:
        require_dim(a.shape, self.dim)
        if a.shape != b.shape:
            raise ShapeError(
                f"a linear recurrence takes two tensors of one shape, not {a.shape!r} "
                f"and {b.shape!r}."
            )
        require_floating(a, "linear_recurrence")
        return (Spec(a.shape, same_dtype(a, b)),)

    def statistics_dims(self) -> tuple[str, ...]:
        return (self.dim,)

    def statistics_specs(self, a: Spec, b: Spec) -> Specs:
        return (Spec(a.shape.without(self.dim), accumulation_dtype(a.dtype)),) * 2

    def local(self, context: LocalContext, a: Any, b: Any) -> LocalTensors:
        axis = context.axis(0, self.dim)
        _, h = running_linear(widen(a), widen(b), axis, self.reverse)
        return (tf.cast(h, b.dtype),)

    def statistics(self, context: LocalContext, a: Any, b: Any) -> Statistics:
        axis = context.axis(0, self.dim)
        ys = running_linear(widen(a), widen(b), axis, self.reverse)
        last_ys = tuple(last_element(y, axis, self.reverse) for y in ys)
        return Statistics(exchanged=last_ys, residuals=ys)

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, a: Any, b: Any
    ) -> LocalTensors:
        # The running products of a, and h for an initial value of 0, of this shard.
        products, h = residuals
        # The last elements of both, of each shard.
        shard_products, shard_ends = gathered
        _, ends = running_linear(shard_products, shard_ends, 0, self.reverse)
        previous_ends = tf.roll(ends, -1 if self.reverse else 1, 0)
        # The initial value is the last h of the previous shard. It is not added in the first
        # shard of the scan: 0 times an infinite product would be NaN.
        initial = tf.gather(previous_ends, context.shard_index(self.dim))
        is_earlier = is_earlier_shard(context, self.dim, self.reverse, ends)
        is_first_shard = tf.logical_not(tf.reduce_any(is_earlier))
        h = tf.where(is_first_shard, h, h + products * initial)
        return (tf.cast(h, b.dtype),)

    def gradient(self, dy: Any, y: Any, a: Any, b: Any) -> Cotangents:
        offset = 1 if self.reverse else -1
        next_a = shift(a, self.dim, offset)
        backward = LinearRecurrence(self.dim, reverse=not self.reverse)
        db = apply(backward, next_a, dy)
        previous_h = shift(y, self.dim, -offset)
        return [multiply(db, previous_h), db]


def linear_recurrence(a: Tensor, b: Tensor, dim: str, reverse: bool = False) -> Tensor:
    """Returns h [..., dim, ...] with h[i] = a[i] * h[i - 1] + b[i] along `dim`, and 0 before
    the first element.

    It computes moving averages and linear recurrent layers. A device makes log2(size)
    passes over its shards of both tensors (Hillis and Steele 1986).

    Args:
      a: a tensor of floats, which is broadcast by names.
      b: a tensor of floats, which is broadcast by names.
      dim: the name of the dimension of the recurrence.
      reverse: whether the recurrence runs from the end: h[i] = a[i] * h[i + 1] + b[i].

    Raises:
      ShapeError: neither tensor has `dim`, or sizes conflict.
      DTypeError: the data types differ, or are not floating.
    """
    a = as_tensor("a", a)
    b = as_tensor("b", b)
    dim = as_dim("dim", dim)
    a, b = broadcast_operands("linear_recurrence", a, b)
    shape = broadcast_shape(a.shape, b.shape)
    return apply(
        LinearRecurrence(dim, reverse), broadcast(a, shape), broadcast(b, shape)
    )


def last_element(y: Any, axis: int, reverse: bool) -> Any:
    """Returns the last element of y along `axis` in the order of the scan, which is the
    total of a shard. It has size 1 along `axis`.
    """
    last = slice(0, 1) if reverse else slice(-1, None)
    return y[(slice(None),) * axis + (last,)]


def is_earlier_shard(
    context: LocalContext, dim: str, reverse: bool, gathered: Any
) -> Any:
    """Returns a mask over the shards of `dim`, true for shards that are earlier in the scan
    than the local one.

    Its shape is `[num_shards, 1, ...]`, which broadcasts with `gathered`, statistics of all
    shards.
    """
    indices = tf.range(gathered.shape[0])
    local_index = context.shard_index(dim)
    if reverse:
        mask = indices > local_index
    else:
        mask = indices < local_index
    return tf.reshape(mask, [-1] + [1] * (len(gathered.shape) - 1))
