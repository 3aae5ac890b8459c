"""Functions that equal ops of a program share, so that TensorFlow traces each but once.

    shared = SharedFunctions()
    draw = shared.outline(key, body, specs)          # traced when the key first occurs
    outputs = draw([seed, coordinate])

XLA inlines them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from meshtf.runtime.lowering.local_compute import TensorList


class SharedFunctions:
    """The shared functions of one program; see `local_compute.Outline`."""

    def __init__(self) -> None:
        self._by_key: dict[Any, Any] = {}

    def outline(
        self,
        key: Any,
        body: Callable[..., TensorList],
        specs: Sequence[tf.TensorSpec],
    ) -> Callable[[Sequence[Any]], TensorList]:
        """Returns the function with this key.

        Args:
          key: a key that is equal for equal functions.
          body: the function of tensors to trace.
          specs: the specs of the arguments.
        """
        if key not in self._by_key:
            function = tf.function(body, input_signature=specs, autograph=False)
            self._by_key[key] = function.get_concrete_function()
        function = self._by_key[key]
        return lambda arguments: function(*arguments)

    def operations(self) -> Iterator[tf.Operation]:
        """Returns the operations of all functions."""
        for function in self._by_key.values():
            yield from function.graph.get_operations()
