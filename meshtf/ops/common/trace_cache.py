"""What a trace makes once: constants, and reshapes of the very same tensor.

    with trace_cache():                    # while a graph is traced
        constant([2, 3])                   # one op, however often it is asked for

A third of the ops of a model are constants, such as the new sizes of reshapes, and an
op costs a trace a fifth of a millisecond.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import tensorflow as tf

_LOCAL = threading.local()  # .made: of this thread's trace, by graph and key


@contextlib.contextmanager
def trace_cache() -> Iterator[None]:
    """Lets `once_per_trace` remember what it makes, until the trace ends; in eager mode it
    remembers nothing.
    """
    outer = _made()
    _LOCAL.made = {}
    try:
        yield
    finally:
        _LOCAL.made = outer


def once_per_trace(key: Hashable, make: Callable[[], Any]) -> Any:
    """Returns what is made, or was made before in the same graph under an equal key.

    Args:
      key: equal for what may be one; tensors in it as their `ref()`.
      make: makes it.
    """
    made = _made()
    if made is None or tf.executing_eagerly():
        return make()
    graph = id(tf.compat.v1.get_default_graph())  # alive, as its tensors are
    if (graph, key) not in made:
        made[graph, key] = make()
    return made[graph, key]


def constant(value: Any, dtype: tf.DType = tf.int32) -> Any:
    """Returns a number or a (nested) list of numbers as a tensor; on no device of its
    own.
    """
    key = dtype, repr(value)  # 0.0 and -0.0 are equal, and not the same

    def make() -> Any:
        with tf.control_dependencies(None):  # so that all may have it
            return tf.constant(value, dtype)

    return once_per_trace(("constant", key), make)


def _made() -> dict[Any, Any] | None:
    return getattr(_LOCAL, "made", None)
