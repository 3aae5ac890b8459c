"""Ops of sorting on one device: sort with the indices of the elements, and
reorder.

    values, order = apply_all(Sort("d"), x)       # [batch d], twice
    apply(Reorder("d"), x, order)                 # equals values; back=True undoes it

Both need their dimension unsharded: where it can, the planner shards another dimension
instead.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, explain_error
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    Op,
    Role,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply,
)
from meshtf.names import is_floating, is_integer
from meshtf.ops.common.checks import require_dim
from meshtf.ops.shapes.reshape import arrange


class Sort(Op):
    """x sorted along `dim`, and the index in x of each sorted element."""

    dim: str
    descending: bool = False
    samples = (
        Sample(("d",), ("b:4;d:8",)),
        Sample(("d", True), ("ties d:6;b:4",)),
        Sample(("d",), ("ties b:2;d:4;a:2",)),
        Sample(("d",), ("int d:8;b:2",)),
    )

    def output_specs(self, x: Spec) -> Specs:
        require_dim(x.shape, self.dim)
        if not is_floating(x.dtype) and not is_integer(x.dtype):
            raise DTypeError(
                explain_error(
                    f"{x.dtype} has no order.",
                    way_out='Make numbers of it: mtf.cast(x, "int32").',
                )
            )
        return (x, Spec(x.shape, "int32"))

    def role(self, factor: str) -> Role:
        if factor == self.dim:
            return Role.UNSHARDED
        return Role.MAP

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        names = context.inputs[0].names
        order = _last(names, self.dim)
        return tuple(
            arrange(y, order, names)
            for y in sort_last_axis(arrange(x, names, order), self.descending)
        )

    def gradient(self, dys: Any, ys: Any, x: Tensor) -> Cotangents:
        return [apply(Reorder(self.dim, back=True), dys[0], ys[1])]

    def flops(self, x: Spec) -> int:
        return x.shape.size * max(1, math.ceil(math.log2(max(x.shape[self.dim], 1))))


class Reorder(Op):
    """y[i] = x[order[i]] along `dim`; back: y[order[i]] += x[i], from zeros."""

    dim: str
    back: bool = False
    samples = (
        Sample(("d",), ("b:4;d:6", "int b:4;d:6"), 6),
        Sample(("d", True), ("d:4;b:2", "int b:2;d:4"), 4),
        Sample(("d", True), ("d:4", "int d:4"), 4),
    )

    def output_specs(self, x: Spec, order: Spec) -> Specs:
        return (x,)

    def role(self, factor: str) -> Role:
        if factor == self.dim:
            return Role.UNSHARDED
        return Role.MAP

    def local(self, context: LocalContext, x: Any, order: Any) -> LocalTensors:
        names = context.inputs[0].names
        last = _last(names, self.dim)
        x = arrange(x, names, last)
        order = arrange(order, context.inputs[1].names, last)
        if self.back:
            y = _scatter_last_axis(x, order)
        else:
            y = tf.gather(x, order, batch_dims=len(last) - 1)
        return (arrange(y, last, names),)

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor, order: Tensor) -> Cotangents:
        return [apply(Reorder(self.dim, not self.back), dy, order), None]


def _scatter_last_axis(x: Any, order: Any) -> Any:
    """Returns y of the shape of x with y[..., order[..., i]] += x[..., i], from zeros."""
    groups = math.prod(x.shape[:-1])
    size = x.shape[-1]
    offsets = tf.range(0, groups * size, size, dtype=order.dtype)
    ids = tf.reshape(order, [groups, size]) + offsets[:, None]
    y = tf.math.unsorted_segment_sum(
        tf.reshape(x, [-1]), tf.reshape(ids, [-1]), groups * size
    )
    return tf.reshape(y, x.shape)


def sort_last_axis(x: Any, descending: bool) -> tuple[Any, Any]:
    """Returns x sorted along its last axis, and the index of each element in x; stable
    among equal elements.
    """
    size = x.shape[-1]
    if descending:
        return tf.math.top_k(x, size)
    values, order = tf.math.top_k(_flipped(x), size)
    return _flipped(values), order


def _flipped(x: Any) -> Any:
    """Returns x with its order reversed, smallest as largest; its own inverse."""
    if x.dtype.is_floating:
        return -x
    return tf.bitwise.invert(x)


def _last(names: tuple[str, ...], dim: str) -> tuple[str, ...]:
    return (*(n for n in names if n != dim), dim)
