"""Running sums, products, maxima, minima and log-sum-exps along a dimension.

    x           [1 2 3 4]   on two devices: [1 2] [3 4]
    told         3   7      each slice tells its total
    cumsum(x)   [1 3] [6 10]   its own running sum, plus the totals of the slices before it

So is a linear recurrence, h[i] = a[i] * h[i - 1] + b[i], of which a slice tells what it
makes of the h before it. The gradients of the others are such recurrences, which divide
by nothing: they hold where factors are zero, and where numbers are large.

Half floats are computed in float32 and rounded once, at the end: in bfloat16 a sum of
ones stops at 256.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import (
    LocalContext,
    OpWithStatistics,
    Sample,
    Spec,
    Statistics,
    Tensor,
    apply,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import accumulation_dtype, is_floating, is_integer
from meshtf.names.arguments import as_bool, as_dim
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.broadcasting import broadcast_operands, broadcast_shape
from meshtf.ops.common.checks import (
    require_dim,
    require_floating,
    same_dtype,
    tensor_along,
)
from meshtf.ops.elementwise.arithmetic import equal, multiply, subtract
from meshtf.ops.elementwise.unary import exp, logical_not
from meshtf.ops.elementwise.where_cast_clip import cast, clip, where
from meshtf.ops.reductions.broadcast import broadcast
from meshtf.ops.reductions.logsumexp import log_sum_exp
from meshtf.ops.scans.scan_kernels import NEUTRAL, running, running_linear
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

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
        require_dim(x.shape, self.dim)
        if x.dtype == "bool":
            raise DTypeError(
                'cumsum does not take bool: count with mtf.cast(x, "int32").'
            )
        return (x,)

    def statistics_dims(self) -> tuple[str, ...]:
        return (self.dim,)

    def statistics_specs(self, x: Spec) -> tuple[Spec, ...]:
        return (Spec(x.shape.without(self.dim), accumulation_dtype(x.dtype)),)

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        return (tf.cast(self._running(context, widen(x)), x.dtype),)

    def statistics(self, context: LocalContext, x: Any) -> Statistics:
        axis, x = context.axis(0, self.dim), widen(x)
        y = self._running(context, x)
        last = [slice(None)] * axis + [slice(0, 1) if self.reverse else slice(-1, None)]
        total = y[last] + x[last] if self.exclusive else y[last]
        return Statistics(exchanged=(total,), residuals=(y,))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, x: Any
    ) -> tuple[Any, ...]:
        before = tf.cumsum(gathered[0], 0, exclusive=True, reverse=self.reverse)
        y = residuals[0] + tf.gather(before, context.shard_index(self.dim))
        return (tf.cast(y, x.dtype),)

    def _running(self, context: LocalContext, x: Any) -> Any:
        return tf.cumsum(
            x, context.axis(0, self.dim), exclusive=self.exclusive, reverse=self.reverse
        )

    def gradient(self, dy: Any, y: Any, x: Any) -> list[Any]:
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

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
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

    def statistics_specs(self, x: Spec) -> tuple[Spec, ...]:
        return (Spec(x.shape.without(self.dim), accumulation_dtype(x.dtype)),)

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        y = running(self.kind, widen(x), context.axis(0, self.dim), self.reverse)
        return (tf.cast(y, x.dtype),)

    def statistics(self, context: LocalContext, x: Any) -> Statistics:
        axis = context.axis(0, self.dim)
        y = running(self.kind, widen(x), axis, self.reverse)
        return Statistics(exchanged=(_last(y, axis, self.reverse),), residuals=(y,))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, x: Any
    ) -> tuple[Any, ...]:
        reduce, totals = _REDUCE[self.kind], gathered[0]
        neutral = tf.constant(NEUTRAL[self.kind](totals.dtype), totals.dtype)
        totals = tf.where(
            _earlier(context, self.dim, self.reverse, totals), totals, neutral
        )
        y = tf.broadcast_to(reduce(totals, [0]), x.shape)
        return (tf.cast(reduce(tf.stack([y, residuals[0]]), [0]), x.dtype),)

    def gradient(self, dy: Any, y: Any, x: Any) -> list[Any]:
        return [_GRADIENT[self.kind](dy, y, x, self.dim, self.reverse)]


_REDUCE = {
    "prod": tf.reduce_prod,
    "max": tf.reduce_max,
    "min": tf.reduce_min,
    "logsumexp": log_sum_exp,
}


class LinearRecurrence(OpWithStatistics):
    """h[i] = a[i] * h[i - 1] + b[i] along `dim`, from h = 0; reverse: from the end."""

    dim: str
    reverse: bool = False
    samples = (
        Sample(("d",), ("b:4;d:8", "b:4;d:8")),
        Sample(("d", True), ("d:6;b:2", "d:6;b:2")),
        Sample(("d", True), ("d:4", "d:4")),
        Sample(("d",), ("d:5;b:3", "d:5;b:3")),
    )

    def output_specs(self, a: Spec, b: Spec) -> tuple[Spec, ...]:
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

    def statistics_specs(self, a: Spec, b: Spec) -> tuple[Spec, ...]:
        return (Spec(a.shape.without(self.dim), accumulation_dtype(a.dtype)),) * 2

    def local(self, context: LocalContext, a: Any, b: Any) -> tuple[Any, ...]:
        axis = context.axis(0, self.dim)
        _, h = running_linear(widen(a), widen(b), axis, self.reverse)
        return (tf.cast(h, b.dtype),)

    def statistics(self, context: LocalContext, a: Any, b: Any) -> Statistics:
        axis = context.axis(0, self.dim)
        ys = running_linear(widen(a), widen(b), axis, self.reverse)
        return Statistics(tuple(_last(y, axis, self.reverse) for y in ys), ys)

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, a: Any, b: Any
    ) -> tuple[Any, ...]:
        factor, h = residuals
        factors, lasts = gathered
        # What comes in is the last h of the shard before. Before the first there is
        # none: a product of its 0 and an infinite factor would be no number.
        _, ends = running_linear(factors, lasts, 0, self.reverse)
        before = tf.roll(ends, -1 if self.reverse else 1, 0)
        first = tf.logical_not(
            tf.reduce_any(_earlier(context, self.dim, self.reverse, ends))
        )
        h = tf.where(
            first, h, h + factor * tf.gather(before, context.shard_index(self.dim))
        )
        return (tf.cast(h, b.dtype),)

    def gradient(self, dy: Any, y: Any, a: Any, b: Any) -> list[Any]:
        later = -1 if not self.reverse else 1
        db = apply(
            LinearRecurrence(self.dim, not self.reverse), shift(a, self.dim, later), dy
        )
        return [multiply(db, shift(y, self.dim, -later)), db]


def _last(y: Any, axis: int, reverse: bool) -> Any:
    """Returns the total of a slice: the row that the running kernel comes to last."""
    return y[(slice(None),) * axis + (slice(0, 1) if reverse else slice(-1, None),)]


def _earlier(context: LocalContext, dim: str, reverse: bool, gathered: Any) -> Any:
    """Returns which of the statistics of shards come from those before this one, for
    broadcasting: [shards, 1, ...].
    """
    number, here = tf.range(gathered.shape[0]), context.shard_index(dim)
    found = number > here if reverse else number < here
    return tf.reshape(found, [-1] + [1] * (len(gathered.shape) - 1))


def _prod_gradient(dy: Any, y: Any, x: Any, dim: str, reverse: bool) -> Any:
    later = 1 if reverse else -1
    behind = apply(LinearRecurrence(dim, not reverse), shift(x, dim, later), dy)
    return multiply(shift(y, dim, -later, fill=1), behind)


def _extreme_gradient(dy: Any, y: Any, x: Any, dim: str, reverse: bool) -> Any:
    """Each dy goes to the latest element that is the extreme so far."""
    new = equal(x, y)
    same = cast(logical_not(shift(new, dim, 1 if reverse else -1)), x.dtype)
    return where(new, apply(LinearRecurrence(dim, not reverse), same, dy), 0.0)


def _logsumexp_gradient(dy: Any, y: Any, x: Any, dim: str, reverse: bool) -> Any:
    y = clip(
        y, low=float(tf.as_dtype(y.dtype).min)
    )  # -inf minus -inf would be no number
    decay = exp(subtract(y, shift(y, dim, 1 if reverse else -1, fill=float("inf"))))
    return multiply(
        exp(subtract(x, y)), apply(LinearRecurrence(dim, not reverse), decay, dy)
    )


_GRADIENT = {
    "prod": _prod_gradient,
    "max": _extreme_gradient,
    "min": _extreme_gradient,
    "logsumexp": _logsumexp_gradient,
}


def cumsum(
    x: Tensor, dim: str, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """Returns the running sum along `dim`.

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
    """Returns the running product along `dim`; arguments and errors as of `cumsum`."""
    return _scan("prod", x, dim, exclusive, reverse)


