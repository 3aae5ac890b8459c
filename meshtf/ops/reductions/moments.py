"""Products, variances and root mean squares over named dimensions.

    mtf.reduce_prod(x, "length")
    mtf.reduce_std(x, "batch;length")           # divides by the number of elements

A product is no sum of partial results: each slice tells the others its own, one number
a row.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, explain_error
from meshtf.graph import (
    LocalContext,
    OpWithStatistics,
    Role,
    Sample,
    Spec,
    Statistics,
    Tensor,
    apply,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import Names, accumulation_dtype, is_complex, is_floating, names_of
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.broadcasting import align
from meshtf.ops.common.checks import require_dim, require_order
from meshtf.ops.elementwise.arithmetic import equal, squared_difference
from meshtf.ops.elementwise.unary import sqrt, square
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.reductions.reduce import reduce_mean


class Prod(OpWithStatistics):
    """The product over `dim`."""

    dim: str

    samples = (
        Sample(("d",), ("b:4;d:6",)),
        Sample(("b",), ("b:4;d:3",)),
        Sample(("d",), ("int d:4;b:3",), gradient=False),
    )

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
        require_dim(x.shape, self.dim)
        if x.dtype == "bool" or is_complex(x.dtype):
            way_out = (
                "Use mtf.reduce_all."
                if x.dtype == "bool"
                else "Multiply what mtf.unstack returns, or add up logarithms."
            )
            raise DTypeError(
                explain_error(f"reduce_prod does not take {x.dtype}.", way_out=way_out)
            )
        return (Spec(x.shape.without(self.dim), x.dtype),)

    def role(self, factor: str) -> Role:
        return Role.SAME if factor == self.dim else Role.MAP

    def statistics_dims(self) -> tuple[str, ...]:
        return (self.dim,)

    def statistics_specs(self, x: Spec) -> tuple[Spec, ...]:
        return (Spec(x.shape.without(self.dim), accumulation_dtype(x.dtype)),)

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        y = tf.reduce_prod(widen(x), context.axis(0, self.dim))
        return (tf.cast(y, x.dtype),)

    def statistics(self, context: LocalContext, x: Any) -> Statistics:
        return Statistics(
            exchanged=(tf.reduce_prod(widen(x), context.axis(0, self.dim)),)
        )

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, x: Any
    ) -> tuple[Any, ...]:
        return (tf.cast(tf.reduce_prod(gathered[0], 0), x.dtype),)

    def gradient(self, dy: Any, y: Any, x: Any) -> list[Any]:
        return [apply(ProdGrad(self.dim), dy, x)]

    def flops(self, *xs: Spec) -> int:
        return xs[0].shape.size


class ProdGrad(OpWithStatistics):
    """dy times the product of all elements but the one; divides by none, since one may
    be 0.
    """

    dim: str

    samples = (
        Sample(("d",), ("b:4", "ties b:4;d:6"), gradient=False),
        Sample(("b",), ("d:3;c:2", "ties b:4;c:2;d:3"), gradient=False),
    )

    def output_specs(self, dy: Spec, x: Spec) -> tuple[Spec, ...]:
        return (x,)

    def statistics_dims(self) -> tuple[str, ...]:
        return (self.dim,)

    def statistics_specs(self, dy: Spec, x: Spec) -> tuple[Spec, ...]:
        return (Spec(x.shape.without(self.dim), accumulation_dtype(x.dtype)),)

    def local(self, context: LocalContext, dy: Any, x: Any) -> tuple[Any, ...]:
        return self._from(context, _others(widen(x), context.axis(1, self.dim)), dy, x)

    def statistics(self, context: LocalContext, dy: Any, x: Any) -> Statistics:
        return Statistics(
            exchanged=(tf.reduce_prod(widen(x), context.axis(1, self.dim)),)
        )

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, dy: Any, x: Any
    ) -> tuple[Any, ...]:
        axis = context.axis(1, self.dim)
        elsewhere = tf.gather(_others(gathered[0], 0), context.shard_index(self.dim))
        others = _others(widen(x), axis) * tf.expand_dims(elsewhere, axis)
        return self._from(context, others, dy, x)

    def _from(
        self, context: LocalContext, others: Any, dy: Any, x: Any
    ) -> tuple[Any, ...]:
        dy = align(widen(dy), context.inputs[0], context.outputs[0])
        return (tf.cast(others * dy, x.dtype),)


def _others(x: Any, axis: int) -> Any:
    """Returns for each row the product of all other rows."""
    before, after = (
        tf.math.cumprod(x, axis, exclusive=True, reverse=r) for r in (False, True)
    )
    return before * after


def reduce_prod(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns the product over `dims`, by default all; its gradient is right where
    factors are 0.
    """
    x = as_tensor("x", x)
    for dim in x.shape.names if dims is None else names_of(dims, x.shape):
        x = apply(Prod(dim), x)
    return x


def reduce_variance(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns the mean square distance from the mean over `dims`, by default all."""
    y = _in_wide(x, "reduce_variance")
    return _back(reduce_mean(squared_difference(y, reduce_mean(y, dims)), dims), x)


def reduce_std(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns the root of the variance over `dims`; where it is 0, so is
    its gradient.
    """
    return _back(_root(reduce_variance(_in_wide(x, "reduce_variance"), dims)), x)


def reduce_rms(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns the root of the mean square over `dims`; where it is 0, so is its
    gradient.
    """
    return _back(_root(reduce_mean(square(_in_wide(x, "reduce_rms")), dims)), x)


def _in_wide(x: Tensor, function: str) -> Tensor:
    """Returns x in the type of statistics, in which squares neither overflow nor are
    rounded.
    """
    x = as_tensor("x", x)
    require_order(x.dtype, function)
    return cast(x, accumulation_dtype(x.dtype) if is_floating(x.dtype) else "float32")


def _back(y: Tensor, x: Tensor) -> Tensor:
    """Returns a statistic of x in the type of x, if that has fractions."""
    return cast(y, x.dtype) if is_floating(x.dtype) else y


def _root(x: Tensor) -> Tensor:
    return where(equal(x, 0.0), 0.0, sqrt(x))
