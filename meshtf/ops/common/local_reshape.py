"""Reshapes and transposes of one device's tensor, each added to a trace once.

Several matmuls of one tensor may need it with the same order of axes, and the time to trace
a program grows with the number of ops. A recomputed tensor is a new tensor: it shares no
reshape with the tensor of the forward pass.

>>> import tensorflow as tf
>>> reshape(tf.zeros([2, 3]), [6]).shape
TensorShape([6])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from meshtf.ops.common.trace_cache import constant, once_per_trace

# TensorFlow's kernels broadcast at most this many groups of axes: adjacent axes of which each
# operand has all, or has size 1 in all.
MAX_GROUPS = 5


def _cached(x: Any, key: Hashable, make: Callable[[], Any]) -> Any:
    """Returns make(). In a trace, `make` is called once for each x and `key`, so its result
    must depend only on these.
    """
    if tf.executing_eagerly():
        return make()
    return once_per_trace((x.ref(), key), make)


def reshape(x: Any, sizes: Sequence[int]) -> Any:
    """Returns x [...] as [*sizes].

    No op is added if x, or the tensor that x was reshaped from, has these sizes.
    """
    if x.shape == sizes:
        return x
    # In a graph, reshape the input of the reshape that computes x.
    if not tf.executing_eagerly() and x.op.type == "Reshape":
        origin = x.op.inputs[0]
        if origin.shape.is_fully_defined():
            return reshape(origin, sizes)
    return _cached(
        x,
        ("reshape", *sizes),
        lambda: tf.raw_ops.Reshape(tensor=x, shape=constant(list(sizes))),
    )


def transpose(x: Any, order: Sequence[int]) -> Any:
    """Returns x with its axes in the order `order`, as tf.transpose does; x itself if they
    are in this order already.
    """
    is_ascending = list(order) == sorted(order)
    if is_ascending:
        return x
    return _cached(
        x,
        ("transpose", *order),
        lambda: tf.raw_ops.Transpose(x=x, perm=constant(list(order))),
    )


def squeeze(x: Any, axis: int) -> Any:
    """Returns x without an axis of size 1."""
    sizes_before = x.shape[:axis]
    sizes_after = x.shape[axis + 1 :]
    return reshape(x, [*sizes_before, *sizes_after])


def expand(x: Any, axis: int) -> Any:
    """Returns x with a new axis of size 1."""
    sizes_before = x.shape[:axis]
    sizes_after = x.shape[axis:]
    return reshape(x, [*sizes_before, 1, *sizes_after])


def broadcast_to(x: Any, sizes: Sequence[int]) -> Any:
    """Returns x repeated to [*sizes], as tf.broadcast_to does, for any number of axes.

    Args:
      x: a tensor.
      sizes: the new sizes, at least as many as x has.
    """
    missing = len(sizes) - len(x.shape)
    old_sizes = [1] * missing + list(x.shape)
    if len(sizes) <= MAX_GROUPS:
        return tf.broadcast_to(x, sizes)
    # Axis by axis, the last one first: only the last copy is as long as the result.
    for axis in reversed(range(len(sizes))):
        if old_sizes[axis] == sizes[axis]:
            continue
        outer = math.prod(old_sizes[:axis])
        inner = math.prod(sizes[axis + 1 :])
        x = tf.reshape(x, [outer, 1, inner])
        x = tf.broadcast_to(x, [outer, sizes[axis], inner])
    return tf.reshape(x, sizes)
