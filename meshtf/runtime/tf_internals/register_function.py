"""Registers functions with TensorFlow, given their protocol buffers.

function = RegisteredFunction(definition)      # callable by name while it exists
"""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from meshtf.runtime.tf_internals.switches import private


class RegisteredFunction:
    """A function that ops can call by its name, as long as this object exists.

    Args:
      definition: the FunctionDef.
    """

    def __init__(self, definition: Any) -> None:
        self.definition = definition
        self.name = str(definition.signature.name)
        self._is_ours = private("register_function")
        if self._is_ours:
            context.context().add_function_def(definition)
        else:
            self._imported = _import(definition)

    def __del__(self) -> None:
        # Not by weakref.finalize, which Python would also call at exit.
        if self._is_ours and not sys.is_finalizing():
            context.context().remove_function(self.name)


def _import(definition: Any) -> Any:
    """Registers a definition by public functions: returns an empty function whose graph
    has the definition in its library.
    """
    graph = tf.compat.v1.GraphDef()
    graph.versions.producer = tf.version.GRAPH_DEF_VERSION
    graph.library.function.append(definition)
    return tf.compat.v1.wrap_function(
        lambda: tf.graph_util.import_graph_def(graph, name=""), []
    )
