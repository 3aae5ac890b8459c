"""Softmax and log-softmax: one fused kernel if the dimension is not sharded.

If it is sharded, shards exchange two numbers for each element of the other dimensions: the
maximum and the sum of exponentials of a shard. They keep their exponentials as residuals, so
that each element is exponentiated once:

    m, s = max(x), sum(exp(x - m))            of each shard: `statistics`
    M, S = max(m), sum(s * exp(m - M))        over the shards: `reduced`
    y    = exp(x - m) * (exp(m - M) / S)      softmax
    y    = (x - m) + ((m - M) - log(S))       log-softmax

For float16 and bfloat16, the result is computed in float32 and rounded once, at the end.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
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
from meshtf.ops.common.op_bases import _ExchangesAlongDim
from meshtf.ops.control.stop_gradient import stop_gradient
from meshtf.ops.elementwise.arithmetic import maximum
from meshtf.ops.elementwise.unary import exp, log
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.reductions.logsumexp import check_sink_logit
from meshtf.ops.reductions.reduce import reduce_max, reduce_sum

# Each sample: the attributes (dim, log), then each input's kind of values and shape.
_SAMPLES = (
    ("d", "b:4;d:6"),
    ("b", "b:4;d:6"),
    ("d", "ties c:2;d:4;b:3"),
    ("d", "d:5;b:3"),
    ("d", "half b:2;d:4"),
)
_GRAD_SAMPLES = (("d", "b:4;d:6"), ("b", "b:4;d:6"), ("d", "d:5;b:3"))


class _SoftmaxBase(_ExchangesAlongDim):
    """The base of the two ops below. All inputs have the shape of the output.

    Attributes:
      dim: the dimension along which the softmax is computed.
      log: whether it is the logarithm of the softmax.
    """

    dim: str
    log: bool = False

    @property
    def display_name(self) -> str:
        name = type(self).__name__.lower()
        return "log" + name if self.log else name

    def output_specs(self, *xs: Spec) -> Specs:
        require_dim(xs[0].shape, self.dim)
        require_floating(xs[0], function=self.display_name)
        return (xs[0],)

    def flops(self, *xs: Spec) -> int:
        return 4 * xs[0].shape.size


class Softmax(_SoftmaxBase):
    """exp(x) / sum(exp(x)) along `dim`, or its logarithm; the input is x."""

    conformance_samples = tuple(
        Sample((dim, log), (x,)) for log in (False, True) for dim, x in _SAMPLES
    )
    num_statistics = 2
    padding = -math.inf

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        axis = context.axis(0, self.dim)  # in the shape of input 0
        function = _log_softmax if self.log else _softmax
        return (tf.cast(function(widen(x), axis), x.dtype),)

    def statistics(self, context: LocalContext, x: Any) -> Statistics:
        axis = context.axis(0, self.dim)
        shifted_x, largest = _subtract_max(widen(x), axis)
        exponentials = tf.exp(shifted_x)
        total = tf.reduce_sum(exponentials, axis, keepdims=True)
        residual = shifted_x if self.log else exponentials
        return Statistics(exchanged=(largest, total), residuals=(residual, largest))

    def reduced(self, context: LocalContext, gathered: Any) -> LocalTensors:
        maxima, totals = gathered
        global_max = tf.reduce_max(maxima, axis=0)
        # The sum of the exponentials of x - global_max.
        total = tf.reduce_sum(totals * tf.exp(maxima - global_max), axis=0)
        return global_max, total

    def outputs(
        self, context: LocalContext, statistics: Any, residuals: Any, x: Any
    ) -> LocalTensors:
        residual, largest = residuals
        global_max, total = statistics
        if self.log:
            y = residual + ((largest - global_max) - tf.math.log(total))
        else:
            y = residual * (tf.exp(largest - global_max) / total)
        return (tf.cast(y, x.dtype),)

    def gradient(self, dy: Any, y: Any, x: Any) -> Cotangents:
        return [apply(SoftmaxGrad(self.dim, self.log), dy, y)]


class SoftmaxGrad(_SoftmaxBase):
    """The gradient of `Softmax`; the inputs are dy and y.

    It is (dy - sum(dy * y)) * y, and for the logarithm dy - exp(y) * sum(dy).
    """

    conformance_samples = tuple(
        Sample((dim, log), (x, x)) for log in (False, True) for dim, x in _GRAD_SAMPLES
    )
    padding = 0.0

    def statistics(self, context: LocalContext, dy: Any, y: Any) -> Statistics:
        terms = widen(dy) if self.log else widen(dy) * widen(y)
        axis = context.axis(0, self.dim)
        return Statistics(exchanged=(tf.reduce_sum(terms, axis, keepdims=True),))

    def outputs(
        self, context: LocalContext, statistics: Any, residuals: Any, dy: Any, y: Any
    ) -> LocalTensors:
        (total,) = statistics
        if self.log:
            dx = widen(dy) - tf.exp(widen(y)) * total
        else:
            dx = (widen(dy) - total) * widen(y)
        return (tf.cast(dx, dy.dtype),)

    def gradient(self, dz: Any, z: Any, dy: Any, y: Any) -> Cotangents:
        if self.log:
            weighted_dz = dz * exp(y)  # exp(y) are the probabilities
            dy_gradient = dz - reduce_sum(weighted_dz, self.dim)
            return [dy_gradient, -(weighted_dz * reduce_sum(dy, self.dim))]
        # The means of dy and dz with the probabilities y as weights.
        mean_dy = reduce_sum(dy * y, self.dim)
        mean_dz = reduce_sum(dz * y, self.dim)
        return [apply(self, dz, y), dz * (dy - mean_dy) - dy * mean_dz]


def _subtract_max(x: Any, axis: int) -> tuple[Any, Any]:
    """Returns x - max, and max: the maximum of x along `axis`, which is kept with size 1.
    The maximum is finite even if all elements are -inf.
    """
    largest = tf.maximum(tf.reduce_max(x, axis, keepdims=True), x.dtype.min)
    return x - largest, largest


def _softmax(x: Any, axis: int) -> Any:
    """Returns the softmax of a TensorFlow tensor along an axis."""
    if x.shape[axis] == 1:
        # Exactly 1, and NaN for NaN. Kernels may miss 1 by a bit, which would break ties.
        return x * tf.constant(0.0, x.dtype) + tf.constant(1.0, x.dtype)
    if axis != len(x.shape) - 1:
        # tf.nn.softmax would transpose x twice.
        shifted_x, _ = _subtract_max(x, axis)
        exponentials = tf.exp(shifted_x)
        return exponentials / tf.reduce_sum(exponentials, axis, keepdims=True)
    if len(x.shape) > 5:
        # TensorFlow with oneDNN raises an error for more than 5 dimensions.
        matrix = tf.reshape(x, [-1, x.shape[-1]])
        return tf.reshape(tf.nn.softmax(matrix), x.shape)
    return tf.nn.softmax(x)


def _log_softmax(x: Any, axis: int) -> Any:
    """Returns the log-softmax of a TensorFlow tensor along an axis."""
    if axis == len(x.shape) - 1:
        return tf.nn.log_softmax(x)
    shifted_x, _ = _subtract_max(x, axis)
    total = tf.reduce_sum(tf.exp(shifted_x), axis, keepdims=True)
    return shifted_x - tf.math.log(total)


def softmax(x: Tensor, dim: str, sink_logit: Any = None) -> Tensor:
    """Returns exp(x) / sum(exp(x)) along `dim`: the shape of x.

    Args:
      x: the logits, floats [..., dim, ...].
      dim: the name of the dimension along which the probabilities sum to 1.
      sink_logit: a logit whose exponential is added to each sum: a number, or a tensor of
        names of x other than `dim`. Then the probabilities sum to less than 1, so that
        attention may attend to nothing. None: there is none.

    Raises:
      ShapeError: x lacks `dim`, or the sink logit has it.
      DTypeError: x is not of a floating type.
    """
    x, dim = tensor_along(x, dim)
    if sink_logit is None:
        return apply(Softmax(dim), x)
    shifted_x, total = _with_sink_logit(x, dim, sink_logit)
    return cast(exp(shifted_x) / total, x.dtype)


def log_softmax(x: Tensor, dim: str, sink_logit: Any = None) -> Tensor:
    """Returns the logarithm of softmax(x) along `dim`: the shape of x. Arguments and
    errors are those of `softmax`.
    """
    x, dim = tensor_along(x, dim)
    if sink_logit is None:
        return apply(Softmax(dim, log=True), x)
    shifted_x, total = _with_sink_logit(x, dim, sink_logit)
    return cast(shifted_x - log(total), x.dtype)


def _with_sink_logit(x: Tensor, dim: str, sink_logit: Any) -> tuple[Tensor, Tensor]:
    """Returns x - max, and the sum of its exponentials along `dim`. Both the maximum and
    the sum include the sink logit. The arguments are those of `softmax`.
    """
    require_dim(x.shape, dim)
    require_floating(x.spec, "softmax")
    check_sink_logit(x.shape.without(dim), sink_logit)
    x = cast(x, accumulation_dtype(x.dtype))
    if not is_scalar(sink_logit):
        sink_logit = cast(sink_logit, x.dtype)
    largest = stop_gradient(maximum(reduce_max(x, dim), sink_logit))
    shifted_x = x - largest
    total = reduce_sum(exp(shifted_x), dim)
    return shifted_x, total + exp(sink_logit - largest)
