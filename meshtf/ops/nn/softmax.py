"""Softmax and log-softmax: one fused kernel where the dimension is whole.

Where it is cut, each slice tells its largest element and its sum of exponentials, two
numbers a row, and keeps its exponentials, so that each element is exponentiated once:

    told    m, s = max(x), sum(exp(x - m))            of each slice
    whole   M, S = max(m), sum(s * exp(m - M))        over the slices
    y       exp(x - m) * (exp(m - M) / S)             log: (x - m) + ((m - M) - log(S))

Half floats are computed in float32 and rounded once, at the end.
"""

from __future__ import annotations

from typing import Any, ClassVar

import tensorflow as tf

from meshtf.graph import At, Op, Sample, Spec, Tensor, apply
from meshtf.names import wide
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.broadcasting import is_scalar
from meshtf.ops.common.checks import require_dim, require_floating, tensor_along
from meshtf.ops.control.stop_gradient import stop_gradient
from meshtf.ops.elementwise.arithmetic import add, divide, maximum, multiply, subtract
from meshtf.ops.elementwise.unary import exp, log, negative
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.reductions.logsumexp import require_extra
from meshtf.ops.reductions.reduce import reduce_max, reduce_sum

Shared = tuple[tuple[Any, ...], tuple[Any, ...]]

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


class _Along:
    """Shapes and roles of the four ops: all inputs are alike, and slices of `dim`
    share.
    """

    dim: str
    numbers: ClassVar[int] = 1  # that a slice tells of each row

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        require_dim(xs[0].shape, self.dim)
        require_floating(xs[0], type(self).__name__.lower())
        return (xs[0],)

    def shared(self, factor: str) -> bool:
        return factor == self.dim

    def tells(self, *xs: Spec) -> tuple[Spec, ...]:
        return (Spec(xs[0].shape.without(self.dim), wide(xs[0].dtype)),) * self.numbers

    def flops(self, *xs: Spec) -> int:
        return 4 * xs[0].shape.size


class Softmax(_Along, Op):
    """exp(x) / sum(exp(x)) along `dim`."""

    dim: str

    samples = _SAMPLES
    numbers = 2

    def share(self, at: At, x: Any) -> Shared:
        x, axis = widen(x), at.axis(0, self.dim)
        below, top = _below(x, axis)
        e = tf.exp(below)
        return (top, tf.reduce_sum(e, axis, keepdims=True)), (e, top)

    def local(self, at: At, x: Any) -> tuple[Any, ...]:
        if at.told is None:
            return (tf.cast(_softmax(widen(x), at.axis(0, self.dim)), x.dtype),)
        tops, sums = at.told
        e, top = at.kept
        highest = tf.reduce_max(tops, 0)
        total = tf.reduce_sum(sums * tf.exp(tops - highest), 0)
        return (tf.cast(e * (tf.exp(top - highest) / total), x.dtype),)

    def gradient(self, dy: Any, y: Any, x: Any) -> list[Any]:
        return [apply(SoftmaxGrad(self.dim), dy, y)]


class SoftmaxGrad(_Along, Op):
    """(dy - sum(dy * y)) * y."""

    dim: str

    samples = _GRAD_SAMPLES

    def share(self, at: At, dy: Any, y: Any) -> Shared:
        return (
            tf.reduce_sum(widen(dy) * widen(y), at.axis(0, self.dim), keepdims=True),
        ), ()

    def local(self, at: At, dy: Any, y: Any) -> tuple[Any, ...]:
        total = (
            self.share(at, dy, y)[0][0]
            if at.told is None
            else tf.reduce_sum(at.told[0], 0)
        )
        return (tf.cast((widen(dy) - total) * widen(y), dy.dtype),)

    def gradient(self, dz: Any, z: Any, dy: Any, y: Any) -> list[Any]:
        by_y = add(
            multiply(dz, subtract(dy, reduce_sum(multiply(dy, y), self.dim))),
            negative(multiply(dy, reduce_sum(multiply(dz, y), self.dim))),
        )
        return [apply(self, dz, y), by_y]


class LogSoftmax(_Along, Op):
    """x - log(sum(exp(x))) along `dim`."""

    dim: str

    samples = _SAMPLES
    numbers = 2

    def share(self, at: At, x: Any) -> Shared:
        x, axis = widen(x), at.axis(0, self.dim)
        below, top = _below(x, axis)
        return (top, tf.reduce_sum(tf.exp(below), axis, keepdims=True)), (below, top)

    def local(self, at: At, x: Any) -> tuple[Any, ...]:
        if at.told is None:
            return (tf.cast(_log_softmax(widen(x), at.axis(0, self.dim)), x.dtype),)
        tops, sums = at.told
        below, top = at.kept
        highest = tf.reduce_max(tops, 0)
        total = tf.reduce_sum(sums * tf.exp(tops - highest), 0)
        return (tf.cast(below + ((top - highest) - tf.math.log(total)), x.dtype),)

    def gradient(self, dy: Any, y: Any, x: Any) -> list[Any]:
        return [apply(LogSoftmaxGrad(self.dim), dy, y)]


class LogSoftmaxGrad(_Along, Op):
    """dy - exp(y) * sum(dy)."""

    dim: str

    samples = _GRAD_SAMPLES

    def share(self, at: At, dy: Any, y: Any) -> Shared:
        return (tf.reduce_sum(widen(dy), at.axis(0, self.dim), keepdims=True),), ()

    def local(self, at: At, dy: Any, y: Any) -> tuple[Any, ...]:
        total = (
            self.share(at, dy, y)[0][0]
            if at.told is None
            else tf.reduce_sum(at.told[0], 0)
        )
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
    require_extra(x.shape.without(dim), extra)
    x = cast(x, wide(x.dtype))
    extra = extra if is_scalar(extra) else cast(extra, x.dtype)
    top = stop_gradient(maximum(reduce_max(x, dim), extra))
    below = subtract(x, top)
    return below, add(reduce_sum(exp(below), dim), exp(subtract(extra, top)))
