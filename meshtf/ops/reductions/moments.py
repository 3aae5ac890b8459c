"""Products, variances and root mean squares over named dimensions.

    mtf.reduce_prod(x, "length")
    mtf.reduce_std(x, "batch;length")           # divides by the number of elements

A product is no partial sum: where the dimension is sharded, shards exchange their local
products, one number for each element of the result.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, explain_error
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    OpWithStatistics,
    Role,
    Sample,
    Spec,
    Specs,
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
    """The product over `dim`: x[*rest, dim] -> [*rest]."""

    dim: str

    samples = (
        Sample(("d",), ("b:4;d:6",)),
        Sample(("b",), ("b:4;d:3",)),
        Sample(("d",), ("int d:4;b:3",), gradient=False),
    )

    def output_specs(self, x: Spec) -> Specs:
        require_dim(x.shape, self.dim)
        if x.dtype == "bool" or is_complex(x.dtype):
            if x.dtype == "bool":
                way_out = "Use mtf.reduce_all."
            else:
                way_out = "Multiply the results of mtf.unstack, or add up logarithms."
            raise DTypeError(
                explain_error(f"reduce_prod does not take {x.dtype}.", way_out=way_out)
            )
        return (Spec(x.shape.without(self.dim), x.dtype),)

    def role(self, factor: str) -> Role:
        if factor == self.dim:
            return Role.SAME
        return Role.MAP

    def statistics_dims(self) -> tuple[str, ...]:
        return (self.dim,)

    def statistics_specs(self, x: Spec) -> Specs:
        return (Spec(x.shape.without(self.dim), accumulation_dtype(x.dtype)),)

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        y = tf.reduce_prod(widen(x), context.axis(0, self.dim))
        return (tf.cast(y, x.dtype),)

    def statistics(self, context: LocalContext, x: Any) -> Statistics:
        product = tf.reduce_prod(widen(x), context.axis(0, self.dim))
        return Statistics(exchanged=(product,))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, x: Any
    ) -> LocalTensors:
        return (tf.cast(tf.reduce_prod(gathered[0], 0), x.dtype),)

    def gradient(self, dy: Any, y: Any, x: Any) -> Cotangents:
        return [apply(ProdGrad(self.dim), dy, x)]

    def flops(self, *xs: Spec) -> int:
        return xs[0].shape.size


class ProdGrad(OpWithStatistics):
    """The gradient of Prod: dy times the product of all other elements of `dim`.

    It does not divide the product by x, which may be 0.
    """

    dim: str

    samples = (
        Sample(("d",), ("b:4", "ties b:4;d:6"), gradient=False),
        Sample(("b",), ("d:3;c:2", "ties b:4;c:2;d:3"), gradient=False),
    )

    def output_specs(self, dy: Spec, x: Spec) -> Specs:
        return (x,)

    def statistics_dims(self) -> tuple[str, ...]:
        return (self.dim,)

    def statistics_specs(self, dy: Spec, x: Spec) -> Specs:
        return (Spec(x.shape.without(self.dim), accumulation_dtype(x.dtype)),)

    def local(self, context: LocalContext, dy: Any, x: Any) -> LocalTensors:
        other_products = _products_of_rest(widen(x), context.axis(1, self.dim))
        return self._dx(context, other_products, dy, x)

    def statistics(self, context: LocalContext, dy: Any, x: Any) -> Statistics:
        product = tf.reduce_prod(widen(x), context.axis(1, self.dim))
        return Statistics(exchanged=(product,))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, dy: Any, x: Any
    ) -> LocalTensors:
        axis = context.axis(1, self.dim)
        # The product of the other shards, times that of the other elements of this one.
        shard_products = _products_of_rest(gathered[0], 0)
        other_shards = tf.gather(shard_products, context.shard_index(self.dim))
        local_products = _products_of_rest(widen(x), axis)
        other_products = local_products * tf.expand_dims(other_shards, axis)
        return self._dx(context, other_products, dy, x)

    def _dx(
        self, context: LocalContext, other_products: Any, dy: Any, x: Any
    ) -> LocalTensors:
        dy = align(widen(dy), context.inputs[0], context.outputs[0])
        return (tf.cast(other_products * dy, x.dtype),)


def _products_of_rest(x: Any, axis: int) -> Any:
    """Returns for each element the product of all other elements along `axis`."""
    before = tf.math.cumprod(x, axis, exclusive=True)
    after = tf.math.cumprod(x, axis, exclusive=True, reverse=True)
    return before * after


def reduce_prod(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns the product over `dims`, by default all: x [..., dims] -> [...]; its
    gradient is exact where elements are 0.
    """
    x = as_tensor("x", x)
    for dim in x.shape.names if dims is None else names_of(dims, x.shape):
        x = apply(Prod(dim), x)
    return x


def reduce_variance(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns the variance over `dims`, by default all, with the number of elements as
    the divisor: x [..., dims] -> [...].
    """
    y = _to_wide(x, "reduce_variance")
    mean = reduce_mean(y, dims)
    return _from_wide(reduce_mean(squared_difference(y, mean), dims), x)


def reduce_std(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns the standard deviation over `dims`, by default all: x [..., dims] ->
    [...]; where it is 0, its gradient is 0.
    """
    variance = reduce_variance(_to_wide(x, "reduce_variance"), dims)
    return _from_wide(_sqrt(variance), x)


def reduce_rms(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns the root mean square over `dims`, by default all: x [..., dims] -> [...];
    where it is 0, its gradient is 0.
    """
    mean_square = reduce_mean(square(_to_wide(x, "reduce_rms")), dims)
    return _from_wide(_sqrt(mean_square), x)


def _to_wide(x: Tensor, function: str) -> Tensor:
    """Returns x in the data type of statistics, in which squares neither overflow nor
    lose digits.
    """
    x = as_tensor("x", x)
    require_order(x.dtype, function)
    return cast(x, accumulation_dtype(x.dtype) if is_floating(x.dtype) else "float32")


def _from_wide(y: Tensor, x: Tensor) -> Tensor:
    """Returns a statistic of x in the data type of x, if that is floating point."""
    if is_floating(x.dtype):
        return cast(y, x.dtype)
    return y


def _sqrt(x: Tensor) -> Tensor:
    """Returns the square root, with gradient 0 at 0."""
    return where(equal(x, 0.0), 0.0, sqrt(x))
