"""What variables hold at a point of the trace: reads return it, assignments replace it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.tensorflow_import.graph.program import Value


class State:
    """Present values of variables, of a function or of the body of a loop or branch."""

    def __init__(self) -> None:
        self.on_entry: dict[int, Value] = {}
        self._present: dict[int, Value] = {}

    def entry_of(self, variable: Any) -> Value:
        """Returns a variable's value on entry, whether or not something reads it."""
        key = id(variable)
        if key not in self.on_entry:
            value = Value(
                tuple(variable.shape),
                tf.as_dtype(variable.dtype),
                path=path_of(variable),
                kind="variable",
                variable=variable,
            )
            self.on_entry[key] = self._present[key] = value
        return self.on_entry[key]

    def read(self, variable: Any) -> Value:
        """Returns its present value."""
        self.entry_of(variable)
        return self._present[id(variable)]

    def assign(self, variable: Any, value: Value) -> None:
        """Replaces its present value."""
        self.entry_of(variable)
        self._present[id(variable)] = value

    def updates(self) -> dict[int, Value]:
        """Returns the present values that differ from those on entry."""
        return {
            key: value
            for key, value in self._present.items()
            if value is not self.on_entry[key]
        }


def path_of(variable: Any) -> str:
    """Returns a Keras variable's path, or another variable's name."""
    return getattr(variable, "path", None) or variable.name.split(":")[0]
