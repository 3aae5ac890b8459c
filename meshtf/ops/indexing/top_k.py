"""The largest and smallest elements along a dimension: top_k, argmax, argmin, top_1,
nth_largest, nth_smallest. Among equal elements, the one with the lowest index comes first.
NaN is larger than all numbers, but for argmin, where it is smaller; all NaN are equal.

    values, indices = mtf.top_k(logits, "vocab", "k:3")      # [batch vocab] -> both [batch k]
    label = mtf.argmax(logits, "vocab")                      # [batch]
    third = mtf.math.nth_largest(logits, "vocab", 2)         # [batch]

If the dimension is not sharded, the method `local` of an op computes its outputs. If it is,
`statistics` returns the k largest elements of a shard, which all shards exchange, and
`local_sharded` selects the k largest of all exchanged ones. The gradient of top_k adds
dvalues at the indices, which is a segment_sum.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    PaddingValue,
    Role,
    Sample,
    Spec,
    Specs,
    Statistics,
    Tensor,
    apply,
    apply_all,
)
from meshtf.names import Dimension, ShapeLike, is_floating
from meshtf.names.arguments import as_int
from meshtf.ops.common.checks import require_dim, single_dim, tensor_along
from meshtf.ops.common.op_bases import _ExchangesAlongDim
from meshtf.ops.common.top_k_kernel import largest, largest_and_index
from meshtf.ops.indexing.gather import Segment
from meshtf.ops.shapes.reshape import arrange, reshape
from meshtf.ops.shapes.slice import slice as slice_

# The name of the dimension of the k largest where only one of them is returned. Names that
# begin with a dot are internal, and no layout shards them.
_K_NAME = ".k"


class TopK(_ExchangesAlongDim):
    """The k largest elements along `dim` and their indices, the largest first: x[*rest, dim]
    -> values and indices, both [*rest, k].

    Attributes:
      dim: the dimension that is searched.
      k: the new dimension.
      nan_is_smallest: whether NaN is smaller than all numbers, and not larger.
    """

    k: Dimension
    nan_is_smallest: bool = False
    role_of_dim = Role.SAME  # each shard computes the same outputs, after the exchange
    # Test inputs: the attributes (dim, k, nan_is_smallest), then the input's kind of values and
    # shape.
    conformance_samples = (
        Sample(("v", Dimension("k", 3)), ("b:4;v:8",)),
        Sample(("v", Dimension("k", 2)), ("v:8;b:3",)),
        Sample(("v", Dimension("k", 6)), ("ties b:4;v:8",)),
        Sample(("v", Dimension("k", 5)), ("a:2;v:5;b:2",)),
        Sample(("v", Dimension("k", 1)), ("int b:2;v:6",)),
        Sample(("v", Dimension("k", 6)), ("ties v:7;b:3",)),
        Sample(("v", Dimension("k", 2)), ("int b:3;v:3",)),
        Sample(("v", Dimension("k", 3)), ("nan b:4;v:8",), gradient=False),
        Sample(("v", Dimension("k", 6)), ("nan v:7;b:3",), gradient=False),
        Sample(("v", Dimension("k", 6), True), ("nan b:3;v:7",), gradient=False),
    )

    def output_specs(self, x: Spec) -> Specs:
        _check_ordered(x, self.dim)
        if self.k.name == self.dim:
            raise ShapeError(
                f'the {self.k.size} largest need a name other than "{self.dim}": '
                f'mtf.top_k(x, "{self.dim}", "k:{self.k.size}").'
            )
        if not 0 < self.k.size <= x.shape[self.dim]:
            raise ShapeError(f"{x.shape.dim(self.dim)!r} has no {self.k.size} largest.")
        shape = x.shape.without(self.dim) + self.k
        return (Spec(shape, x.dtype), Spec(shape, "int32"))

    def role(self, factor: str) -> Role:
        # What sharding `factor`, a dimension of x or of the outputs, does.
        return Role.UNSHARDED if factor == self.k.name else super().role(factor)

    def padding_value(self, input_index: int, factor: str) -> PaddingValue:
        # It comes after equal elements of its shard, since these have lower indices.
        if factor != self.dim:
            return None
        return math.nan if self.nan_is_smallest else -math.inf

    def statistics_specs(self, x: Spec) -> Specs:
        local_k = min(self.k.size, x.shape[self.dim])
        local_dim = Dimension(self.k.name, local_k)
        shape = x.shape.without(self.dim) + [local_dim]
        values = Spec(shape, x.dtype)
        indices = Spec(shape, "int32")
        return (values, indices)

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        (x_shape,) = context.inputs
        names = x_shape.names
        rest_names = [name for name in names if name != self.dim]
        x = arrange(x, names, [*rest_names, self.dim])
        # The shard may have less than k elements.
        local_k = min(self.k.size, context.local_size(self.dim))
        return largest(context, x, local_k, self.nan_is_smallest)

    def statistics(self, context: LocalContext, x: Any) -> Statistics:
        values, local_indices = self.local(context, x)
        indices = local_indices + context.shard_offset(self.dim)
        return Statistics(exchanged=(values, indices))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, x: Any
    ) -> LocalTensors:
        # Values and indices of all shards, [shards, *rest, k], are concatenated along k in
        # the order of the shards, so that the lowest index comes first among equals.
        shard_values, shard_indices = gathered
        all_values = self._concat_shards(context, shard_values)
        all_indices = self._concat_shards(context, shard_indices)
        k = self.k.size
        values, selected = largest(context, all_values, k, self.nan_is_smallest)
        batch_dims = len(selected.shape) - 1
        return values, tf.gather(all_indices, selected, batch_dims=batch_dims)

    def _concat_shards(self, context: LocalContext, gathered: Any) -> Any:
        """Returns gathered statistics [shards, *rest, k] as [*rest, shards * k]. If a shard
        has less than k elements, padding comes last among its k largest, and is left out.
        """
        shards = tf.unstack(gathered)
        if context.is_padded(self.dim):
            counts = context.elements_of_shards(self.dim)
            shards = [x[..., :count] for x, count in zip(shards, counts)]
        return tf.concat(shards, axis=-1)

    def gradient(self, dys: Any, ys: Any, x: Tensor) -> Cotangents:
        dvalues, _ = dys
        _, indices = ys
        scatter_sum = Segment("sum", self.dim, x.shape, out_of_range="trusted")
        return [apply(scatter_sum, dvalues, indices)]

    def flops(self, x: Spec) -> int:
        return x.shape.size


class ArgMax(_ExchangesAlongDim):
    """The index of the largest element along `dim`, or of the first NaN: x[*rest, dim] ->
    [*rest].
    """

    role_of_dim = Role.SAME
    # Padding comes after equal elements of its shard, since these have lower indices. A shard
    # of padding alone comes after the elements of the first shard.
    padding = -math.inf
    conformance_samples = (
        Sample(("v",), ("b:4;v:8",), gradient=False),
        Sample(("v",), ("v:6;b:3",), gradient=False),
        Sample(("v",), ("ties b:4;v:8",), gradient=False),
        Sample(("v",), ("int a:2;v:8;b:5",), below=3, gradient=False),
        Sample(("v",), ("ties v:4",), gradient=False),
        Sample(("v",), ("ties b:3;v:5",), gradient=False),
        Sample(("v",), ("nan b:4;v:8",), gradient=False),
        Sample(("v",), ("nan v:7;b:3",), gradient=False),
    )

    def output_specs(self, x: Spec) -> Specs:
        _check_ordered(x, self.dim)
        return (Spec(x.shape.without(self.dim), "int32"),)

    def statistics_specs(self, x: Spec) -> Specs:
        shape = x.shape.without(self.dim)
        return (Spec(shape, x.dtype), Spec(shape, "int32"))

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        axis = context.axis(0, self.dim)  # in the shape of input 0
        _, index = largest_and_index(context, x, axis)
        return (index,)

    def statistics(self, context: LocalContext, x: Any) -> Statistics:
        value, index = largest_and_index(context, x, context.axis(0, self.dim))
        return Statistics(exchanged=(value, index + context.shard_offset(self.dim)))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, x: Any
    ) -> LocalTensors:
        # The largest element of each shard and its index, both [shards, *rest].
        values, indices = gathered
        indices = tf.stack(tf.unstack(indices), axis=-1)  # [*rest, shards]
        _, best_shard = largest_and_index(context, values, axis=0)  # [*rest]
        rank = len(best_shard.shape)
        return (tf.gather(indices, best_shard, batch_dims=rank, axis=rank),)

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return [None]

    def flops(self, x: Spec) -> int:
        return x.shape.size


def _check_ordered(x: Spec, dim: str) -> None:
    """Checks that x has a largest element along `dim`.

    Raises:
      ShapeError: x lacks `dim`, or `dim` has no elements.
      DTypeError: x is boolean or complex.
    """
    require_dim(x.shape, dim)
    if x.dtype == "bool" or x.dtype.startswith("complex"):
        raise DTypeError(f"{x.dtype} has no largest.")
    if x.shape[dim] == 0:
        raise ShapeError(f"{x.shape.dim(dim)!r} has no largest.")


def top_k(x: Tensor, dim: str, k: ShapeLike) -> tuple[Tensor, Tensor]:
    """Returns the k largest values along `dim` and their indices, the largest first: both
    [..., k], without `dim`.

    NaN is larger than all numbers, as in JAX; all NaN are equal, as 0.0 and -0.0 are.

    Args:
      x: a tensor [..., dim, ...] of real numbers.
      dim: the name of the dimension that is searched.
      k: the new dimension, such as "k:3" for the 3 largest.

    Raises:
      ShapeError: x lacks `dim`, has fewer elements, or has a dimension of the name of k.
      DTypeError: x is boolean or complex.
    """
    x, dim = tensor_along(x, dim)
    values, indices = apply_all(TopK(dim, single_dim(k)), x)
    return values, indices


def argmax(x: Tensor, dim: str) -> Tensor:
    """Returns the index of the largest element along `dim`, the lowest among equals:
    x [..., dim, ...] -> int32 [...]. Where x has NaN, it is the index of the first NaN, as in
    NumPy and JAX.

    Raises:
      ShapeError: x lacks `dim`, or `dim` has no elements.
      DTypeError: x is boolean or complex.
    """
    x, dim = tensor_along(x, dim)
    return apply(ArgMax(dim), x)


def argmin(x: Tensor, dim: str) -> Tensor:
    """Returns the index of the smallest element along `dim`, the lowest among equals:
    x [..., dim, ...] -> int32 [...]. Where x has NaN, it is the index of the first NaN. Errors
    are those of `argmax`.
    """
    x, dim = tensor_along(x, dim)
    _check_ordered(x.spec, dim)
    return argmax(_reverse_order(x), dim)


def top_1(x: Tensor, dim: str) -> tuple[Tensor, Tensor]:
    """Returns the largest element along `dim` and its index, the lowest among equals:
    x [..., dim, ...] -> values [...], indices int32 [...].

    Only the element at that index gets a gradient; `reduce_max` divides it among equal
    elements. Errors are those of `top_k`.
    """
    values, indices = top_k(x, dim, Dimension(_K_NAME, 1))
    return _select(values, n=0), _select(indices, n=0)


def nth_largest(x: Tensor, dim: str, n: int) -> Tensor:
    """Returns element n of x in descending order along `dim`: x [..., dim, ...] -> [...].
    NaN is larger than all numbers, as in `sort`.

    Args:
      x: a tensor of real numbers.
      dim: the name of the dimension that is searched.
      n: the rank of the element, an integer in [0, size of `dim`); 0 is the largest.

    Raises:
      ShapeError: x lacks `dim`, or n is out of range.
      DTypeError: x is boolean or complex.
    """
    x, dim = tensor_along(x, dim)
    return _nth_largest(x, dim, n, nan_is_smallest=False)


def _nth_largest(x: Tensor, dim: str, n: int, nan_is_smallest: bool) -> Tensor:
    """Returns `nth_largest`; NaN may be smaller than all numbers instead."""
    n = as_int("n", n)
    _check_ordered(x.spec, dim)
    if not 0 <= n < x.shape[dim]:
        raise ShapeError(
            explain_error(
                f"{x.shape.dim(dim)!r} has no element {n}.",
                tensor=repr(x.shape),
                way_out=f"Count from 0, the largest, to {x.shape[dim] - 1}.",
            )
        )
    values, _ = apply_all(TopK(dim, Dimension(_K_NAME, n + 1), nan_is_smallest), x)
    return _select(values, n)


def nth_smallest(x: Tensor, dim: str, n: int) -> Tensor:
    """Returns element n of x in ascending order along `dim`: x [..., dim, ...] -> [...].

    Arguments and errors are those of `nth_largest`; n = 0 is the smallest.
    """
    x, dim = tensor_along(x, dim)
    _check_ordered(x.spec, dim)
    negative_element = _nth_largest(_reverse_order(x), dim, n, nan_is_smallest=True)
    return _reverse_order(negative_element)


def _select(x: Tensor, n: int) -> Tensor:
    """Returns element n of x along the dimension `_K_NAME`: [..., k] -> [...]."""
    element = slice_(x, _K_NAME, begin=n, size=1)
    return reshape(element, x.shape.without(_K_NAME))


def _reverse_order(x: Tensor) -> Tensor:
    """Returns numbers whose order is the reverse of that of x: -x for floats, max - x for
    unsigned integers, and -1 - x for signed ones, since -x would overflow for the smallest
    integer. The function is its own inverse.
    """
    if is_floating(x.dtype):
        return -x
    if x.dtype.startswith("u"):
        return np.iinfo(x.dtype).max - x
    return -1 - x
