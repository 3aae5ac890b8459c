"""Products, variances and root mean squares over named dimensions.

    mtf.reduce_prod(x, "length")
    mtf.reduce_std(x, "batch;length")           # divides by the number of elements

A product cannot be reduced from partial sums. So if the dimension is sharded, `statistics` of
the op returns the product of each shard, which all shards exchange, one number for each
element of the result, and `reduced` multiplies them.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, explain_error
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    Role,
    Sample,
    Spec,
    Specs,
    Statistics,
    Tensor,
    apply,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import Names, accumulation_dtype, is_complex, is_floating
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.broadcasting import broadcast_call
from meshtf.ops.common.checks import require_dim, require_order
from meshtf.ops.common.op_bases import _ExchangesAlongDim
from meshtf.ops.elementwise.arithmetic import equal, squared_difference
from meshtf.ops.elementwise.unary import sqrt, square
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.reductions.reduce import names_or_all, reduce_mean


class Prod(_ExchangesAlongDim):
    """The product over `dim`: x[*rest, dim] -> [*rest]."""

    role_of_dim = Role.SAME  # each shard computes the same product, after the exchange
    padding = 1.0
    # Test inputs: the attribute `dim`, then the input's kind of values and shape.
    conformance_samples = (
        Sample(("d",), ("b:4;d:6",)),
        Sample(("b",), ("b:4;d:3",)),
        Sample(("d",), ("ties d:5;b:3",)),
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

    def statistics(self, context: LocalContext, x: Any) -> Statistics:
        axis = context.axis(0, self.dim)  # in the shape of input 0
        return Statistics(exchanged=(tf.reduce_prod(widen(x), axis),))

    def reduced(self, context: LocalContext, gathered: Any) -> LocalTensors:
        (products,) = gathered
        return (tf.reduce_prod(products, axis=0),)

    def outputs(
        self, context: LocalContext, statistics: Any, residuals: Any, x: Any
    ) -> LocalTensors:
        (product,) = statistics
        return (tf.cast(product, x.dtype),)

    def gradient(self, dy: Any, y: Any, x: Any) -> Cotangents:
        return [apply(ProdGrad(self.dim), dy, x)]

    def flops(self, *xs: Spec) -> int:
        return xs[0].shape.size


class ProdGrad(_ExchangesAlongDim):
    """The gradient of Prod: dy times the product of all other elements along `dim`.

    The inputs are dy and x. The product is not divided by x, which may be 0.
    """

    padding = 1.0
    conformance_samples = (
        Sample(("d",), ("b:4", "ties b:4;d:6"), gradient=False),
        Sample(("b",), ("d:3;c:2", "ties b:4;c:2;d:3"), gradient=False),
        Sample(("d",), ("b:3", "ties b:3;d:5"), gradient=False),
    )

    def output_specs(self, dy: Spec, x: Spec) -> Specs:
        return (x,)

    def local(self, context: LocalContext, dy: Any, x: Any) -> LocalTensors:
        other_products = _products_of_others(widen(x), context.axis(1, self.dim))
        return self._dx(context, other_products, dy, x)

    def statistics(self, context: LocalContext, dy: Any, x: Any) -> Statistics:
        product = tf.reduce_prod(widen(x), context.axis(1, self.dim))
        return Statistics(exchanged=(product,))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, dy: Any, x: Any
    ) -> LocalTensors:
        axis = context.axis(1, self.dim)  # in the shape of x, input 1
        # The product of all other elements is the product of the other shards' products
        # and of the other elements of this shard.
        (shard_products,) = gathered  # [shards, ...]
        product_of_other_shards = tf.gather(
            _products_of_others(shard_products, axis=0), context.shard_index(self.dim)
        )
        local_products = _products_of_others(widen(x), axis)
        other_products = local_products * tf.expand_dims(product_of_other_shards, axis)
        return self._dx(context, other_products, dy, x)

    def _dx(
        self, context: LocalContext, other_products: Any, dy: Any, x: Any
    ) -> LocalTensors:
        """Returns the output of the op from the product of all other elements."""
        dy_shape, x_shape = context.inputs
        operands = [other_products, widen(dy)]
        dx = broadcast_call(tf.multiply, operands, [x_shape, dy_shape], x_shape)
        return (tf.cast(dx, x.dtype),)


def _products_of_others(x: Any, axis: int) -> Any:
    """Returns for each element the product of all other elements along `axis`."""
    product_before = tf.math.cumprod(x, axis, exclusive=True)
    product_after = tf.math.cumprod(x, axis, exclusive=True, reverse=True)
    return product_before * product_after


def reduce_prod(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns the product over `dims`, by default all: x [..., dims] -> [...]. Its gradient
    is exact for elements that are 0.
    """
    x = as_tensor("x", x)
    for dim in names_or_all(x, dims):
        x = apply(Prod(dim), x)
    return x


def reduce_variance(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns the variance over `dims`, by default all, with the number of elements as
    the divisor: x [..., dims] -> [...].
    """
    wide_x = _widen_tensor(x, "reduce_variance")
    mean = reduce_mean(wide_x, dims)
    variance = reduce_mean(squared_difference(wide_x, mean), dims)
    return _cast_back(variance, x)


def reduce_std(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns the standard deviation over `dims`, by default all: x [..., dims] ->
    [...]; where it is 0, its gradient is 0.
    """
    variance = reduce_variance(_widen_tensor(x, "reduce_variance"), dims)
    return _cast_back(_sqrt(variance), x)


def reduce_rms(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns the root mean square over `dims`, by default all: x [..., dims] -> [...];
    where it is 0, its gradient is 0.
    """
    mean_square = reduce_mean(square(_widen_tensor(x, "reduce_rms")), dims)
    return _cast_back(_sqrt(mean_square), x)


def _widen_tensor(x: Tensor, function: str) -> Tensor:
    """Returns x in the data type of statistics, in which squares neither overflow nor
    lose digits.

    Raises:
      DTypeError: x is complex, which `function` does not take.
    """
    x = as_tensor("x", x)
    require_order(x.dtype, function)
    if is_floating(x.dtype):
        return cast(x, accumulation_dtype(x.dtype))
    return cast(x, "float32")


def _cast_back(y: Tensor, x: Tensor) -> Tensor:
    """Returns a statistic of x in the data type of x, if that is floating point."""
    if is_floating(x.dtype):
        return cast(y, x.dtype)
    return y


def _sqrt(x: Tensor) -> Tensor:
    """Returns the square root, with gradient 0 at 0."""
    # The gradient divides by the root, so it is the root that is compared: XLA may compute x
    # again, with another rounding, and then not find the 0 that it divides by.
    root = sqrt(x)
    return where(equal(root, 0.0), 0.0, root)
