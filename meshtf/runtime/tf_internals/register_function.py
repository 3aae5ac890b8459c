"""Functions that TensorFlow runs, from protocol buffers.

function = Registered(definition)      # callable by its name while this object is kept
"""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from meshtf.runtime.tf_internals.switches import private


class Registered:
    """A function that ops call by its name, as long as this is kept.

    Args:
      definition: the FunctionDef.
    """

    def __init__(self, definition: Any) -> None:
        self.definition = definition
        self.name = str(definition.signature.name)
        if private("register_function"):
            context.context().add_function_def(definition)
            weakref.finalize(self, _remove, self.name).atexit = False
        else:
            self._imported = _import(definition)


def _remove(name: str) -> None:
    context.context().remove_function(name)


def _import(definition: Any) -> Any:
    """Returns a function of nothing, of whose graph the library has the definition."""
    graph = tf.compat.v1.GraphDef()
    graph.versions.producer = tf.version.GRAPH_DEF_VERSION
    graph.library.function.append(definition)
    return tf.compat.v1.wrap_function(
        lambda: tf.graph_util.import_graph_def(graph, name=""), []
    )
