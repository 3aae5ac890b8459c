"""Base classes of ops: what those along one dimension share, and those that change no element.

    class Total(_ExchangesAlongDim):      # x[..., dim, ...] divided by its sum along `dim`
      def statistics(self, context, x):
        return Statistics((tf.reduce_sum(x, context.axis(0, self.dim), keepdims=True),))

      def outputs(self, context, statistics, residuals, x):
        (total,) = statistics             # of one shard or, added up, of all
        return (x / total,)

As in all files of ops, a class whose name begins with "_" is no op, but what ops share.
"""

from __future__ import annotations

from typing import Any, ClassVar

import tensorflow as tf

from meshtf.graph import (
    LocalContext,
    LocalTensors,
    Op,
    OpWithStatistics,
    PaddingValue,
    Role,
    Spec,
    Specs,
)
from meshtf.names import accumulation_dtype


class _Identity(Op):
    """The base of ops whose outputs are their inputs."""

    def output_specs(self, *xs: Spec) -> Specs:
        return xs

    def local(self, context: LocalContext, *xs: Any) -> LocalTensors:
        return xs


class _NeedsWholeDim(Op):
    """The base of ops along a dimension that must not be sharded.

    Attributes:
      dim: the dimension.
    """

    dim: str

    def role(self, factor: str) -> Role:
        # A factor is the name of a dimension. With MAP, outputs are sharded as inputs are.
        return Role.UNSHARDED if factor == self.dim else Role.MAP


class _ExchangesAlongDim(OpWithStatistics):
    """The base of ops along a dimension whose shards exchange statistics in float32, or in
    the wider type of the input.

    An op defines `statistics` and `outputs`, and if statistics are not added up, `reduced`. It
    defines `local`, or both `local` and `local_sharded`, if they have a shorter way.

    Attributes:
      dim: the dimension.
      num_statistics: the number of statistics, in the shape of the first input that has
        `dim`, without `dim`.
      padding: the value of the padding of inputs along `dim`.
      role_of_dim: what sharding `dim` does: `Role.SAME` if the outputs lack it.
    """

    dim: str
    num_statistics: ClassVar[int] = 1
    padding: ClassVar[PaddingValue] = None
    role_of_dim: ClassVar[Role] = Role.MAP

    def role(self, factor: str) -> Role:
        return self.role_of_dim if factor == self.dim else Role.MAP

    def padding_value(self, input_index: int, factor: str) -> PaddingValue:
        return self.padding if factor == self.dim else None

    def statistics_dims(self) -> tuple[str, ...]:
        return (self.dim,)

    def statistics_specs(self, *xs: Spec) -> Specs:
        x = next(x for x in xs if self.dim in x.shape)
        statistic = Spec(x.shape.without(self.dim), accumulation_dtype(x.dtype))
        return (statistic,) * self.num_statistics

    def local(self, context: LocalContext, *xs: Any) -> LocalTensors:
        exchanged, residuals = self.statistics(context, *xs)
        return self.outputs(context, exchanged, residuals, *xs)

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, *xs: Any
    ) -> LocalTensors:
        statistics = self.reduced(context, gathered)
        return self.outputs(context, statistics, residuals, *xs)

    def reduced(self, context: LocalContext, gathered: LocalTensors) -> LocalTensors:
        """Returns the statistics over all shards, by default their sums.

        Args:
          context: the shard.
          gathered: the statistics of each shard, each `[shards, ...]`.
        """
        return tuple(tf.reduce_sum(x, axis=0) for x in gathered)

    def outputs(
        self,
        context: LocalContext,
        statistics: LocalTensors,
        residuals: LocalTensors,
        *xs: Any,
    ) -> LocalTensors:
        """Returns one device's shards of the outputs.

        Args:
          context: the shard.
          statistics: the statistics over all shards.
          residuals: the residuals of this shard.
          *xs: the device's shard of each input.
        """
        raise NotImplementedError
