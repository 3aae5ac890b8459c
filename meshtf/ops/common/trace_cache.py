"""A cache of TensorFlow ops within one trace: constants, and reshapes of one tensor.

    with trace_cache():                    # while a tf.function is traced
        constant([2, 3])                   # one op, however often it is called

A trace is the run of a Python function in which tf.function records the ops of a graph. A
third of the ops of a model are constants, such as the sizes for reshapes, and a trace takes
a fifth of a millisecond for each op.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

# The attribute `cache` is a dict with the results of this thread's trace: (id of the graph,
# key) -> result. It is None, or absent, outside of a trace.
_LOCAL = threading.local()


@contextlib.contextmanager
def trace_cache() -> Iterator[None]:
    """Gives `once_per_trace` a new cache for a `with` block.

    In eager mode nothing is cached.
    """
    outer_cache = _cache()
    _LOCAL.cache = {}
    try:
        yield
    finally:
        _LOCAL.cache = outer_cache


def once_per_trace(key: Hashable, make: Callable[[], Any]) -> Any:
    """Returns make(), or the cached result of an earlier call with an equal key in the same
    graph.

    Args:
      key: the key of the result, in which a tensor is represented by its `ref()`, since
        tensors have no hash.
      make: a function that is called if there is no cached result.
    """
    cache = _cache()
    if cache is None or tf.executing_eagerly():
        return make()
    # The id is not reused, since the cached tensors keep their graph alive.
    graph_id = id(tf.compat.v1.get_default_graph())
    if (graph_id, key) not in cache:
        cache[graph_id, key] = make()
    return cache[graph_id, key]


def constant(value: Any, dtype: tf.DType | str = "int32") -> Any:
    """Returns a number or a (nested) list of numbers as a constant tensor. Infinity as an
    integer is the largest one.
    """
    dtype = tf.as_dtype(dtype)
    if isinstance(value, float) and dtype.is_integer and math.isinf(value):
        value = dtype.max if value > 0 else dtype.min
    elif isinstance(value, float) and dtype.is_bool:
        value = value > 0
    # The value's text, since 0.0 and -0.0 are equal, but different constants.
    key = ("constant", dtype, repr(value))

    def make() -> Any:
        # Without control dependencies, so that any later op may use the constant.
        with tf.control_dependencies(None):
            # An array: TensorFlow keeps numbers in a cache, which takes -0.0 for 0.0.
            return tf.constant(np.asarray(value, dtype.as_numpy_dtype))

    return once_per_trace(key, make)


def _cache() -> dict[Any, Any] | None:
    """Returns the cache of this thread's trace, or None outside of a trace."""
    return getattr(_LOCAL, "cache", None)
