"""Softmax and log-softmax: one fused kernel where the dimension is not sharded.

Where it is sharded, shards exchange their maximum and their sum of exponentials, two
numbers for each element of the other dimensions, and keep their exponentials as
residuals, so that each element is exponentiated once:

    m, s = max(x), sum(exp(x - m))            of each shard
    M, S = max(m), sum(s * exp(m - M))        over the shards
    y    = exp(x - m) * (exp(m - M) / S)      log: (x - m) + ((m - M) - log(S))

Half floats are computed in float32 and rounded once, at the end.
"""

from __future__ import annotations

from typing import Any, ClassVar

import tensorflow as tf

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
from meshtf.names import accumulation_dtype
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.broadcasting import is_scalar
from meshtf.ops.common.checks import require_dim, require_floating, tensor_along
from meshtf.ops.control.stop_gradient import stop_gradient
from meshtf.ops.elementwise.arithmetic import add, divide, maximum, multiply, subtract
from meshtf.ops.elementwise.unary import exp, log, negative
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.reductions.logsumexp import check_sink_logit
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


class _SoftmaxBase(OpWithStatistics):
    """Base of the four ops: all inputs have the shape of the output, and shards of
    `dim` exchange statistics without `dim`.
    """

    dim: str
    num_statistics: ClassVar[int] = 1

    def output_specs(self, *xs: Spec) -> Specs:
        require_dim(xs[0].shape, self.dim)
        require_floating(xs[0], type(self).__name__.lower())
        return (xs[0],)

    def statistics_dims(self) -> tuple[str, ...]:
        return (self.dim,)

    def statistics_specs(self, *xs: Spec) -> Specs:
        x = xs[0]
        statistic = Spec(x.shape.without(self.dim), accumulation_dtype(x.dtype))
        return (statistic,) * self.num_statistics

    def flops(self, *xs: Spec) -> int:
        return 4 * xs[0].shape.size


class Softmax(_SoftmaxBase):
    """exp(x) / sum(exp(x)) along `dim`."""

    dim: str

    samples = _SAMPLES
    num_statistics = 2

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        return (tf.cast(_softmax(widen(x), context.axis(0, self.dim)), x.dtype),)

    def statistics(self, context: LocalContext, x: Any) -> Statistics:
        axis = context.axis(0, self.dim)
        shifted, largest = _subtract_max(widen(x), axis)
        exponentials = tf.exp(shifted)
        total = tf.reduce_sum(exponentials, axis, keepdims=True)
        return Statistics(exchanged=(largest, total), residuals=(exponentials, largest))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, x: Any
    ) -> LocalTensors:
        exponentials, largest = residuals
        global_max, total = _combine_shards(*gathered)
        y = exponentials * (tf.exp(largest - global_max) / total)
        return (tf.cast(y, x.dtype),)

    def gradient(self, dy: Any, y: Any, x: Any) -> Cotangents:
        return [apply(SoftmaxGrad(self.dim), dy, y)]


class SoftmaxGrad(_SoftmaxBase):
    """(dy - sum(dy * y)) * y."""

    dim: str

    samples = _GRAD_SAMPLES

    def local(self, context: LocalContext, dy: Any, y: Any) -> LocalTensors:
        return self._dx(self._total(context, dy, y), dy, y)

    def statistics(self, context: LocalContext, dy: Any, y: Any) -> Statistics:
        return Statistics(exchanged=(self._total(context, dy, y),))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, dy: Any, y: Any
    ) -> LocalTensors:
        return self._dx(tf.reduce_sum(gathered[0], 0), dy, y)

    def _total(self, context: LocalContext, dy: Any, y: Any) -> Any:
        return tf.reduce_sum(
            widen(dy) * widen(y), context.axis(0, self.dim), keepdims=True
        )

    def _dx(self, total: Any, dy: Any, y: Any) -> LocalTensors:
        dx = (widen(dy) - total) * widen(y)
        return (tf.cast(dx, dy.dtype),)

    def gradient(self, dz: Any, z: Any, dy: Any, y: Any) -> Cotangents:
        mean_dy = reduce_sum(multiply(dy, y), self.dim)
        mean_dz = reduce_sum(multiply(dz, y), self.dim)
        y_gradient = add(
            multiply(dz, subtract(dy, mean_dy)),
            negative(multiply(dy, mean_dz)),
        )
        return [apply(self, dz, y), y_gradient]


class LogSoftmax(_SoftmaxBase):
    """x - log(sum(exp(x))) along `dim`."""

    dim: str

    samples = _SAMPLES
    num_statistics = 2

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        return (tf.cast(_log_softmax(widen(x), context.axis(0, self.dim)), x.dtype),)

    def statistics(self, context: LocalContext, x: Any) -> Statistics:
        axis = context.axis(0, self.dim)
        shifted, largest = _subtract_max(widen(x), axis)
        total = tf.reduce_sum(tf.exp(shifted), axis, keepdims=True)
        return Statistics(exchanged=(largest, total), residuals=(shifted, largest))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, x: Any
    ) -> LocalTensors:
        shifted, largest = residuals
        global_max, total = _combine_shards(*gathered)
        y = shifted + ((largest - global_max) - tf.math.log(total))
        return (tf.cast(y, x.dtype),)

    def gradient(self, dy: Any, y: Any, x: Any) -> Cotangents:
        return [apply(LogSoftmaxGrad(self.dim), dy, y)]


