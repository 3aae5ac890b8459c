"""Layer norm and RMS norm without scale and bias.

    y = (x - mean(x)) / sqrt(mean((x - mean(x))**2) + epsilon)          layer_norm
    y = x / sqrt(mean(x**2) + epsilon)                                  rms_norm

`statistics` returns the mean and variance of a shard, and `outputs` computes the outputs from
the global ones. If the dimension is sharded, all shards exchange theirs, and the global mean and
variance follow from these without cancellation (Chan, Golub and LeVeque, "Algorithms for
computing the sample variance", 1983).

The op has a second output, 1/std, for the gradient, which needs y and 1/std, but not x.
Statistics of float16 and bfloat16 are in float32.
"""

from __future__ import annotations

import functools
import operator
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
    apply_all,
)
from meshtf.names import accumulation_dtype
from meshtf.names.arguments import as_float
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.checks import require_dim, require_floating, tensor_along
from meshtf.ops.common.local_reshape import expand, squeeze
from meshtf.ops.common.op_bases import _ExchangesAlongDim
from meshtf.ops.common.shards_with_padding import mean_of_shard, mean_over_shards
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.reductions.reduce import reduce_mean, reduce_sum


class _NormalizeBase(_ExchangesAlongDim):
    """The base of `Normalize` and `NormalizeGrad`.

    Shards of `dim` exchange two statistics if `center` is true, otherwise one. Means leave
    padding out.

    Attributes:
      dim: the dimension along which x is normalized.
      center: whether the mean is subtracted.
    """

    dim: str
    center: bool

    def statistics_specs(self, *xs: Spec) -> Specs:
        return super().statistics_specs(*xs) * (2 if self.center else 1)


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

    def statistics(self, context: LocalContext, x: Any) -> Statistics:
        x = widen(x)
        axis = context.axis(0, self.dim)  # in the shape of input 0
        if not self.center:
            mean_square = mean_of_shard(context, self.dim, tf.square(x), axis)
            return Statistics(exchanged=(mean_square,), residuals=(x,))
        mean = mean_of_shard(context, self.dim, x, axis)
        centered_x = x - mean
        variance = mean_of_shard(context, self.dim, tf.square(centered_x), axis)
        # Residuals stay on the device, for `outputs`.
        return Statistics(exchanged=(variance, mean), residuals=(centered_x, mean))

    def reduced(self, context: LocalContext, gathered: Any) -> LocalTensors:
        if not self.center:
            (mean_squares,) = gathered
            return (mean_over_shards(context, self.dim, mean_squares),)
        variances, means = gathered  # of all shards: [shards, ...]
        global_mean = mean_over_shards(context, self.dim, means)
        variances = variances + tf.square(means - global_mean)
        return mean_over_shards(context, self.dim, variances), global_mean

    def outputs(
        self, context: LocalContext, statistics: Any, residuals: Any, x: Any
    ) -> LocalTensors:
        variance = statistics[0]  # without `center`, the mean square
        centered_x = residuals[0]
        if self.center and context.num_shards(self.dim) > 1:
            _, global_mean = statistics
            _, mean = residuals
            centered_x = centered_x + (mean - global_mean)
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
            scale = dinverse_std * inverse_std * inverse_std * (-1 / x.shape[self.dim])
            dx_terms.append(cast(cast(y, inverse_std.dtype) * scale, x.dtype))
        if not dx_terms:
            return [None]
        return [functools.reduce(operator.add, dx_terms)]

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

    def reduced(self, context: LocalContext, gathered: Any) -> LocalTensors:
        return tuple(mean_over_shards(context, self.dim, x) for x in gathered)

    def outputs(
        self, context: LocalContext, statistics: Any, residuals: Any, *xs: Any
    ) -> LocalTensors:
        dy, y = residuals  # in the data type of statistics
        mean_dy_y, *mean_dy = statistics
        projection = y * mean_dy_y
        if self.center:
            projection = projection + mean_dy[0]
        original_dy, _, inverse_std = xs
        inverse_std = expand(inverse_std, context.axis(0, self.dim))
        return (tf.cast((dy - projection) * inverse_std, original_dy.dtype),)

    def gradient(
        self, dz: Any, z: Any, dy: Any, y: Any, inverse_std: Any
    ) -> Cotangents:
        # z is the output. As a function of dy it is symmetric, so its gradient is the op.
        dtype = dy.dtype
        dy_gradient = apply(self, dz, y, inverse_std)
        # Products are computed in the data type of statistics.
        dz, z, dy, y = (cast(tensor, inverse_std.dtype) for tensor in (dz, z, dy, y))
        # -(dz * mean(dy * y) + dy * mean(dz * y)) / std
        mean_dy_y = reduce_mean(dy * y, self.dim)
        mean_dz_y = reduce_mean(dz * y, self.dim)
        cross = dz * mean_dy_y + dy * mean_dz_y
        y_gradient = cast(-(cross * inverse_std), dtype)
        # z is proportional to 1/std, so its derivative by 1/std is z * std.
        inverse_std_gradient = reduce_sum(dz * z, self.dim) / inverse_std
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
    return _normalized(x, dim, epsilon, center=True)


def rms_norm(x: Tensor, dim: str, epsilon: float = 1e-6) -> Tensor:
    """Returns x [..., dim, ...] divided by its root mean square along `dim`. Arguments and
    errors are those of `layer_norm`.
    """
    return _normalized(x, dim, epsilon, center=False)


def _normalized(x: Tensor, dim: str, epsilon: float, center: bool) -> Tensor:
    """Returns x divided by its root mean square along `dim`, if `center` less its mean."""
    x, dim = tensor_along(x, dim)
    op = Normalize(dim, center=center, epsilon=float(as_float("epsilon", epsilon)))
    y, _inverse_std = apply_all(op, x)
    return y
