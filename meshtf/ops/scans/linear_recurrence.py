"""Linear recurrences along a dimension: h[i] = a[i] * h[i - 1] + b[i].

    h = mtf.linear_recurrence(a, b, "length")       # a, b, h [batch, length]

Where the dimension is sharded, each shard computes h for an initial value of 0, and sends
to all shards the statistics

    product    the product of the shard's elements of a
    end        the shard's last h for an initial value of 0

For any initial value, the last h is product * initial + end. So each shard computes from the
statistics of the earlier shards the initial value of its recurrence. The method `statistics`
runs before this exchange, and `local_sharded` after it; the residuals are tensors that a shard
keeps in between. Where the dimension is not sharded, only `local` runs.

The gradients of cumprod, cummax, cummin and cumulative_logsumexp are such recurrences. They
need no division, so they are exact for factors of zero, and do not overflow for large values.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.errors import ShapeError
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    PaddingValue,
    Sample,
    Spec,
    Specs,
    Statistics,
    Tensor,
    apply,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names.arguments import as_dim
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.broadcasting import broadcast_operands, broadcast_shape
from meshtf.ops.common.checks import require_dim, require_floating, same_dtype
from meshtf.ops.common.op_bases import _ExchangesAlongDim
from meshtf.ops.reductions.broadcast import broadcast
from meshtf.ops.scans.scan_kernels import running_linear
from meshtf.ops.windows.shift import shift


class LinearRecurrence(_ExchangesAlongDim):
    """h[i] = a[i] * h[i - 1] + b[i] along a dimension, with 0 before the first element.

    Attributes:
      dim: the name of the dimension.
      reverse: whether the recurrence runs from the end: h[i] = a[i] * h[i + 1] + b[i].
    """

    reverse: bool = False
    num_statistics = 2
    # Each sample: the attributes (dim, reverse), and the shapes of a and b.
    conformance_samples = (
        Sample(("d",), ("b:4;d:8", "b:4;d:8")),
        Sample(("d", True), ("d:6;b:2", "d:6;b:2")),
        Sample(("d", True), ("d:4", "d:4")),
        Sample(("d",), ("d:5;b:3", "d:5;b:3")),
        Sample(("d", True), ("b:3;d:7", "b:3;d:7")),
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

    def padding_value(self, input_index: int, factor: str) -> PaddingValue:
        if factor != self.dim:
            return None
        return 1.0 if input_index == 0 else 0.0  # h[i] = 1 * h[i - 1] + 0

    def local(self, context: LocalContext, a: Any, b: Any) -> LocalTensors:
        axis = context.axis(0, self.dim)  # in the shape of a, input 0
        _products, h = running_linear(widen(a), widen(b), axis, reverse=self.reverse)
        return (tf.cast(h, b.dtype),)

    def statistics(self, context: LocalContext, a: Any, b: Any) -> Statistics:
        axis = context.axis(0, self.dim)
        products, h = running_linear(widen(a), widen(b), axis, reverse=self.reverse)
        product = last_element(products, axis, self.reverse)
        end = last_element(h, axis, self.reverse)
        return Statistics(exchanged=(product, end), residuals=(products, h))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, a: Any, b: Any
    ) -> LocalTensors:
        # The running products of a, and h for an initial value of 0, of this shard.
        products, h = residuals
        shard_index = context.shard_index(self.dim)
        num_shards = _num_shards_with_elements(context, self.dim)
        if num_shards < context.num_shards(self.dim):
            # A reverse scan starts before the last shards, which have no elements.
            gathered = [x[:num_shards] for x in gathered]
            shard_index = tf.minimum(shard_index, num_shards - 1)
        # The statistics of each shard, [shards, ...].
        shard_products, shard_ends = gathered
        # The true last h of each shard: a recurrence over shards.
        _, true_ends = running_linear(
            shard_products, shard_ends, axis=0, reverse=self.reverse
        )
        # The initial value of a shard is the last h of the shard before it in the scan.
        shift_to_next = -1 if self.reverse else 1
        initial_values = tf.roll(true_ends, shift_to_next, axis=0)
        initial_value = tf.gather(initial_values, shard_index)
        # It is not added in the first shard of the scan, whose initial value is 0: 0 times
        # an infinite product would be NaN.
        is_earlier = is_earlier_shard(context, self.dim, self.reverse, true_ends)
        is_first_shard = tf.logical_not(tf.reduce_any(is_earlier))
        h = tf.where(is_first_shard, h, h + products * initial_value)
        return (tf.cast(h, b.dtype),)

    def gradient(self, dh: Any, h: Any, a: Any, b: Any) -> Cotangents:
        # db[i] = a[i + 1] * db[i + 1] + dh[i], and da[i] = db[i] * h[i - 1].
        offset_of_next = 1 if self.reverse else -1
        next_a = shift(a, self.dim, offset_of_next)
        backward = LinearRecurrence(self.dim, reverse=not self.reverse)
        db = apply(backward, next_a, dh)
        previous_h = shift(h, self.dim, -offset_of_next)
        return [db * previous_h, db]


def linear_recurrence(a: Tensor, b: Tensor, dim: str, reverse: bool = False) -> Tensor:
    """Returns h [..., dim, ...] with h[i] = a[i] * h[i - 1] + b[i] along `dim`, and 0 before
    the first element.

    It computes moving averages and linear recurrent layers. A device makes log2(size)
    passes over its shards of both tensors (Hillis and Steele, "Data Parallel Algorithms",
    1986).

    Args:
      a: the factors, a tensor of floats, which is broadcast by names.
      b: the terms, a tensor of floats, which is broadcast by names.
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


def _num_shards_with_elements(context: LocalContext, dim: str) -> int:
    """Returns the number of shards without those at the end that have no elements."""
    counts = context.elements_of_shards(dim)
    return max((i for i, count in enumerate(counts) if count), default=0) + 1


def last_element(y: Any, axis: int, reverse: bool) -> Any:
    """Returns the last element of y along `axis` in the order of the scan, in a tensor of
    size 1 along `axis`; 0 if y is empty there. If y has the running results of a shard, it is
    the shard's total.

    Args:
      y: a TensorFlow tensor.
      axis: the axis of the scan.
      reverse: whether the scan runs from the end, so that the last element has index 0.
    """
    if y.shape[axis] == 0:
        return tf.reduce_sum(y, axis, keepdims=True)
    last = slice(0, 1) if reverse else slice(-1, None)
    return y[(slice(None),) * axis + (last,)]


def is_earlier_shard(
    context: LocalContext, dim: str, reverse: bool, gathered: Any
) -> Any:
    """Returns a mask over the shards of `dim`, true for shards that are earlier in the scan
    than the local one.

    Args:
      context: the context of the op on this device.
      dim: the dimension of the scan.
      reverse: whether the scan runs from the end.
      gathered: the statistics of all shards, [num_shards, ...].

    Returns:
      The mask, [num_shards, 1, ...] with as many axes as `gathered`, so that it broadcasts.
    """
    shard_indices = tf.range(gathered.shape[0])
    local_index = context.shard_index(dim)
    if reverse:
        mask = shard_indices > local_index
    else:
        mask = shard_indices < local_index
    num_other_axes = len(gathered.shape) - 1
    return tf.reshape(mask, [-1] + [1] * num_other_axes)
