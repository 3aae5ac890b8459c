"""Batch normalization: by the statistics of the batch in training, by their moving
averages in inference.

    norm = BatchNorm(mesh, "channels:64")
    y = norm(x, training=True)     # mean 0 and variance 1 of each channel, scaled and shifted

The statistics are those of the global batch, however it is sharded: devices exchange only
sums for each channel. Where a batch is split into microbatches (pipelines, gradient
accumulation), each microbatch is normalized by its own statistics, and the moving averages
are updated once, with the statistics of the global batch.
"""

from __future__ import annotations

from meshtf.errors import ShapeError
from meshtf.graph import Tensor
from meshtf.graph.arguments import as_tensor
from meshtf.layers.initializers import ones, zeros
from meshtf.layers.mixed_precision import cast_like
from meshtf.mesh import Mesh
from meshtf.module import Module
from meshtf.names import Shape, ShapeLike, accumulation_dtype
from meshtf.names.arguments import check_bools, check_floats
from meshtf.ops.common.checks import require_dim_of_caller
from meshtf.ops.control.microbatch import once_per_batch
from meshtf.ops.elementwise.unary import rsqrt, square
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.reductions.reduce import reduce_mean
from meshtf.runtime.variable import Variable


class BatchNorm(Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias (Ioffe and Szegedy, 2015).

    Mean and variance are taken over all dimensions but `dims`. Statistics are float32
    where x is float16 or bfloat16. The moving variance is that of the batch, without
    Bessel's correction.

    Args:
      mesh: the mesh of the variables.
      dims: the dimensions with separate statistics for each entry, such as "channels:64".
      momentum: the weight of the previous moving averages in each step of training.
      epsilon: a constant that is added to the variance.
      name: the layer's name, a component of the names of its variables; see `mtf.Module`.
    """

    default_name = "batch_norm"

    def __init__(
        self,
        mesh: Mesh,
        dims: ShapeLike,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        name: str | None = None,
    ) -> None:
        check_floats(momentum=momentum, epsilon=epsilon)
        super().__init__(name)
        self.dims = Shape(dims)
        self.momentum = momentum
        self.epsilon = epsilon
        with self.scope():
            self.scale = Variable(mesh, dims, ones, name="scale")
            self.bias = Variable(mesh, dims, zeros, name="bias")
            self.moving_mean = Variable(
                mesh, dims, zeros, name="moving_mean", trainable=False
            )
            self.moving_variance = Variable(
                mesh, dims, ones, name="moving_variance", trainable=False
            )

    def __call__(self, x: Tensor, training: bool = False) -> Tensor:
        """Returns x [batch, ..., channels], normalized, scaled and shifted.

        In `training` the statistics are those of x, and the moving averages are updated
        with them; otherwise the moving averages are the statistics.

        Raises:
          ShapeError: x lacks one of `dims`, or has no other dimension.
        """
        x = as_tensor("x", x)
        check_bools(training=training)
        require_dim_of_caller(x.shape, *self.dims.names)
        reduced_dims = x.shape.without(*self.dims.names)
        y = cast(x, accumulation_dtype(x.dtype))
        if not training:
            centred = y - cast_like(self.moving_mean, y)
            return self._scaled(centred, cast_like(self.moving_variance, y), x.dtype)
        if not reduced_dims.names:
            raise ShapeError(
                f"{x.shape!r} has no dimension besides {self.dims!r} to take a mean "
                "over."
            )
        mean = reduce_mean(y, reduced_dims)
        y = y - mean
        variance = reduce_mean(square(y), reduced_dims)
        y = self._scaled(y, variance, x.dtype)
        # `reduce_mean` leaves a partial mean on each device, and the next op that is not
        # linear has them summed by an all-reduce. `_scaled` has done so: the update, which
        # comes after it, needs none.
        once_per_batch(self._update_averages, mean, variance, square(mean))
        return y

    def _scaled(
        self, centred: Tensor, variance: Tensor | Variable, dtype: str
    ) -> Tensor:
        """Returns scale * centred / sqrt(variance + epsilon) + bias, as `dtype`."""
        scale = rsqrt(variance + self.epsilon) * cast_like(self.scale, centred)
        return cast(centred * scale + cast_like(self.bias, centred), dtype)

    def _update_averages(
        self, mean: Tensor, variance: Tensor, mean_square: Tensor
    ) -> None:
        """Updates the moving averages with the statistics of the global batch.

        Args:
          mean: the mean over microbatches of their means.
          variance: the mean over microbatches of their variances.
          mean_square: the mean over microbatches of their squared means.
        """
        # Law of total variance: the variance of the batch is the mean of the variances of
        # the microbatches, plus the variance of their means.
        variance = variance + (mean_square - square(mean))
        for average, statistic in (
            (self.moving_mean, mean),
            (self.moving_variance, variance),
        ):
            statistic = cast_like(statistic, average)
            average.assign(average * self.momentum + statistic * (1 - self.momentum))