def cummax(
    x: Tensor, dim: str, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """Returns the largest so far along `dim`; arguments and errors as of `cumsum`.

    Among equals the gradient goes to the latest. Exclusive: starts from the least of
    the data type.
    """
    return _scan("max", x, dim, exclusive, reverse)


def cummin(
    x: Tensor, dim: str, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """Returns the smallest so far along `dim`: see `cummax`."""
    return _scan("min", x, dim, exclusive, reverse)


def cumulative_logsumexp(
    x: Tensor, dim: str, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """Returns log(cumsum(exp(x))) along `dim`, safe for large x; arguments as of
    `cumsum`.

    Raises:
      ShapeError: x lacks `dim`.
      DTypeError: x is not floating.
    """
    return _scan("logsumexp", x, dim, exclusive, reverse)


def linear_recurrence(a: Tensor, b: Tensor, dim: str, reverse: bool = False) -> Tensor:
    """Returns h with h[i] = a[i] * h[i - 1] + b[i] along `dim`, starting from 0.

    Moving averages and the state of linear recurrent layers are such. It takes
    log2(size) passes over both tensors, all rows at once (Hillis and Steele 1986).

    Args:
      a: floats, or a tensor of fewer dimensions, which is broadcast.
      b: likewise.
      dim: the name along which h runs.
      reverse: whether it runs from the end: h[i] = a[i] * h[i + 1] + b[i].

    Raises:
      ShapeError: neither has `dim`, or sizes clash.
      DTypeError: their data types differ, or are not floating.
    """
    a, b, dim = as_tensor("a", a), as_tensor("b", b), as_dim("dim", dim)
    a, b = broadcast_operands("linear_recurrence", a, b)
    shape = broadcast_shape(a.shape, b.shape)
    return apply(
        LinearRecurrence(dim, reverse), broadcast(a, shape), broadcast(b, shape)
    )


def _scan(kind: str, x: Tensor, dim: str, exclusive: bool, reverse: bool) -> Tensor:
    x, dim = tensor_along(x, dim)
    as_bool("exclusive", exclusive)
    # The gradient of a log-sum-exp is exp(x - y), for which a y in half floats is too
    # coarse.
    dtype = accumulation_dtype(x.dtype) if kind == "logsumexp" else x.dtype
    y = cast(apply(Scan(kind, dim, reverse), cast(x, dtype)), x.dtype)
    fill = NEUTRAL[kind](tf.as_dtype(x.dtype))
    return shift(y, dim, -1 if reverse else 1, fill) if exclusive else y
