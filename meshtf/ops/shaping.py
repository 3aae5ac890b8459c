"""Reshapes and transposes of a tensor, each made once in a graph.

Several products of one tensor want it in the same order, and ops are what tracing costs. What is
computed again is not found here: its inputs are other tensors.

>>> import tensorflow as tf
>>> reshape(tf.zeros([2, 3]), [6]).shape
TensorShape([6])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def _once(key: Any, make: Callable[[], Any]) -> Any:
  if tf.executing_eagerly():
    return make()
  # The graph keeps them: whoever else did would keep the graph alive, to which they belong.
  graph = tf.compat.v1.get_default_graph()
  kept = graph.get_collection_ref(f"{__name__}/{id(graph)}")      # inner graphs copy collections
  if not kept:
    kept.append({})
  (made,) = kept
  if key not in made:
    made[key] = make()
  return made[key]


def reshape(x: Any, sizes: Sequence[int]) -> Any:
  """Returns x with other sizes; x itself if it has them."""
  if x.shape == sizes:
    return x
  return _once((x.ref(), "reshape", *sizes),
               lambda: tf.raw_ops.Reshape(tensor=x, shape=list(sizes)))


def transpose(x: Any, order: Sequence[int]) -> Any:
  """Returns x with its axes in another order; x itself if that is the same."""
  if list(order) == sorted(order):
    return x
  return _once((x.ref(), "transpose", *order),
               lambda: tf.raw_ops.Transpose(x=x, perm=list(order)))
