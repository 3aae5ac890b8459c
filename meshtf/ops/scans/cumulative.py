"""Running sums, products, maxima, minima and log-sum-exps along a dimension.

    x           [1 2 3 4]   on two devices: [1 2] [3 4]
    totals       3   7      each shard exchanges its total
    cumsum(x)   [1 3] [6 10]   the local running sum, plus the totals of the earlier shards

The gradients of prod, max, min and logsumexp are linear recurrences.

Half floats are computed in float32 and rounded once, at the end: in bfloat16 a sum of
ones stops at 256.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, explain_error
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
from meshtf.names import accumulation_dtype, is_floating, is_integer
from meshtf.names.arguments import as_bool
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.checks import (
    require_dim,
    require_floating,
    tensor_along,
)
from meshtf.ops.elementwise.arithmetic import equal, multiply, subtract
from meshtf.ops.elementwise.unary import exp, logical_not
from meshtf.ops.elementwise.where_cast_clip import cast, clip, where
from meshtf.ops.reductions.logsumexp import log_sum_exp
from meshtf.ops.scans.linear_recurrence import (
    LinearRecurrence,
    is_earlier_shard,
    last_element,
)
from meshtf.ops.scans.scan_kernels import NEUTRAL, running
from meshtf.ops.windows.shift import shift


class Cumsum(OpWithStatistics):
    """Running sum along `dim`; exclusive: without the element itself; reverse: from the
    end.
    """

    dim: str
    exclusive: bool = False
    reverse: bool = False

    linearity = "joint"
    samples = (
        Sample(("d",), ("b:4;d:6",)),
        Sample(("b", True), ("b:4;d:6",)),
        Sample(("d", False, True), ("c:2;d:4;b:3",)),
        Sample(("d", True, True), ("b:4;d:8",)),
        Sample(("d",), ("b:3;d:5",)),
        Sample(("d", True), ("int b:4;d:8",), gradient=False),
    )

    def output_specs(self, x: Spec) -> Specs:
        require_dim(x.shape, self.dim)
        if x.dtype == "bool":
            raise DTypeError(
                'cumsum does not take bool: count with mtf.cast(x, "int32").'
            )
        return (x,)

    def statistics_dims(self) -> tuple[str, ...]:
        return (self.dim,)

    def statistics_specs(self, x: Spec) -> Specs:
        return (Spec(x.shape.without(self.dim), accumulation_dtype(x.dtype)),)

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        return (tf.cast(self._running(context, widen(x)), x.dtype),)

    def statistics(self, context: LocalContext, x: Any) -> Statistics:
        axis = context.axis(0, self.dim)
        x = widen(x)
        y = self._running(context, x)
        total = last_element(y, axis, self.reverse)
        if self.exclusive:
            total = total + last_element(x, axis, self.reverse)
        return Statistics(exchanged=(total,), residuals=(y,))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, x: Any
    ) -> LocalTensors:
        offsets = tf.cumsum(gathered[0], 0, exclusive=True, reverse=self.reverse)
        offset = tf.gather(offsets, context.shard_index(self.dim))
        y = residuals[0] + offset
        return (tf.cast(y, x.dtype),)

    def _running(self, context: LocalContext, x: Any) -> Any:
        return tf.cumsum(
            x, context.axis(0, self.dim), exclusive=self.exclusive, reverse=self.reverse
        )

    def gradient(self, dy: Any, y: Any, x: Any) -> Cotangents:
        return [apply(Cumsum(self.dim, self.exclusive, not self.reverse), dy)]


class Scan(OpWithStatistics):
    """Running prod, max, min or logsumexp along `dim`; reverse: from the end."""

    kind: str
    dim: str
    reverse: bool = False
    samples = (
        Sample(("prod", "d"), ("b:4;d:8",)),
        Sample(("prod", "d", True), ("positive d:6;b:2",)),
        Sample(("max", "d"), ("ties b:2;d:8",)),
        Sample(("max", "d", True), ("int b:3;d:4",)),
        Sample(("min", "d", True), ("ties d:4;b:5",)),
        Sample(("logsumexp", "d"), ("b:4;d:6",)),
        Sample(("logsumexp", "d", True), ("d:4;b:2",)),
    )

    def output_specs(self, x: Spec) -> Specs:
        require_dim(x.shape, self.dim)
        if self.kind == "logsumexp":
            require_floating(x, "cumulative_logsumexp")
        if not is_floating(x.dtype) and not is_integer(x.dtype):
            raise DTypeError(
                explain_error(
                    f"cum{self.kind} does not take {x.dtype}.",
                    way_out='Make numbers of it: mtf.cast(x, "int32").',
                )
            )
        return (x,)

    def statistics_dims(self) -> tuple[str, ...]:
        return (self.dim,)

    def statistics_specs(self, x: Spec) -> Specs:
        return (Spec(x.shape.without(self.dim), accumulation_dtype(x.dtype)),)

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        axis = context.axis(0, self.dim)
        wide = running(self.kind, widen(x), axis, self.reverse)
        y = tf.cast(wide, x.dtype)
        return (y,)

    def statistics(self, context: LocalContext, x: Any) -> Statistics:
        axis = context.axis(0, self.dim)
        y = running(self.kind, widen(x), axis, self.reverse)
        return Statistics(
            exchanged=(last_element(y, axis, self.reverse),), residuals=(y,)
        )

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, x: Any
    ) -> LocalTensors:
        reduce = _REDUCE[self.kind]
        totals = gathered[0]
        neutral = tf.constant(NEUTRAL[self.kind](totals.dtype), totals.dtype)
        is_earlier = is_earlier_shard(context, self.dim, self.reverse, totals)
        totals = tf.where(is_earlier, totals, neutral)
        offset = tf.broadcast_to(reduce(totals, [0]), x.shape)
        y = reduce(tf.stack([offset, residuals[0]]), [0])
        return (tf.cast(y, x.dtype),)

    def gradient(self, dy: Any, y: Any, x: Any) -> Cotangents:
        return [_GRADIENT[self.kind](dy, y, x, self.dim, self.reverse)]


_REDUCE = {
    "prod": tf.reduce_prod,
    "max": tf.reduce_max,
    "min": tf.reduce_min,
    "logsumexp": log_sum_exp,
}


def _prod_gradient(dy: Any, y: Any, x: Any, dim: str, reverse: bool) -> Any:
    """Gradient of cumprod, without a division by x: dx[i] = y[i - 1] * h[i], where
    h[i] = x[i + 1] * h[i + 1] + dy[i].
    """
    offset = 1 if reverse else -1
    next_x = shift(x, dim, offset)
    h = apply(LinearRecurrence(dim, not reverse), next_x, dy)
    previous_y = shift(y, dim, -offset, fill=1)
    return multiply(previous_y, h)


def _extreme_gradient(dy: Any, y: Any, x: Any, dim: str, reverse: bool) -> Any:
    """Gradient of cummax and cummin: each dy goes to the latest element that equals the
    extreme so far.
    """
    is_extreme = equal(x, y)
    next_is_extreme = shift(is_extreme, dim, 1 if reverse else -1)
    decay = cast(logical_not(next_is_extreme), x.dtype)
    dx = apply(LinearRecurrence(dim, not reverse), decay, dy)
    return where(is_extreme, dx, 0.0)


def _logsumexp_gradient(dy: Any, y: Any, x: Any, dim: str, reverse: bool) -> Any:
    """Gradient of cumulative_logsumexp: dx[i] = exp(x[i] - y[i]) * h[i], where
    h[i] = exp(y[i] - y[i + 1]) * h[i + 1] + dy[i].
    """
    # -inf minus -inf would give NaN.
    y = clip(y, low=float(tf.as_dtype(y.dtype).min))
    next_y = shift(y, dim, 1 if reverse else -1, fill=float("inf"))
    decay = exp(subtract(y, next_y))
    weight = exp(subtract(x, y))
    h = apply(LinearRecurrence(dim, not reverse), decay, dy)
    return multiply(weight, h)


_GRADIENT = {
    "prod": _prod_gradient,
    "max": _extreme_gradient,
    "min": _extreme_gradient,
    "logsumexp": _logsumexp_gradient,
}


def cumsum(
    x: Tensor, dim: str, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """Returns the running sum along `dim`: the shape of x.

    Args:
      x: floats or integers.
      dim: the name to sum along.
      exclusive: whether each sum leaves out its own element.
      reverse: whether to sum from the end.

    Raises:
      ShapeError: x lacks `dim`.
      DTypeError: x is bool.
    """
    x, dim = tensor_along(x, dim)
    return apply(Cumsum(dim, exclusive, reverse), x)


def cumprod(
    x: Tensor, dim: str, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """Returns the running product along `dim`: the shape of x; arguments and errors as
    of `cumsum`.
    """
    return _scan("prod", x, dim, exclusive, reverse)


def cummax(
    x: Tensor, dim: str, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """Returns the largest so far along `dim`: the shape of x; arguments and errors as
    of `cumsum`.

    Among equal elements the gradient goes to the latest. Exclusive: the initial value is
    the minimum of the data type (-inf for floats).
    """
    return _scan("max", x, dim, exclusive, reverse)


def cummin(
    x: Tensor, dim: str, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """Returns the smallest so far along `dim`: the shape of x; see `cummax`."""
    return _scan("min", x, dim, exclusive, reverse)


def cumulative_logsumexp(
    x: Tensor, dim: str, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """Returns log(cumsum(exp(x))) along `dim`, safe for large x: the shape of x;
    arguments as of `cumsum`.

    Raises:
      ShapeError: x lacks `dim`.
      DTypeError: x is not floating.
    """
    return _scan("logsumexp", x, dim, exclusive, reverse)


def _scan(kind: str, x: Tensor, dim: str, exclusive: bool, reverse: bool) -> Tensor:
    x, dim = tensor_along(x, dim)
    as_bool("exclusive", exclusive)
    # The gradient of a log-sum-exp is exp(x - y), for which a y in half floats is too
    # coarse.
    dtype = x.dtype
    if kind == "logsumexp":
        dtype = accumulation_dtype(x.dtype)
    y = cast(apply(Scan(kind, dim, reverse), cast(x, dtype)), x.dtype)
    fill = NEUTRAL[kind](tf.as_dtype(x.dtype))
    if exclusive:
        return shift(y, dim, -1 if reverse else 1, fill)
    return y
