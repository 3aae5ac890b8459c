"""Registers functions with TensorFlow from their protocol buffers (FunctionDef).

function = RegisteredFunction(definition)    # ops can call function.name while it exists
"""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

from meshtf.runtime.tf_internals.private_module import PrivateModule
from meshtf.runtime.tf_internals.switches import private

context = PrivateModule("tensorflow.python.eager.context")


class RegisteredFunction:
    """A function that ops can call by its name, as long as this object exists.

    Args:
      definition: the FunctionDef of the function.
    """

    def __init__(self, definition: Any) -> None:
        self.definition = definition
        self.name = str(definition.signature.name)
        # `private`: whether private symbols of TensorFlow may register the function.
        self._must_unregister = private("register_function")
        if self._must_unregister:
            context.context().add_function_def(definition)
        else:
            # Keeps the function registered; not used otherwise.
            self._imported = _import(definition)

    def __del__(self) -> None:
        # weakref.finalize would also call this when Python exits, which must not happen.
        if self._must_unregister and not sys.is_finalizing():
            context.context().remove_function(self.name)


def _import(definition: Any) -> Any:
    """Registers a FunctionDef by public functions of TensorFlow: returns an empty function
    whose graph has the FunctionDef in its library.
    """
    graph = tf.compat.v1.GraphDef()
    graph.versions.producer = tf.version.GRAPH_DEF_VERSION
    graph.library.function.append(definition)
    return tf.compat.v1.wrap_function(
        lambda: tf.graph_util.import_graph_def(graph, name=""), []
    )
