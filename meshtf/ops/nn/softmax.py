"""Softmax and log-softmax: one fused kernel where the dimension is whole.

Where it is sharded, each shard exchanges its largest element and its sum of
exponentials, two numbers a row, and keeps its exponentials, so that each element is
exponentiated once:

    m, s = max(x), sum(exp(x - m))            of each shard
    M, S = max(m), sum(s * exp(m - M))        over the shards
    y    = exp(x - m) * (exp(m - M) / S)      log: (x - m) + ((m - M) - log(S))

Half floats are computed in float32 and rounded once, at the end.
"""

from __future__ import annotations

from typing import Any, ClassVar

import tensorflow as tf

from meshtf.graph import (
    LocalContext,
    OpWithStatistics,
    Sample,
    Spec,
    Statistics,
    Tensor,
    apply,
)
from meshtf.names import accumulation_dtype
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.broadcasting import is_scalar
from meshtf.ops.common.checks import require_dim, require_floating, tensor_along
from meshtf.ops.control.stop_gradient import stop_gradient
from meshtf.ops.elementwise.arithmetic import add, divide, maximum, multiply, subtract
from meshtf.ops.elementwise.unary import exp, log, negative
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.reductions.logsumexp import check_extra_logit
from meshtf.ops.reductions.reduce import reduce_max, reduce_sum

_SAMPLES = (
    Sample(("d",), ("b:4;d:6",)),
    Sample(("b",), ("b:4;d:6",)),
    Sample(("d",), ("ties c:2;d:4;b:3",)),
    Sample(("d",), ("d:5;b:3",)),
    Sample(("d",), ("half b:2;d:4",)),
)
_GRAD_SAMPLES = (
    Sample(("d",), ("b:4;d:6", "b:4;d:6")),
    Sample(("b",), ("b:4;d:6", "b:4;d:6")),
    Sample(("d",), ("d:5;b:3", "d:5;b:3")),
)


class _Along(OpWithStatistics):
    """Shapes of the four ops: all inputs are alike, and shards of `dim` exchange
    statistics.
    """

    dim: str
    numbers: ClassVar[int] = 1  # of each row, that a shard exchanges

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        require_dim(xs[0].shape, self.dim)
        require_floating(xs[0], type(self).__name__.lower())
        return (xs[0],)

    def statistics_dims(self) -> tuple[str, ...]:
        return (self.dim,)

    def statistics_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        return (
            Spec(xs[0].shape.without(self.dim), accumulation_dtype(xs[0].dtype)),
        ) * self.numbers

    def flops(self, *xs: Spec) -> int:
        return 4 * xs[0].shape.size


class Softmax(_Along):
    """exp(x) / sum(exp(x)) along `dim`."""

    dim: str

    samples = _SAMPLES
    numbers = 2

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        return (tf.cast(_softmax(widen(x), context.axis(0, self.dim)), x.dtype),)

    def statistics(self, context: LocalContext, x: Any) -> Statistics:
        axis = context.axis(0, self.dim)
        below, top = _below(widen(x), axis)
        exponentials = tf.exp(below)
        total = tf.reduce_sum(exponentials, axis, keepdims=True)
        return Statistics(exchanged=(top, total), residuals=(exponentials, top))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, x: Any
    ) -> tuple[Any, ...]:
        exponentials, top = residuals
        highest, total = _over_shards(*gathered)
        y = exponentials * (tf.exp(top - highest) / total)
        return (tf.cast(y, x.dtype),)

    def gradient(self, dy: Any, y: Any, x: Any) -> list[Any]:
        return [apply(SoftmaxGrad(self.dim), dy, y)]


class SoftmaxGrad(_Along):
    """(dy - sum(dy * y)) * y."""

    dim: str

    samples = _GRAD_SAMPLES

    def local(self, context: LocalContext, dy: Any, y: Any) -> tuple[Any, ...]:
        return self._from(self._total(context, dy, y), dy, y)

    def statistics(self, context: LocalContext, dy: Any, y: Any) -> Statistics:
        return Statistics(exchanged=(self._total(context, dy, y),))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, dy: Any, y: Any
    ) -> tuple[Any, ...]:
        return self._from(tf.reduce_sum(gathered[0], 0), dy, y)

    def _total(self, context: LocalContext, dy: Any, y: Any) -> Any:
        return tf.reduce_sum(
            widen(dy) * widen(y), context.axis(0, self.dim), keepdims=True
        )

    def _from(self, total: Any, dy: Any, y: Any) -> tuple[Any, ...]:
        return (tf.cast((widen(dy) - total) * widen(y), dy.dtype),)

    def gradient(self, dz: Any, z: Any, dy: Any, y: Any) -> list[Any]:
        by_y = add(
            multiply(dz, subtract(dy, reduce_sum(multiply(dy, y), self.dim))),
            negative(multiply(dy, reduce_sum(multiply(dz, y), self.dim))),
        )
        return [apply(self, dz, y), by_y]


