"""Reshapes and transposes of a tensor, each made once in a graph.

Several products of one tensor want it in the same order, and ops are what tracing
costs. What is computed again is not found here: its inputs are other tensors.

>>> import tensorflow as tf
>>> reshape(tf.zeros([2, 3]), [6]).shape
TensorShape([6])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def _made(x: Any, key: Any, make: Callable[[], Any]) -> Any:
    """Returns what is made of x, in a graph once."""
    if tf.executing_eagerly():
        return make()
    known = _known()
    key = (x.ref(), *key)
    if key not in known:
        known[key] = make()
        known[known[key].ref()] = x
    return known[key]


def _known() -> dict[Any, Any]:
    """Returns what was made in this graph, and of what.

    The graph keeps them: whoever else did would keep the graph alive, to which they
    belong.
    """
    graph = tf.compat.v1.get_default_graph()
    kept = graph.get_collection_ref(
        f"{__name__}/{id(graph)}"
    )  # inner graphs copy collections
    if not kept:
        kept.append({})
    return kept[0]


def reshape(x: Any, sizes: Sequence[int]) -> Any:
    """Returns x with other sizes; x itself, or what it was reshaped from, if that has
    them.
    """
    if x.shape == sizes:
        return x
    if not tf.executing_eagerly() and x.op.type == "Reshape" and x.ref() in _known():
        return reshape(_known()[x.ref()], sizes)
    return _made(
        x, ("reshape", *sizes), lambda: tf.raw_ops.Reshape(tensor=x, shape=list(sizes))
    )


def transpose(x: Any, order: Sequence[int]) -> Any:
    """Returns x with its axes in another order; x itself if that is the same."""
    if list(order) == sorted(order):
        return x
    return _made(
        x, ("transpose", *order), lambda: tf.raw_ops.Transpose(x=x, perm=list(order))
    )


def squeeze(x: Any, axis: int) -> Any:
    """Returns x without an axis of size 1."""
    return reshape(x, [*x.shape[:axis], *x.shape[axis + 1 :]])


def expand(x: Any, axis: int) -> Any:
    """Returns x with a new axis of size 1."""
    return reshape(x, [*x.shape[:axis], 1, *x.shape[axis:]])
