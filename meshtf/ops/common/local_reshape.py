"""Reshapes and transposes of a tensor, each made once in a trace.

Several products of one tensor want it in the same order, and ops are what tracing
costs. What is computed again is not found here: its inputs are other tensors.

>>> import tensorflow as tf
>>> reshape(tf.zeros([2, 3]), [6]).shape
TensorShape([6])
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from meshtf.ops.common.trace_cache import constant, once_per_trace


def _of(x: Any, key: Hashable, make: Callable[[], Any]) -> Any:
    """Returns what is made of x, in a trace once."""
    return make() if tf.executing_eagerly() else once_per_trace((x.ref(), key), make)


def reshape(x: Any, sizes: Sequence[int]) -> Any:
    """Returns x with other sizes; x itself, or what it was reshaped from, if that has
    them.
    """
    if x.shape == sizes:
        return x
    if not tf.executing_eagerly() and x.op.type == "Reshape":
        origin = x.op.inputs[0]
        if origin.shape.is_fully_defined():
            return reshape(origin, sizes)
    return _of(
        x,
        ("reshape", *sizes),
        lambda: tf.raw_ops.Reshape(tensor=x, shape=constant(list(sizes))),
    )


def transpose(x: Any, order: Sequence[int]) -> Any:
    """Returns x with its axes in another order; x itself if that is the same."""
    if list(order) == sorted(order):
        return x
    return _of(
        x,
        ("transpose", *order),
        lambda: tf.raw_ops.Transpose(x=x, perm=constant(list(order))),
    )


def squeeze(x: Any, axis: int) -> Any:
    """Returns x without an axis of size 1."""
    return reshape(x, [*x.shape[:axis], *x.shape[axis + 1 :]])


def expand(x: Any, axis: int) -> Any:
    """Returns x with a new axis of size 1."""
    return reshape(x, [*x.shape[:axis], 1, *x.shape[axis:]])
