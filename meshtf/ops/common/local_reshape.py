"""Reshapes and transposes of one device's tensor, each added to a trace once.

Several matmuls of one tensor may need it with the same order of axes, and the time to trace
a program grows with the number of ops. A recomputed tensor is a new tensor: it shares no
reshape with the tensor of the forward pass.

>>> import tensorflow as tf
>>> reshape(tf.zeros([2, 3]), [6]).shape
TensorShape([6])
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from meshtf.ops.common.trace_cache import constant, once_per_trace

# Kernels of TensorFlow for the CPU refuse tensors of more axes, but for plain arithmetic.
_HIGHEST_RANK = 8


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


def elementwise(kernel: Callable[..., Any], *xs: Any) -> Any:
    """Returns kernel(*xs), a function element by element, for tensors of any rank: those of
    many axes are reshaped to one axis.

    Args:
      kernel: a function of tensors that broadcast; it returns a tensor or several.
      *xs: the tensors.
    """
    if max(x.shape.rank for x in xs) <= _HIGHEST_RANK:
        return kernel(*xs)
    shape = functools.reduce(tf.broadcast_static_shape, [x.shape for x in xs])
    flat = []
    for x in xs:
        full = x if x.shape == shape else tf.broadcast_to(x, shape)
        flat.append(tf.reshape(full, [-1]))
    return tf.nest.map_structure(lambda y: tf.reshape(y, shape), kernel(*flat))
