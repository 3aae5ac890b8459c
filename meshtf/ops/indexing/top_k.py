"""The largest along a dimension: top_k, argmax and friends, ties going to the lowest
index.

    values, indices = mtf.top_k(logits, "vocab", "k:3")      # [batch vocab] -> [batch k], twice
    label = mtf.argmax(logits, "vocab")                      # [batch]
    third = mtf.nth_largest(logits, "vocab", 2)              # [batch]

Where the dimension is cut, each slice tells the others its own best (k numbers instead
of a slice) and every device chooses among those. The gradient of top_k adds dvalues at
the indices: a segment_sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import (
    LocalContext,
    OpWithStatistics,
    Role,
    Sample,
    Spec,
    Statistics,
    Tensor,
    apply,
    apply_all,
)
from meshtf.names import Dimension, ShapeLike, is_floating
from meshtf.names.arguments import as_int
from meshtf.ops.common.checks import require_dim, single_dim, tensor_along
from meshtf.ops.elementwise.arithmetic import subtract
from meshtf.ops.elementwise.unary import negative
from meshtf.ops.indexing.gather import SegmentSum
from meshtf.ops.shapes.reshape import arrange, reshape
from meshtf.ops.shapes.slice import slice as slice_rows


class TopK(OpWithStatistics):
    """x[*rest, dim] -> values and indices [*rest, k], the largest first."""

    dim: str
    k: Dimension
    samples = (
        Sample(("v", Dimension("k", 3)), ("b:4;v:8",)),
        Sample(("v", Dimension("k", 2)), ("v:8;b:3",)),
        Sample(("v", Dimension("k", 6)), ("ties b:4;v:8",)),
        Sample(("v", Dimension("k", 5)), ("a:2;v:5;b:2",)),
        Sample(("v", Dimension("k", 1)), ("int b:2;v:6",)),
    )

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
        _check(x, self.dim)
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
        return {self.dim: Role.SAME, self.k.name: Role.WHOLE}.get(factor, Role.MAP)

    def statistics_dims(self) -> tuple[str, ...]:
        return (self.dim,)

    def statistics_specs(self, x: Spec) -> tuple[Spec, ...]:
        best = Dimension(self.k.name, min(self.k.size, x.shape[self.dim]))
        shape = x.shape.without(self.dim) + [best]
        return (Spec(shape, x.dtype), Spec(shape, "int32"))

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        return self._top(context, x)

    def statistics(self, context: LocalContext, x: Any) -> Statistics:
        values, indices = self._top(context, x)
        return Statistics(exchanged=(values, indices + context.shard_offset(self.dim)))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, x: Any
    ) -> tuple[Any, ...]:
        # In the order of shards, so that among equals the lowest index is met first.
        values, indices = (tf.concat(tf.unstack(t), -1) for t in gathered)
        values, best = tf.math.top_k(values, self.k.size)
        return values, tf.gather(indices, best, batch_dims=len(best.shape) - 1)

    def _top(self, context: LocalContext, x: Any) -> tuple[Any, Any]:
        names = context.inputs[0].names
        x = arrange(x, names, [*(n for n in names if n != self.dim), self.dim])
        values, indices = tf.math.top_k(
            x, min(self.k.size, context.local_size(self.dim))
        )
        return values, indices

    def gradient(self, dys: Any, ys: Any, x: Tensor) -> list[Tensor | None]:
        return [apply(SegmentSum(self.dim, x.shape, "trusted"), dys[0], ys[1])]

    def flops(self, x: Spec) -> int:
        return x.shape.size


class ArgMax(OpWithStatistics):
    """The index of the largest."""

    dim: str
    samples = (
        Sample(("v",), ("b:4;v:8",), gradient=False),
        Sample(("v",), ("v:6;b:3",), gradient=False),
        Sample(("v",), ("ties b:4;v:8",), gradient=False),
        Sample(("v",), ("int a:2;v:8;b:5",), below=3, gradient=False),
        Sample(("v",), ("ties v:4",), gradient=False),
    )

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
        _check(x, self.dim)
        return (Spec(x.shape.without(self.dim), "int32"),)

    def role(self, factor: str) -> Role:
        return Role.SAME if factor == self.dim else Role.MAP

    def statistics_dims(self) -> tuple[str, ...]:
        return (self.dim,)

    def statistics_specs(self, x: Spec) -> tuple[Spec, ...]:
        shape = x.shape.without(self.dim)
        return (Spec(shape, x.dtype), Spec(shape, "int32"))

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        return (tf.argmax(x, context.axis(0, self.dim), output_type=tf.int32),)

    def statistics(self, context: LocalContext, x: Any) -> Statistics:
        axis = context.axis(0, self.dim)
        index = tf.argmax(x, axis, output_type=tf.int32) + context.shard_offset(
            self.dim
        )
        return Statistics(exchanged=(tf.reduce_max(x, axis), index))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, x: Any
    ) -> tuple[Any, ...]:
        largest, indices = gathered
        slices = tf.stack(tf.unstack(indices), -1)
        which = tf.argmax(largest, 0, output_type=tf.int32)
        rank = len(which.shape)
        return (tf.gather(slices, which, batch_dims=rank, axis=rank),)

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor) -> list[Tensor | None]:
        return [None]

    def flops(self, x: Spec) -> int:
        return x.shape.size


def _check(x: Spec, dim: str) -> None:
    require_dim(x.shape, dim)
    if x.dtype == "bool" or x.dtype.startswith("complex"):
        raise DTypeError(f"{x.dtype} has no largest.")
    if x.shape[dim] == 0:
        raise ShapeError(f"{x.shape.dim(dim)!r} has no largest.")


def top_k(x: Tensor, dim: str, k: ShapeLike) -> tuple[Tensor, Tensor]:
    """Returns the largest values along `dim` and their indices, the largest first:
    [*rest, k], twice.

    Args:
      x: numbers.
      dim: the name that is searched.
      k: name and number of the largest, such as "k:3".

    Raises:
      ShapeError: x lacks `dim`, has fewer rows, or has a dimension named as k.
      DTypeError: x is bool.
    """
    x, dim = tensor_along(x, dim)
    values, indices = apply_all(TopK(dim, single_dim(k)), x)
    return values, indices


def argmax(x: Tensor, dim: str) -> Tensor:
    """Returns the index of the largest along `dim`, the lowest among equals: x without
    `dim`.

    Raises:
      ShapeError: x lacks `dim`.
      DTypeError: x is bool.
    """
    x, dim = tensor_along(x, dim)
    return apply(ArgMax(dim), x)


def argmin(x: Tensor, dim: str) -> Tensor:
    """Returns the index of the smallest along `dim`, the lowest among equals: see
    `argmax`.
    """
    x, dim = tensor_along(x, dim)
    _check(x.spec, dim)
    return argmax(_flipped(x), dim)


def top_1(x: Tensor, dim: str) -> tuple[Tensor, Tensor]:
    """Returns the largest along `dim` and its index, the lowest among equals: x without
    `dim`, twice.

    Among equals that one has the gradient, where `reduce_max` shares it out. Errors as
    of `top_k`.
    """
    values, indices = top_k(x, dim, Dimension(_PLACES, 1))
    return _only_row(values, 0), _only_row(indices, 0)


def nth_largest(x: Tensor, dim: str, n: int) -> Tensor:
    """Returns the element along `dim` than which n are larger or come first: x without
    `dim`.

    Args:
      x: numbers.
      dim: the name that is searched.
      n: from 0, which is the largest, to below the size of `dim`.

    Raises:
      ShapeError: x lacks `dim`, or n is out of range.
      DTypeError: x is bool.
    """
    x, dim = tensor_along(x, dim)
    n = as_int("n", n)
    _check(x.spec, dim)
    if not 0 <= n < x.shape[dim]:
        raise ShapeError(
            explain_error(
                f"{x.shape.dim(dim)!r} has no element number {n}.",
                tensor=repr(x.shape),
                way_out=f"Count from 0, the first, to {x.shape[dim] - 1}, the last.",
            )
        )
    return _only_row(top_k(x, dim, Dimension(_PLACES, n + 1))[0], n)


def nth_smallest(x: Tensor, dim: str, n: int) -> Tensor:
    """Returns the element along `dim` than which n are smaller: see `nth_largest`."""
    x, dim = tensor_along(x, dim)
    _check(x.spec, dim)
    return _flipped(nth_largest(_flipped(x), dim, n))


_PLACES = ".k"


def _only_row(x: Tensor, n: int) -> Tensor:
    return reshape(slice_rows(x, _PLACES, n, 1), x.shape.without(_PLACES))


def _flipped(x: Tensor) -> Tensor:
    """Returns x with the smallest as the largest; twice it is x itself."""
    if is_floating(x.dtype):
        return negative(x)
    return subtract(np.iinfo(x.dtype).max if x.dtype.startswith("u") else -1, x)
