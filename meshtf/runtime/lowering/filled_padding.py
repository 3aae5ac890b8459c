"""The padding of shards: elements of undefined value beyond the end of a dimension that the
axes of a mesh do not divide (see `mesh/shard_sizes.py`).

    inputs = with_filled_padding(node, context, inputs)     # before the op of a node runs

Where elements along a dimension meet, as in a sum, the padding gets a value that changes
nothing, such as 0. The op says which: see `Op.padding_value`. Padding is part of no result.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.graph import Node, factor_of, window_of
from meshtf.ops.common.trace_cache import constant
from meshtf.runtime.lowering.local_context import DeviceContext
from meshtf.runtime.lowering.many_dimensions import MAX_AXES
from meshtf.runtime.lowering.padding.element_ranges import take_elements


class Poison:
    """What tests write into padding, so that whatever it reaches shows.

    Attributes:
      floating: the value of floats.
      integer: the value of integers; None: nothing is written.
    """

    floating: float = math.nan
    integer: int | None = None

    def set(self, floating: float, integer: int | None) -> None:
        """Sets both values."""
        self.floating = floating
        self.integer = integer

    def of(self, dtype: Any) -> Any:
        """Returns the value for tensors of a TensorFlow data type."""
        assert self.integer is not None
        value = self.integer if dtype.is_integer else self.floating
        return tf.cast(np.asarray(value), dtype)  # also what the type does not have


POISON = Poison()
# Pairs of `floating` and `integer`: values that show, or that some kernels refuse.
_HOSTILE_VALUES = ((math.nan, 0), (0.0, 1), (math.inf, -(2**31)), (-1.0, -1))


@contextlib.contextmanager
def poisoned_padding(seed: int) -> Iterator[None]:
    """Poisons the padding in programs that are made in the context.

    Args:
      seed: chooses the values among some that are likely to do harm; 0 has NaN.
    """
    floating, integer = POISON.floating, POISON.integer
    POISON.set(*_HOSTILE_VALUES[seed % len(_HOSTILE_VALUES)])
    try:
        yield
    finally:
        POISON.set(floating, integer)


def with_filled_padding(
    node: Node, context: DeviceContext, inputs: Sequence[Any]
) -> list[Any]:
    """Returns the inputs of a node's op on one device, with the values in their padding that
    the op needs.
    """
    filled = []
    for i, (x, shard) in enumerate(zip(node.inputs, inputs)):
        for axis, name in enumerate(x.shape.names):
            factor = factor_of(node.op, name)
            # The exchange of windows has filled what they read.
            if not context.is_padded(factor) or window_of(node.op, i, name):
                continue
            value = node.op.padding_value(i, factor)
            if value == "gather" or value is None:
                continue
            if value == "first":
                fill = take_elements(shard, axis, start=0, stop=1, fill=0.0)
            else:
                fill = constant(value, shard.dtype)
            shard = _filled(shard, axis, context.num_elements(factor), fill)
        filled.append(shard)
    return filled


def with_poisoned_padding(
    node: Node, context: DeviceContext, inputs: Sequence[Any]
) -> list[Any]:
    """Returns the inputs of a node's op on one device with `POISON` in their padding."""
    poisoned = []
    for i, (x, shard) in enumerate(zip(node.inputs, inputs)):
        for axis, name in enumerate(x.shape.names):
            factor = factor_of(node.op, name)
            if context.is_padded(factor) and window_of(node.op, i, name) is None:
                poison = POISON.of(shard.dtype)
                shard = _filled(shard, axis, context.num_elements(factor), poison)
        poisoned.append(shard)
    return poisoned


def with_poisoned_end(x: Any, axis: int, num_elements: Any) -> Any:
    """Returns a shard with `POISON` in place of its elements from `num_elements` on, which
    an exchange of windows must not read; unchanged outside of `poisoned_padding`.
    """
    if POISON.integer is None:
        return x
    return _filled(x, axis, num_elements, POISON.of(x.dtype))


def _filled(x: Any, axis: int, num_elements: Any, fill: Any) -> Any:
    """Returns x with others in place of the elements of an axis from `num_elements` on.

    Args:
      x: the tensor.
      axis: the axis.
      num_elements: the number of elements that stay, a scalar int32 tensor.
      fill: the other element: a scalar, or a tensor like x of size 1 along the axis.
    """
    if len(x.shape) > MAX_AXES:
        outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
        if len(fill.shape) > 0:
            fill = tf.reshape(fill, [outer, 1, inner])
        x_3d = tf.reshape(x, [outer, x.shape[axis], inner])
        return tf.reshape(_filled(x_3d, 1, num_elements, fill), x.shape)
    shape = [1] * len(x.shape)
    shape[axis] = int(x.shape[axis])
    stays = tf.reshape(tf.range(shape[axis]) < num_elements, shape)
    return tf.where(stays, x, fill)
