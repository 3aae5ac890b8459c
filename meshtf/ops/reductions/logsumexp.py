"""The log-sum-exp over named dimensions.

    y = mtf.reduce_logsumexp(x, "vocab")        # [batch vocab] -> [batch]

If no summed dimension is sharded, the method `local` of the op computes the result. If one is,
`statistics` returns the log-sum-exp of each shard, which all shards exchange, one number for
each element of the result, and `local_sharded` combines them.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    OpWithStatistics,
    PaddingValue,
    Role,
    Sample,
    Spec,
    Specs,
    Statistics,
    Tensor,
    apply,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import (
    Names,
    Shape,
    accumulation_dtype,
    lowest_float,
)
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.broadcasting import is_scalar
from meshtf.ops.common.checks import require_dim, require_floating
from meshtf.ops.elementwise.arithmetic import (
    logaddexp,
    maximum,
)
from meshtf.ops.elementwise.unary import exp
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.reductions.reduce import names_or_all


class LogSumExp(OpWithStatistics):
    """log(sum(exp(x))) over `dims`."""

    dims: tuple[str, ...]

    # Test inputs: the attribute `dims`, then the input's kind of values and shape.
    conformance_samples = (
        Sample((("d",),), ("b:4;d:6",)),
        Sample((("b",),), ("b:4;d:6",)),
        Sample((("d", "b"),), ("b:4;c:2;d:6",)),
        Sample((("d",),), ("ties d:5;b:3",)),
        Sample((("d",),), ("half b:2;d:4",)),
    )

    def output_specs(self, x: Spec) -> Specs:
        require_dim(x.shape, *self.dims)
        require_floating(x, "reduce_logsumexp")
        return (Spec(x.shape.without(*self.dims), x.dtype),)

    def role(self, factor: str) -> Role:
        # What sharding `factor`, a dimension of x, does.
        if factor in self.dims:
            return Role.SAME  # each shard computes the same result, after the exchange
        return Role.MAP  # the result is sharded too

    def padding_value(self, input_index: int, factor: str) -> PaddingValue:
        return -math.inf if factor in self.dims else None

    def statistics_dims(self) -> tuple[str, ...]:
        return self.dims

    def statistics_specs(self, x: Spec) -> Specs:
        return (Spec(x.shape.without(*self.dims), accumulation_dtype(x.dtype)),)

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        return (tf.cast(self._local_logsumexp(context, x), x.dtype),)

    def statistics(self, context: LocalContext, x: Any) -> Statistics:
        return Statistics(exchanged=(self._local_logsumexp(context, x),))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, x: Any
    ) -> LocalTensors:
        (shard_results,) = gathered  # [shards, ...]
        return (tf.cast(log_sum_exp(shard_results, axes=[0]), x.dtype),)

    def _local_logsumexp(self, context: LocalContext, x: Any) -> Any:
        """Returns the log-sum-exp of the local shard of x, at least in float32."""
        axes = [context.axis(0, dim) for dim in self.dims]  # in the shape of input 0
        return log_sum_exp(widen(x), axes)

    def gradient(self, dy: Any, y: Any, x: Any) -> Cotangents:
        # y is made finite, so that the gradient is 0 if all elements are -inf.
        finite_y = maximum(y, lowest_float(x.dtype))
        return [exp(x - finite_y) * dy]

    def flops(self, *xs: Spec) -> int:
        return 4 * xs[0].shape.size


def log_sum_exp(x: Any, axes: list[int]) -> Any:
    """Returns the log-sum-exp of a TensorFlow tensor over axes. Infinite elements give
    infinite results, not NaN.
    """
    exponentials, largest = shifted_exponentials(x, axes)
    return tf.math.log(tf.reduce_sum(exponentials, axes)) + largest


def shifted_exponentials(x: Any, axes: list[int]) -> tuple[Any, Any]:
    """Returns exp(x - max) in the shape of x, and max: the maximum over axes, without these
    axes, clipped to finite numbers.
    """
    largest = tf.reduce_max(x, axes, keepdims=True)
    largest = tf.raw_ops.ClipByValue(
        t=largest,
        clip_value_min=largest.dtype.min,
        clip_value_max=largest.dtype.max,
    )
    return tf.exp(x - largest), tf.squeeze(largest, axes)


def reduce_logsumexp(
    x: Tensor, dims: Names | None = None, sink_logit: Any = None
) -> Tensor:
    """Returns log(sum(exp(x))) over dimensions: x [..., dims] -> [...]. It is -inf where
    all summed elements are -inf.

    Args:
      x: a tensor of floats.
      dims: the names of the dimensions that are summed over; None: all.
      sink_logit: a number whose exponential is added to each sum, or a tensor of names of
        the result, such as one number for each attention head. None: there is none.

    Raises:
      ShapeError: x lacks a name of `dims` or `sink_logit`, or a name is in both.
      DTypeError: x is not of a floating type.
    """
    x = as_tensor("x", x)
    names = names_or_all(x, dims)
    # The gradient is exp(x - y): float16 and bfloat16 are too coarse for this y.
    y = apply(LogSumExp(names), cast(x, accumulation_dtype(x.dtype)))
    y = cast(y, x.dtype)
    if sink_logit is None:
        return y
    check_sink_logit(y.shape, sink_logit)
    return logaddexp(y, sink_logit)


def check_sink_logit(sums: Shape, sink_logit: Any) -> None:
    """Checks that all names of a sink logit are names of the sums.

    Args:
      sums: the shape of the sums to which its exponential is added.
      sink_logit: a number or a tensor.

    Raises:
      ShapeError: the sums lack one of its names.
    """
    if is_scalar(sink_logit):
        return
    shape = as_tensor("sink_logit", sink_logit).shape
    unknown_names = [name for name in shape.names if name not in sums]
    if unknown_names:
        raise ShapeError(
            explain_error(
                f'the sink logit has the dimension "{unknown_names[0]}", which is summed or '
                "absent.",
                sink_logit=repr(shape),
                sums=repr(sums),
                way_out="Give it only names of the sums.",
            )
        )
