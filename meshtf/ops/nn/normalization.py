"""The cores of layer norm and of RMS norm: no scale, no bias.

    y = (x - mean(x)) / sqrt(mean((x - mean(x))**2) + epsilon)          normalize_layer
    y = x / sqrt(mean(x**2) + epsilon)                                  normalize_rms

Where the dimension is sharded, shards exchange their means and their mean squared
distances from them, which give those of the whole without cancellation (Chan, Golub,
LeVeque). The op keeps 1/std for its gradient, which needs y and 1/std, but not x. Half
floats: statistics in float32.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.graph import (
    LocalContext,
    OpWithStatistics,
    Sample,
    Spec,
    Statistics,
    Tensor,
    apply,
    apply_all,
)
from meshtf.names import accumulation_dtype
from meshtf.names.arguments import as_float
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.checks import require_dim, require_floating, tensor_along
from meshtf.ops.common.local_reshape import expand, squeeze
from meshtf.ops.common.trace_cache import constant
from meshtf.ops.elementwise.arithmetic import add, divide, multiply
from meshtf.ops.elementwise.unary import negative
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.reductions.reduce import reduce_mean, reduce_sum


class _Along(OpWithStatistics):
    """What the two ops have in common: means along `dim`, of two things if `center`,
    else of one.
    """

    dim: str
    center: bool

    def statistics_dims(self) -> tuple[str, ...]:
        return (self.dim,)

    def statistics_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        mean = Spec(xs[0].shape.without(self.dim), accumulation_dtype(xs[0].dtype))
        return (mean, mean) if self.center else (mean,)


class Normalize(_Along):
    """x, less its mean if `center`, over its standard deviation along `dim`; and 1/std.

    The second output is there for the gradient.
    """

    epsilon: float

    samples = (
        Sample(("d", True, 1e-6), ("b:4;d:6",)),
        Sample(("d", False, 1e-6), ("b:4;d:6",)),
        Sample(("b", True, 1e-2), ("b:4;d:6",)),
        Sample(("b", False, 1e-2), ("c:2;b:4;d:3",)),
        Sample(("d", True, 1e-6), ("d:5;b:3",)),
        Sample(("d", True, 0.1), ("ties b:4;d:8",)),
        Sample(("d", True, 0.1), ("half b:2;d:8",)),
        Sample(("d", False, 0.1), ("half b:2;d:8",)),
    )

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
        require_dim(x.shape, self.dim)
        require_floating(x, "normalize_layer" if self.center else "normalize_rms")
        return (x, Spec(x.shape.without(self.dim), accumulation_dtype(x.dtype)))

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        statistics = self.statistics(context, x)
        return self._scaled(
            context, statistics.residuals[0], statistics.exchanged[-1], x
        )

    def statistics(self, context: LocalContext, x: Any) -> Statistics:
        x, axis = widen(x), context.axis(0, self.dim)
        if not self.center:
            return Statistics(exchanged=(_mean(tf.square(x), axis),), residuals=(x,))
        mean = _mean(x, axis)
        x = x - mean
        variance = _mean(tf.square(x), axis)
        return Statistics(exchanged=(mean, variance), residuals=(x, mean))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, x: Any
    ) -> tuple[Any, ...]:
        if not self.center:
            return self._scaled(
                context, residuals[0], tf.reduce_mean(gathered[0], 0), x
            )
        y, mean = residuals
        means, variances = gathered
        whole = tf.reduce_mean(means, 0)
        y = y + (mean - whole)
        variance = tf.reduce_mean(variances + tf.square(means - whole), 0)
        return self._scaled(context, y, variance, x)

    def _scaled(
        self, context: LocalContext, y: Any, variance: Any, x: Any
    ) -> tuple[Any, ...]:
        inverse = tf.math.rsqrt(variance + self.epsilon)
        return tf.cast(y * inverse, x.dtype), squeeze(
            inverse, context.axis(0, self.dim)
        )

    def gradient(self, dys: Any, ys: Any, x: Any) -> list[Any]:
        (dy, dinverse), (y, inverse) = dys, ys
        dx = (
            None
            if dy is None
            else apply(NormalizeGrad(self.dim, self.center), dy, y, inverse)
        )
        if dinverse is not None:  # only in gradients of gradients
            by_y = multiply(
                multiply(dinverse, multiply(inverse, inverse)), -1 / x.shape[self.dim]
            )
            more = cast(multiply(cast(y, inverse.dtype), by_y), x.dtype)
            dx = more if dx is None else add(dx, more)
        return [dx]

    def flops(self, *xs: Spec) -> int:
        return 6 * xs[0].shape.size


class NormalizeGrad(_Along):
    """(dy - mean(dy) - y * mean(dy * y)) / std; without mean(dy) if not `center`."""

    samples = (
        Sample(("d", True), ("b:4;d:6", "b:4;d:6", "positive b:4")),
        Sample(("d", False), ("b:4;d:6", "b:4;d:6", "positive b:4")),
        Sample(("b", True), ("c:2;b:4;d:3", "c:2;b:4;d:3", "positive c:2;d:3")),
        Sample(("d", False), ("d:5;b:3", "d:5;b:3", "positive b:3")),
    )

    def output_specs(self, dy: Spec, y: Spec, inverse: Spec) -> tuple[Spec, ...]:
        return (dy,)

    def local(
        self, context: LocalContext, dy: Any, y: Any, inverse: Any
    ) -> tuple[Any, ...]:
        statistics = self.statistics(context, dy, y, inverse)
        return self._from(context, *statistics, inverse, dy)

    def statistics(
        self, context: LocalContext, dy: Any, y: Any, inverse: Any
    ) -> Statistics:
        dy, y, axis = widen(dy), widen(y), context.axis(0, self.dim)
        along = _mean(dy * y, axis)
        exchanged = (_mean(dy, axis), along) if self.center else (along,)
        return Statistics(exchanged, residuals=(dy, y))

    def local_sharded(
        self,
        context: LocalContext,
        gathered: Any,
        residuals: Any,
        dy: Any,
        y: Any,
        inverse: Any,
    ) -> tuple[Any, ...]:
        means = tuple(tf.reduce_mean(t, 0) for t in gathered)
        return self._from(context, means, residuals, inverse, dy)

    def _from(
        self, context: LocalContext, means: Any, residuals: Any, inverse: Any, like: Any
    ) -> tuple[Any, ...]:
        dy, y = residuals
        away = y * means[-1]
        away = away + means[0] if self.center else away
        inverse = expand(inverse, context.axis(0, self.dim))
        return (tf.cast((dy - away) * inverse, like.dtype),)

    def gradient(self, dz: Any, z: Any, dy: Any, y: Any, inverse: Any) -> list[Any]:
        dtype, wide = dy.dtype, inverse.dtype
        by_dy = apply(self, dz, y, inverse)
        dz, z, dy, y = (cast(t, wide) for t in (dz, z, dy, y))
        cross = add(
            multiply(dz, reduce_mean(multiply(dy, y), self.dim)),
            multiply(dy, reduce_mean(multiply(dz, y), self.dim)),
        )
        by_y = cast(negative(multiply(cross, inverse)), dtype)
        return [by_dy, by_y, divide(reduce_sum(multiply(dz, z), self.dim), inverse)]

    def flops(self, *xs: Spec) -> int:
        return 7 * xs[0].shape.size


def _mean(x: Any, axis: int) -> Any:
    return tf.reduce_mean(x, constant(axis), keepdims=True)


def normalize_layer(x: Tensor, dim: str, epsilon: float = 1e-6) -> Tensor:
    """Returns x with mean 0 and variance 1 along `dim`, the kernel of layer norm.

    Args:
      x: floats.
      dim: the name to normalize along.
      epsilon: added to the variance.

    Raises:
      ShapeError: x lacks `dim`.
      DTypeError: x is not of floats.
    """
    x, dim = tensor_along(x, dim)
    epsilon = as_float("epsilon", epsilon)
    return apply_all(Normalize(dim, True, float(epsilon)), x)[0]


def normalize_rms(x: Tensor, dim: str, epsilon: float = 1e-6) -> Tensor:
    """Returns x over its root mean square along `dim`. Raises what `normalize_layer`
    does.
    """
    x, dim = tensor_along(x, dim)
    epsilon = as_float("epsilon", epsilon)
    return apply_all(Normalize(dim, False, float(epsilon)), x)[0]
