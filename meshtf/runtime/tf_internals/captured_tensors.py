"""Tensors of eager mode that a function reads while TensorFlow traces it.

    with captured_as_constants(refuse):
      y = fn(x)                          # table = tf.constant(...) of fn: a constant of the graph

TensorFlow would make a captured tensor an input of the traced function. Functions that are
called by name have no such inputs. `FuncGraph.capture` is private.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

_MAKES_CONSTANTS = "makes_constants"  # an attribute of the function that does


@contextlib.contextmanager
def captured_as_constants(refuse: Callable[[], Exception]) -> Iterator[None]:
    """Makes eager tensors that ops in a `with` block read constants of the current graph.

    Args:
      refuse: returns the error to raise for a captured resource, such as a tf.Variable,
        whose value is no constant.
    """
    graph = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly() or not hasattr(graph, "capture"):
        yield
        return
    capture = graph.capture
    # A constant for each tensor, by Python's id; the tensor stays alive with it.
    constants: dict[int, tuple[Any, Any]] = {}

    def capture_as_constant(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(tensor, tf.__internal__.EagerTensor):
            return capture(tensor, *args, **kwargs)
        if tensor.dtype in (tf.resource, tf.variant):
            raise refuse()
        if id(tensor) not in constants:
            # Without control dependencies, so that any op may use it.
            with graph.as_default(), tf.control_dependencies(None):
                constant = tf.constant(tensor.numpy(), tensor.dtype)
            constants[id(tensor)] = tensor, constant
        return constants[id(tensor)][1]

    setattr(capture_as_constant, _MAKES_CONSTANTS, True)
    graph.capture = capture_as_constant
    try:
        yield
    finally:
        del graph.capture


@contextlib.contextmanager
def captured_as_inputs() -> Iterator[None]:
    """Within `captured_as_constants`, makes tensors that ops in a `with` block read inputs of
    the current graph again, as a variable of the graph itself needs it.
    """
    graph = tf.compat.v1.get_default_graph()
    capture = getattr(graph, "capture", None)
    if not hasattr(capture, _MAKES_CONSTANTS):
        yield
        return
    del graph.capture
    try:
        yield
    finally:
        graph.capture = capture
