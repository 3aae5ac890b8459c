"""Batch normalization: by the statistics of all examples in training, by moving
averages later.

    norm = BatchNorm(mesh, "channels:64")
    y = norm(x, training=True)     # mean 0 and variance 1 of each channel, scaled and shifted

The statistics are those of the whole batch, however it is cut: sums of a few numbers
for each channel are all that devices exchange. Where a batch comes in microbatches
(pipelines, gradient accumulation), each is normalized by its own, and the moving
averages take those of the whole batch.
"""

from __future__ import annotations

from meshtf.errors import ShapeError
from meshtf.graph import Tensor
from meshtf.graph.arguments import as_tensor
from meshtf.layers.initializers import ones, zeros
from meshtf.mesh import Mesh
from meshtf.module import Module
from meshtf.names import Shape, ShapeLike, accumulation_dtype
from meshtf.names.arguments import check_bools, check_floats
from meshtf.ops.common.checks import require_dim
from meshtf.ops.control.microbatch import once_per_batch
from meshtf.ops.elementwise.unary import rsqrt, square
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.reductions.reduce import reduce_mean
from meshtf.runtime.variable import Variable


class BatchNorm(Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias (Ioffe and Szegedy, 2015).

    Mean and variance are taken over all names but those of `dims`. Statistics are
    float32 where x is of half floats. The moving variance is that of the batch, without
    Bessel's correction.

    Args:
      mesh: where the variables lie.
      dims: what has statistics of its own, such as "channels:64".
      momentum: the share of the moving averages that stays in each step of training.
      epsilon: what is added to the variance.
      name: the last part of the path of its variables.
    """

    def __init__(
        self,
        mesh: Mesh,
        dims: ShapeLike,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        name: str = "batch_norm",
    ) -> None:
        check_floats(momentum=momentum, epsilon=epsilon)
        super().__init__(name)
        self.dims, self.momentum, self.epsilon = Shape(dims), momentum, epsilon
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
        """Returns x, normalized; in `training` by its own statistics, which move the
        averages.

        Raises:
          ShapeError: x lacks one of `dims`, or has no other name.
        """
        x = as_tensor("x", x)
        check_bools(training=training)
        require_dim(x.shape, *self.dims.names)
        others = x.shape.without(*self.dims.names)
        y = cast(x, accumulation_dtype(x.dtype))
        if not training:
            return self._scaled(y - self.moving_mean, self.moving_variance, x.dtype)
        if not others.names:
            raise ShapeError(
                f"{x.shape!r} has no dimension besides {self.dims!r} to take a mean "
                "over."
            )
        mean = reduce_mean(y, others)
        y = y - mean
        variance = reduce_mean(square(y), others)
        y = self._scaled(y, variance, x.dtype)
        # After `_scaled`, for which their sums are finished.
        once_per_batch(self._move, mean, variance, square(mean))
        return y

    def _scaled(
        self, centred: Tensor, variance: Tensor | Variable, dtype: str
    ) -> Tensor:
        y = centred * (rsqrt(variance + self.epsilon) * self.scale) + self.bias
        return cast(y, dtype)

    def _move(self, mean: Tensor, variance: Tensor, mean_square: Tensor) -> None:
        """Moves the averages; the arguments are means over microbatches, whose means
        vary, too.
        """
        variance = variance + (mean_square - square(mean))
        for average, value in (
            (self.moving_mean, mean),
            (self.moving_variance, variance),
        ):
            average.assign(average * self.momentum + value * (1 - self.momentum))
