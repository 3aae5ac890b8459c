"""Layer norm and RMS norm without scale and bias.

    y = (x - mean(x)) / sqrt(mean((x - mean(x))**2) + epsilon)          layer_norm
    y = x / sqrt(mean(x**2) + epsilon)                                  rms_norm

If the dimension is not sharded, the method `local` of an op computes its outputs. If it is,
`statistics` returns the mean and variance of a shard, which all shards exchange, and
`local_sharded` computes the outputs from those of all shards. The global mean and variance
follow from these without cancellation (Chan, Golub and LeVeque, "Algorithms for computing the
sample variance", 1983).

The op has a second output, 1/std, for the gradient, which needs y and 1/std, but not x.
Statistics of float16 and bfloat16 are in float32.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    OpWithStatistics,
    PaddingValue,
    Sample,
    Spec,
    Specs,
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
from meshtf.ops.common.shards_with_padding import mean_of_shard, mean_over_shards
from meshtf.ops.elementwise.arithmetic import add, divide, multiply
from meshtf.ops.elementwise.unary import negative
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.reductions.reduce import reduce_mean, reduce_sum


class _NormalizeBase(OpWithStatistics):
    """The base of `Normalize` and `NormalizeGrad`.

    Shards of `dim` exchange two statistics if `center` is true, otherwise one.

    Attributes:
      dim: the dimension along which x is normalized.
      center: whether the mean is subtracted.
    """

    dim: str
    center: bool

    def padding_value(self, input_index: int, factor: str) -> PaddingValue:
        return None  # means leave padding out

    def statistics_dims(self) -> tuple[str, ...]:
        return (self.dim,)

    def statistics_specs(self, *xs: Spec) -> Specs:
        statistic = Spec(xs[0].shape.without(self.dim), accumulation_dtype(xs[0].dtype))
        if self.center:
            return (statistic, statistic)
        return (statistic,)


class Normalize(_NormalizeBase):
    """(x - mean) / std along `dim`, and 1/std, which the gradient reads.

    std is sqrt(variance + epsilon). Without `center`, the mean is taken to be 0.
    """

    epsilon: float

    # Test inputs: (dim, center, epsilon), then the input's kind of values and shape.
    conformance_samples = (
        Sample(("d", True, 1e-6), ("b:4;d:6",)),
        Sample(("d", False, 1e-6), ("b:4;d:6",)),
        Sample(("b", True, 1e-2), ("b:4;d:6",)),
        Sample(("b", False, 1e-2), ("c:2;b:4;d:3",)),
        Sample(("d", True, 1e-6), ("d:5;b:3",)),
        Sample(("d", False, 1e-2), ("b:3;d:7",)),
        Sample(("d", True, 0.1), ("ties b:4;d:8",)),
        Sample(("d", True, 0.1), ("half b:2;d:8",)),
        Sample(("d", False, 0.1), ("half b:2;d:8",)),
    )

    def output_specs(self, x: Spec) -> Specs:
        require_dim(x.shape, self.dim)
        require_floating(x, "layer_norm" if self.center else "rms_norm")
        return (x, Spec(x.shape.without(self.dim), accumulation_dtype(x.dtype)))

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        statistics = self.statistics(context, x)
        if self.center:
            _mean_of_x, variance = statistics.exchanged
            centered_x, _ = statistics.residuals
        else:
            (variance,) = statistics.exchanged
            (centered_x,) = statistics.residuals
        return self._scale(context, centered_x, variance, x)

    def statistics(self, context: LocalContext, x: Any) -> Statistics:
        x = widen(x)
        axis = context.axis(0, self.dim)  # in the shape of input 0
        if not self.center:
            mean_square = mean_of_shard(context, self.dim, tf.square(x), axis)
            return Statistics(exchanged=(mean_square,), residuals=(x,))
        mean = mean_of_shard(context, self.dim, x, axis)
        centered_x = x - mean
        variance = mean_of_shard(context, self.dim, tf.square(centered_x), axis)
        # Residuals stay on the device, for `local_sharded`.
        return Statistics(exchanged=(mean, variance), residuals=(centered_x, mean))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, x: Any
    ) -> LocalTensors:
        if not self.center:
            (mean_squares,) = gathered
            (wide_x,) = residuals
            mean_square = mean_over_shards(context, self.dim, mean_squares)
            return self._scale(context, wide_x, mean_square, x)
        centered_x, mean = residuals
        means, variances = gathered  # of all shards: [shards, ...]
        global_mean = mean_over_shards(context, self.dim, means)
        centered_x = centered_x + (mean - global_mean)
        variances = variances + tf.square(means - global_mean)
        variance = mean_over_shards(context, self.dim, variances)
        return self._scale(context, centered_x, variance, x)

    def _scale(
        self, context: LocalContext, centered_x: Any, variance: Any, x: Any
    ) -> tuple[Any, ...]:
        """Returns the outputs of the op: centered_x / std in the data type of x, and 1/std.

        Args:
          context: the shard.
          centered_x: x - mean or, without `center`, x, in the data type of statistics.
          variance: the global variance or, without `center`, the mean square.
          x: the input of the op.
        """
        inverse_std = tf.math.rsqrt(variance + self.epsilon)
        y = tf.cast(centered_x * inverse_std, x.dtype)
        return y, squeeze(inverse_std, context.axis(0, self.dim))

    def gradient(self, dys: Any, ys: Any, x: Any) -> Cotangents:
        dy, dinverse_std = dys
        y, inverse_std = ys
        dx_terms = []
        if dy is not None:
            grad = NormalizeGrad(self.dim, self.center)
            dx_terms.append(apply(grad, dy, y, inverse_std))
        if dinverse_std is not None:
            # 1/std has a cotangent only in gradients of gradients. Its derivative by x is
            # -y / std**2 / size.
            scale = multiply(dinverse_std, multiply(inverse_std, inverse_std))
            scale = multiply(scale, -1 / x.shape[self.dim])
            dx = multiply(cast(y, inverse_std.dtype), scale)
            dx_terms.append(cast(dx, x.dtype))
        if not dx_terms:
            return [None]
        return [functools.reduce(add, dx_terms)]

    def flops(self, *xs: Spec) -> int:
        return 6 * xs[0].shape.size


class NormalizeGrad(_NormalizeBase):
    """The gradient of `Normalize`; the inputs are dy, y and 1/std.

    It is (dy - mean(dy) - y * mean(dy * y)) / std; without `center`, mean(dy) is left out.
    """

    # Attributes: (dim, center).
    conformance_samples = (
        Sample(("d", True), ("b:4;d:6", "b:4;d:6", "positive b:4")),
        Sample(("d", False), ("b:4;d:6", "b:4;d:6", "positive b:4")),
        Sample(("b", True), ("c:2;b:4;d:3", "c:2;b:4;d:3", "positive c:2;d:3")),
        Sample(("d", False), ("d:5;b:3", "d:5;b:3", "positive b:3")),
        Sample(("d", True), ("b:3;d:7", "b:3;d:7", "positive b:3")),
    )

    def output_specs(self, dy: Spec, y: Spec, inverse_std: Spec) -> Specs:
        return (dy,)

    def local(
        self, context: LocalContext, dy: Any, y: Any, inverse_std: Any
    ) -> LocalTensors:
        statistics = self.statistics(context, dy, y, inverse_std)
        means = statistics.exchanged
        return self._dx(context, means, statistics.residuals, inverse_std, like=dy)

    def statistics(
        self, context: LocalContext, dy: Any, y: Any, inverse_std: Any
    ) -> Statistics:
        dy = widen(dy)
        y = widen(y)
        axis = context.axis(0, self.dim)
        means = [mean_of_shard(context, self.dim, dy * y, axis)]
        if self.center:
            means.append(mean_of_shard(context, self.dim, dy, axis))
        return Statistics(exchanged=tuple(means), residuals=(dy, y))

    def local_sharded(
        self,
        context: LocalContext,
        gathered: Any,
        residuals: Any,
        dy: Any,
        y: Any,
        inverse_std: Any,
    ) -> LocalTensors:
        means = tuple(mean_over_shards(context, self.dim, x) for x in gathered)
        return self._dx(context, means, residuals, inverse_std, like=dy)

    def _dx(
        self,
        context: LocalContext,
        means: Any,
        residuals: Any,
        inverse_std: Any,
        like: Any,
    ) -> LocalTensors:
        """Returns dx in the data type of `like`.

        Args:
          context: the shard.
          means: the global mean of dy * y and, if `center`, the global mean of dy.
          residuals: dy and y in the data type of statistics.
          inverse_std: 1/std.
          like: dy in its original data type.
        """
        dy, y = residuals
        if self.center:
            mean_dy_y, mean_dy = means
            projection = y * mean_dy_y + mean_dy
        else:
            (mean_dy_y,) = means
            projection = y * mean_dy_y
        inverse_std = expand(inverse_std, context.axis(0, self.dim))
        return (tf.cast((dy - projection) * inverse_std, like.dtype),)

    def gradient(
        self, dz: Any, z: Any, dy: Any, y: Any, inverse_std: Any
    ) -> Cotangents:
        # z is the output. As a function of dy it is symmetric, so its gradient is the op.
        dtype = dy.dtype
        dy_gradient = apply(self, dz, y, inverse_std)
        # Products are computed in the data type of statistics.
        dz, z, dy, y = (cast(tensor, inverse_std.dtype) for tensor in (dz, z, dy, y))
        # -(dz * mean(dy * y) + dy * mean(dz * y)) / std
        cross = add(
            multiply(dz, reduce_mean(multiply(dy, y), self.dim)),
            multiply(dy, reduce_mean(multiply(dz, y), self.dim)),
        )
        y_gradient = cast(negative(multiply(cross, inverse_std)), dtype)
        # z is proportional to 1/std, so its derivative by 1/std is z * std.
        total = reduce_sum(multiply(dz, z), self.dim)
        inverse_std_gradient = divide(total, inverse_std)
        return [dy_gradient, y_gradient, inverse_std_gradient]

    def flops(self, *xs: Spec) -> int:
        return 7 * xs[0].shape.size


def layer_norm(x: Tensor, dim: str, epsilon: float = 1e-6) -> Tensor:
    """Returns x [..., dim, ...] with mean 0 and variance 1 along `dim`: layer norm without
    scale and bias.

    Args:
      x: a tensor of floats.
      dim: the name of the dimension along which x is normalized.
      epsilon: a small number that is added to the variance.

    Raises:
      ShapeError: x lacks `dim`.
      DTypeError: x is not of a floating type.
    """
    x, dim = tensor_along(x, dim)
    epsilon = as_float("epsilon", epsilon)
    y, _inverse_std = apply_all(Normalize(dim, center=True, epsilon=float(epsilon)), x)
    return y


def rms_norm(x: Tensor, dim: str, epsilon: float = 1e-6) -> Tensor:
    """Returns x [..., dim, ...] divided by its root mean square along `dim`. Arguments and
    errors are those of `layer_norm`.
    """
    x, dim = tensor_along(x, dim)
    epsilon = as_float("epsilon", epsilon)
    y, _inverse_std = apply_all(Normalize(dim, center=False, epsilon=float(epsilon)), x)
    return y