class LogSoftmax(_Along):
    """x - log(sum(exp(x))) along `dim`."""

    dim: str

    samples = _SAMPLES
    numbers = 2

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        return (tf.cast(_log_softmax(widen(x), context.axis(0, self.dim)), x.dtype),)

    def statistics(self, context: LocalContext, x: Any) -> Statistics:
        axis = context.axis(0, self.dim)
        below, top = _below(widen(x), axis)
        total = tf.reduce_sum(tf.exp(below), axis, keepdims=True)
        return Statistics(exchanged=(top, total), residuals=(below, top))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, x: Any
    ) -> tuple[Any, ...]:
        below, top = residuals
        highest, total = _over_shards(*gathered)
        return (tf.cast(below + ((top - highest) - tf.math.log(total)), x.dtype),)

    def gradient(self, dy: Any, y: Any, x: Any) -> list[Any]:
        return [apply(LogSoftmaxGrad(self.dim), dy, y)]


class LogSoftmaxGrad(_Along):
    """dy - exp(y) * sum(dy)."""

    dim: str

    samples = _GRAD_SAMPLES

    def local(self, context: LocalContext, dy: Any, y: Any) -> tuple[Any, ...]:
        return self._from(self._total(context, dy), dy, y)

    def statistics(self, context: LocalContext, dy: Any, y: Any) -> Statistics:
        return Statistics(exchanged=(self._total(context, dy),))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, dy: Any, y: Any
    ) -> tuple[Any, ...]:
        return self._from(tf.reduce_sum(gathered[0], 0), dy, y)

    def _total(self, context: LocalContext, dy: Any) -> Any:
        return tf.reduce_sum(widen(dy), context.axis(0, self.dim), keepdims=True)

    def _from(self, total: Any, dy: Any, y: Any) -> tuple[Any, ...]:
        return (tf.cast(widen(dy) - tf.exp(widen(y)) * total, dy.dtype),)

    def gradient(self, dz: Any, z: Any, dy: Any, y: Any) -> list[Any]:
        weighted = multiply(dz, exp(y))
        by_dy = subtract(dz, reduce_sum(weighted, self.dim))
        return [by_dy, negative(multiply(weighted, reduce_sum(dy, self.dim)))]


def _below(x: Any, axis: int) -> tuple[Any, Any]:
    """Returns how far x is below its largest, and the largest; finite where all are
    -inf.
    """
    top = tf.maximum(tf.reduce_max(x, axis, keepdims=True), x.dtype.min)
    return x - top, top


def _over_shards(tops: Any, totals: Any) -> tuple[Any, Any]:
    """Returns the largest of all, and the sum of exponentials below it, from those of
    shards: [shards, ...].
    """
    highest = tf.reduce_max(tops, 0)
    return highest, tf.reduce_sum(totals * tf.exp(tops - highest), 0)


def _softmax(x: Any, axis: int) -> Any:
    if (
        x.shape[axis] == 1
    ):  # exactly 1, which kernels may miss by a bit, so that ties stay ties
        return x * tf.constant(0.0, x.dtype) + tf.constant(
            1.0, x.dtype
        )  # nan stays nan
    if axis == len(x.shape) - 1:
        if len(x.shape) <= 5:  # more of them TensorFlow refuses, where it has oneDNN
            return tf.nn.softmax(x)
        return tf.reshape(tf.nn.softmax(tf.reshape(x, [-1, x.shape[-1]])), x.shape)
    e = tf.exp(_below(x, axis)[0])  # tf.nn.softmax would transpose twice
    return e / tf.reduce_sum(e, axis, keepdims=True)


def _log_softmax(x: Any, axis: int) -> Any:
    if axis == len(x.shape) - 1:
        return tf.nn.log_softmax(x)
    below, _ = _below(x, axis)
    return below - tf.math.log(tf.reduce_sum(tf.exp(below), axis, keepdims=True))


def softmax(x: Tensor, dim: str, extra_logit: Any = None) -> Tensor:
    """Returns exp(x) / sum(exp(x)) along `dim`.

    Args:
      x: the logits.
      dim: along which the probabilities sum to 1.
      extra_logit: one more element of each sum, a number or a tensor of some other
        names of x: the probabilities then sum to less than 1, and attention may attend
          to nothing.

    Raises:
      ShapeError: x lacks `dim`, or the extra logit has it.
      DTypeError: x is not of floats.
    """
    x, dim = tensor_along(x, dim)
    if extra_logit is None:
        return apply(Softmax(dim), x)
    below, total = _with_extra(x, dim, extra_logit)
    return cast(divide(exp(below), total), x.dtype)


def log_softmax(x: Tensor, dim: str, extra_logit: Any = None) -> Tensor:
    """Returns the logarithm of softmax(x) along `dim`. Takes and raises what `softmax`
    does.
    """
    x, dim = tensor_along(x, dim)
    if extra_logit is None:
        return apply(LogSoftmax(dim), x)
    below, total = _with_extra(x, dim, extra_logit)
    return cast(subtract(below, log(total)), x.dtype)


def _with_extra(x: Tensor, dim: str, extra: Any) -> tuple[Tensor, Tensor]:
    """Returns how far x is below the largest logit of its row, and the row's sum of
    exponentials.
    """
    require_dim(x.shape, dim)
    require_floating(x.spec, "softmax")
    check_extra_logit(x.shape.without(dim), extra)
    x = cast(x, accumulation_dtype(x.dtype))
    extra = extra if is_scalar(extra) else cast(extra, x.dtype)
    top = stop_gradient(maximum(reduce_max(x, dim), extra))
    below = subtract(x, top)
    return below, add(reduce_sum(exp(below), dim), exp(subtract(extra, top)))