class LogSoftmaxGrad(_SoftmaxBase):
    """dy - exp(y) * sum(dy)."""

    dim: str

    samples = _GRAD_SAMPLES

    def local(self, context: LocalContext, dy: Any, y: Any) -> LocalTensors:
        return self._dx(self._total(context, dy), dy, y)

    def statistics(self, context: LocalContext, dy: Any, y: Any) -> Statistics:
        return Statistics(exchanged=(self._total(context, dy),))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, dy: Any, y: Any
    ) -> LocalTensors:
        return self._dx(tf.reduce_sum(gathered[0], 0), dy, y)

    def _total(self, context: LocalContext, dy: Any) -> Any:
        return tf.reduce_sum(widen(dy), context.axis(0, self.dim), keepdims=True)

    def _dx(self, total: Any, dy: Any, y: Any) -> LocalTensors:
        dx = widen(dy) - tf.exp(widen(y)) * total
        return (tf.cast(dx, dy.dtype),)

    def gradient(self, dz: Any, z: Any, dy: Any, y: Any) -> Cotangents:
        weighted = multiply(dz, exp(y))
        dy_gradient = subtract(dz, reduce_sum(weighted, self.dim))
        y_gradient = negative(multiply(weighted, reduce_sum(dy, self.dim)))
        return [dy_gradient, y_gradient]


def _subtract_max(x: Any, axis: int) -> tuple[Any, Any]:
    """Returns x - max and max, the maximum along `axis` with size 1 there; finite where
    all elements are -inf.
    """
    largest = tf.maximum(tf.reduce_max(x, axis, keepdims=True), x.dtype.min)
    return x - largest, largest


def _combine_shards(maxima: Any, totals: Any) -> tuple[Any, Any]:
    """Returns the global maximum, and the global sum of exponentials of x - maximum,
    from those of the shards, [shards, ...].
    """
    global_max = tf.reduce_max(maxima, 0)
    total = tf.reduce_sum(totals * tf.exp(maxima - global_max), 0)
    return global_max, total


def _softmax(x: Any, axis: int) -> Any:
    if x.shape[axis] == 1:
        # Exactly 1, and NaN for NaN. Kernels may miss 1 by a bit, which would break ties.
        return x * tf.constant(0.0, x.dtype) + tf.constant(1.0, x.dtype)
    if axis != len(x.shape) - 1:  # tf.nn.softmax would transpose twice
        shifted, _ = _subtract_max(x, axis)
        exponentials = tf.exp(shifted)
        return exponentials / tf.reduce_sum(exponentials, axis, keepdims=True)
    if len(x.shape) > 5:  # TensorFlow with oneDNN refuses more than 5 dimensions
        return tf.reshape(tf.nn.softmax(tf.reshape(x, [-1, x.shape[-1]])), x.shape)
    return tf.nn.softmax(x)


def _log_softmax(x: Any, axis: int) -> Any:
    if axis == len(x.shape) - 1:
        return tf.nn.log_softmax(x)
    shifted, _ = _subtract_max(x, axis)
    total = tf.reduce_sum(tf.exp(shifted), axis, keepdims=True)
    return shifted - tf.math.log(total)


def softmax(x: Tensor, dim: str, sink_logit: Any = None) -> Tensor:
    """Returns exp(x) / sum(exp(x)) along `dim`: the shape of x.

    Args:
      x: the logits.
      dim: along which the probabilities sum to 1.
      sink_logit: an additional element of each sum, a number or a tensor whose names
        are other names of x: the probabilities then sum to less than 1, so attention may
        attend to nothing.

    Raises:
      ShapeError: x lacks `dim`, or the sink logit has it.
      DTypeError: x is not of floats.
    """
    x, dim = tensor_along(x, dim)
    if sink_logit is None:
        return apply(Softmax(dim), x)
    shifted, total = _with_sink_logit(x, dim, sink_logit)
    return cast(divide(exp(shifted), total), x.dtype)


def log_softmax(x: Tensor, dim: str, sink_logit: Any = None) -> Tensor:
    """Returns the logarithm of softmax(x) along `dim`: the shape of x. Takes and raises
    what `softmax` does.
    """
    x, dim = tensor_along(x, dim)
    if sink_logit is None:
        return apply(LogSoftmax(dim), x)
    shifted, total = _with_sink_logit(x, dim, sink_logit)
    return cast(subtract(shifted, log(total)), x.dtype)


def _with_sink_logit(x: Tensor, dim: str, sink_logit: Any) -> tuple[Tensor, Tensor]:
    """Returns x - max and the sum of exponentials of that along `dim`, both with the extra
    logit counted.
    """
    require_dim(x.shape, dim)
    require_floating(x.spec, "softmax")
    check_sink_logit(x.shape.without(dim), sink_logit)
    x = cast(x, accumulation_dtype(x.dtype))
    if not is_scalar(sink_logit):
        sink_logit = cast(sink_logit, x.dtype)
    largest = stop_gradient(maximum(reduce_max(x, dim), sink_logit))
    shifted = subtract(x, largest)
    total = reduce_sum(exp(shifted), dim)
    return shifted, add(total, exp(subtract(sink_logit, largest)))
