"""Ops that sort along a dimension which is not sharded: Sort, and Reorder.

    values, order = apply_all(Sort("d"), x)              # both [batch d]
    apply(Reorder("d"), x, order)                        # equals values
    apply(Reorder("d", back=True), values, order)        # equals x

If x is sharded along the dimension, the planner of the program reshards it, where possible
along another dimension.
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
    PaddingValue,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply,
)
from meshtf.names import is_floating, is_integer
from meshtf.ops.common.checks import require_dim
from meshtf.ops.common.op_bases import _NeedsWholeDim
from meshtf.ops.common.top_k_kernel import largest
from meshtf.ops.shapes.reshape import arrange


class Sort(_NeedsWholeDim):
    """x sorted along a dimension, and the index in x of each sorted element.

    Attributes:
      dim: the name of the dimension.
      descending: whether the largest comes first.
    """

    descending: bool = False
    # Each sample: the attributes (dim, descending), and the shape of x. "ties" are floats of
    # which many are equal, "nan" are these with NaN, "int" are integers.
    conformance_samples = (
        Sample(("d",), ("b:4;d:8",)),
        Sample(("d", True), ("ties d:6;b:4",)),
        Sample(("d",), ("ties b:2;d:4;a:2",)),
        Sample(("d",), ("int d:8;b:2",)),
        Sample(("d",), ("nan b:4;d:8",), gradient=False),
        Sample(("d", True), ("nan d:8;b:4",), gradient=False),
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

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        names = context.inputs[0].names
        dim_last = _move_last(names, self.dim)
        x = arrange(x, names, dim_last)
        values, order = sort_last_axis(context, x, self.descending)
        return arrange(values, dim_last, names), arrange(order, dim_last, names)

    def gradient(self, dys: Any, ys: Any, x: Tensor) -> Cotangents:
        dvalues, _ = dys
        _, order = ys
        return [apply(Reorder(self.dim, back=True), dvalues, order)]

    def flops(self, x: Spec) -> int:
        comparisons_per_element = math.ceil(math.log2(max(x.shape[self.dim], 1)))
        return x.shape.size * max(1, comparisons_per_element)


class Reorder(_NeedsWholeDim):
    """x reordered along a dimension: y[i] = x[order[i]]. The inputs are x and `order`.

    Attributes:
      dim: the name of the dimension.
      back: whether to undo the reordering instead: y[order[i]] = x[i]. If several entries
        of `order` are k, y[k] is the sum of these elements of x; if no entry is, y[k] is 0.
    """

    back: bool = False
    # Each sample: the attributes (dim, back), and the shapes of x and `order`, integers less
    # than `below`.
    conformance_samples = (
        Sample(("d",), ("b:4;d:6", "int b:4;d:6"), below=6),
        Sample(("d", True), ("d:4;b:2", "int b:2;d:4"), below=4),
        Sample(("d", True), ("d:4", "int d:4"), below=4),
    )

    def output_specs(self, x: Spec, order: Spec) -> Specs:
        return (x,)

    def padding_value(self, input_index: int, factor: str) -> PaddingValue:
        return 0.0 if input_index == 1 else None  # the order has valid indices

    def local(self, context: LocalContext, x: Any, order: Any) -> LocalTensors:
        names = context.inputs[0].names
        dim_last = _move_last(names, self.dim)
        x = arrange(x, names, dim_last)
        order = arrange(order, context.inputs[1].names, dim_last)
        if self.back:
            y = _scatter_last_axis(x, order)
        else:
            y = tf.gather(x, order, batch_dims=len(dim_last) - 1)
        return (arrange(y, dim_last, names),)

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor, order: Tensor) -> Cotangents:
        return [apply(Reorder(self.dim, back=not self.back), dy, order), None]


def _scatter_last_axis(x: Any, order: Any) -> Any:
    """Returns y, in the shape of x: zeros, to which y[..., order[..., i]] += x[..., i]."""
    num_vectors = math.prod(x.shape[:-1])
    size = x.shape[-1]
    # One segment sum for all vectors along the last axis: element i of vector k is added to
    # segment k * size + order[k, i].
    offsets = tf.range(0, num_vectors * size, size, dtype=order.dtype)
    segment_ids = tf.reshape(order, [num_vectors, size]) + offsets[:, None]
    y = tf.math.unsorted_segment_sum(
        data=tf.reshape(x, [-1]),
        segment_ids=tf.reshape(segment_ids, [-1]),
        num_segments=num_vectors * size,
    )
    return tf.reshape(y, x.shape)


def sort_last_axis(context: LocalContext, x: Any, descending: bool) -> tuple[Any, Any]:
    """Returns x sorted along its last axis, and the index in x of each sorted element.

    Equal elements keep their order. NaN is the largest.
    """
    size = x.shape[-1]
    if descending:
        return largest(context, x, size)
    values, order = largest(context, _reverse_order(x), size, nan_is_smallest=True)
    return _reverse_order(values), order


def _reverse_order(x: Any) -> Any:
    """Returns numbers whose order is the reverse of that of x, and NaN for NaN. It is its own
    inverse.
    """
    if x.dtype.is_floating:
        return -x
    # ~x is -x - 1, which does not overflow, while -x does for the smallest integer.
    return tf.bitwise.invert(x)


def _move_last(names: tuple[str, ...], dim: str) -> tuple[str, ...]:
    """Returns the names with `dim` as the last one."""
    other_names = [name for name in names if name != dim]
    return (*other_names, dim)
