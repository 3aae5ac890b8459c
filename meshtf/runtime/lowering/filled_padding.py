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

import tensorflow as tf

from meshtf.graph import Node, factor_of, window_of
from meshtf.runtime.lowering.local_context import DeviceContext


class Poison:
    """What tests write into padding, so that whatever it reaches shows: NaN, and integers.

    Attributes:
      integer: the value of integers; None: nothing is written.
    """

    integer: int | None = None


POISON = Poison()


@contextlib.contextmanager
def poisoned_padding(seed: int) -> Iterator[None]:
    """Poisons the padding in programs that are made in the context.

    Args:
      seed: chooses the value of integers among some that are likely to do harm.
    """
    before = POISON.integer
    POISON.integer = (0, 1, -(2**31))[seed % 3]
    try:
        yield
    finally:
        POISON.integer = before


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
            if value is not None and value != "gather":
                shard = _filled(shard, axis, context.num_elements(factor), value)
        filled.append(shard)
    return filled


def with_poisoned_padding(
    node: Node, context: DeviceContext, inputs: Sequence[Any]
) -> list[Any]:
    """Returns the inputs of a node's op on one device with `POISON` in their padding."""
    integer = POISON.integer
    assert integer is not None
    poisoned = []
    for i, (x, shard) in enumerate(zip(node.inputs, inputs)):
        for axis, name in enumerate(x.shape.names):
            factor = factor_of(node.op, name)
            if context.is_padded(factor) and window_of(node.op, i, name) is None:
                value = integer if shard.dtype.is_integer else math.nan
                shard = _filled(shard, axis, context.num_elements(factor), value)
        poisoned.append(shard)
    return poisoned


def with_poisoned_end(x: Any, axis: int, num_elements: Any) -> Any:
    """Returns a shard with `POISON` in place of its elements from `num_elements` on, which
    an exchange of windows must not read; unchanged outside of `poisoned_padding`.
    """
    if POISON.integer is None:
        return x
    value = POISON.integer if x.dtype.is_integer else math.nan
    return _filled(x, axis, num_elements, value)


def _filled(x: Any, axis: int, num_elements: Any, value: float) -> Any:
    """Returns x with a value in place of the elements of an axis from `num_elements` on.

    Args:
      x: the tensor.
      axis: the axis.
      num_elements: the number of elements that stay, a scalar int32 tensor.
      value: the value; infinity is the largest value of an integer type.
    """
    if x.dtype.is_bool:
        fill = tf.constant(value > 0)
    elif x.dtype.is_integer and math.isinf(value):
        fill = tf.constant(x.dtype.max if value > 0 else x.dtype.min, x.dtype)
    else:
        fill = tf.cast(value, x.dtype)
    shape = [1] * len(x.shape)
    shape[axis] = int(x.shape[axis])
    stays = tf.reshape(tf.range(shape[axis]) < num_elements, shape)
    return tf.where(stays, x, fill)
