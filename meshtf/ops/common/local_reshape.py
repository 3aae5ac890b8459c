"""Reshapes and transposes of one device's tensor, each added to a trace once.

Several matmuls of one tensor need it in the same order, and the number of ops determines
how long tracing takes. A recomputed tensor is another tensor, so it shares no reshape
with the one of the forward pass.

>>> import tensorflow as tf
>>> reshape(tf.zeros([2, 3]), [6]).shape
TensorShape([6])
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from meshtf.ops.common.trace_cache import constant, once_per_trace


def _cached(x: Any, key: Hashable, make: Callable[[], Any]) -> Any:
    """Returns make(), which depends on x and `key` alone; in a trace it is called once."""
    if tf.executing_eagerly():
        return make()
    return once_per_trace((x.ref(), key), make)


def reshape(x: Any, sizes: Sequence[int]) -> Any:
    """Returns x with other sizes.

    No op is added if x, or the tensor that x was reshaped from, has these sizes.
    """
    if x.shape == sizes:
        return x
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
    """Returns x with its axes in another order; x itself if that is its order."""
    if list(order) == sorted(order):
        return x
    return _cached(
        x,
        ("transpose", *order),
        lambda: tf.raw_ops.Transpose(x=x, perm=constant(list(order))),
    )


def squeeze(x: Any, axis: int) -> Any:
    """Returns x without an axis of size 1."""
    before = x.shape[:axis]
    after = x.shape[axis + 1 :]
    return reshape(x, [*before, *after])


def expand(x: Any, axis: int) -> Any:
    """Returns x with a new axis of size 1."""
    before = x.shape[:axis]
    after = x.shape[axis:]
    return reshape(x, [*before, 1, *after])
