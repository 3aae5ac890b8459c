"""Ops of sorting on one device: sort with the places from which elements came, and
reorder.

    values, order = apply_all(Sort("d"), x)       # [batch d], twice
    apply(Reorder("d"), x, order)                 # equals values; back=True undoes it

Both take their dimension whole, so that the planner cuts another one in its place where
it can.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, explain_error
from meshtf.graph import LocalContext, Op, Role, Sample, Spec, Tensor, apply
from meshtf.names import is_floating, is_integer
from meshtf.ops.common.checks import require_dim
from meshtf.ops.shapes.reshape import arrange


class Sort(Op):
    """x in order along `dim`, and the row from which each element came."""

    dim: str
    descending: bool = False
    samples = (
        Sample(("d",), ("b:4;d:8",)),
        Sample(("d", True), ("ties d:6;b:4",)),
        Sample(("d",), ("ties b:2;d:4;a:2",)),
        Sample(("d",), ("int d:8;b:2",)),
    )

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
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
        return Role.WHOLE if factor == self.dim else Role.MAP

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        names = context.inputs[0].names
        order = _last(names, self.dim)
        return tuple(
            arrange(y, order, names)
            for y in sorted_rows(arrange(x, names, order), self.descending)
        )

    def gradient(self, dys: Any, ys: Any, x: Tensor) -> list[Tensor | None]:
        return [apply(Reorder(self.dim, back=True), dys[0], ys[1])]

    def flops(self, x: Spec) -> int:
        return x.shape.size * max(1, math.ceil(math.log2(max(x.shape[self.dim], 1))))


class Reorder(Op):
    """Row i is row order[i] of x; back: row order[i] is row i, and rows that meet are
    added.
    """

    dim: str
    back: bool = False
    samples = (
        Sample(("d",), ("b:4;d:6", "int b:4;d:6"), 6),
        Sample(("d", True), ("d:4;b:2", "int b:2;d:4"), 4),
        Sample(("d", True), ("d:4", "int d:4"), 4),
    )

    def output_specs(self, x: Spec, order: Spec) -> tuple[Spec, ...]:
        return (x,)

    def role(self, factor: str) -> Role:
        return Role.WHOLE if factor == self.dim else Role.MAP

    def local(self, context: LocalContext, x: Any, order: Any) -> tuple[Any, ...]:
        names = context.inputs[0].names
        last = _last(names, self.dim)
        x = arrange(x, names, last)
        order = arrange(order, context.inputs[1].names, last)
        if not self.back:
            y = tf.gather(x, order, batch_dims=len(last) - 1)
        else:
            groups, rows = math.prod(x.shape[:-1]), x.shape[-1]
            first = tf.range(0, groups * rows, rows, dtype=order.dtype)
            ids = tf.reshape(order, [groups, rows]) + first[:, None]
            y = tf.math.unsorted_segment_sum(
                tf.reshape(x, [-1]), tf.reshape(ids, [-1]), groups * rows
            )
            y = tf.reshape(y, x.shape)
        return (arrange(y, last, names),)

    def gradient(
        self, dy: Tensor, y: Tensor, x: Tensor, order: Tensor
    ) -> list[Tensor | None]:
        return [apply(Reorder(self.dim, not self.back), dy, order), None]


def sorted_rows(x: Any, descending: bool) -> tuple[Any, Any]:
    """Returns the rows of the last axis in order, and where each element was; equals
    stay so.
    """
    values, order = tf.math.top_k(x if descending else _flipped(x), x.shape[-1])
    return values if descending else _flipped(values), order


def _flipped(x: Any) -> Any:
    """Returns x with the smallest as the largest; twice it is x itself."""
    return -x if x.dtype.is_floating else tf.bitwise.invert(x)


def _last(names: tuple[str, ...], dim: str) -> tuple[str, ...]:
    return (*(n for n in names if n != dim), dim)
