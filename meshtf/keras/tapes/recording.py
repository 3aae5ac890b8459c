"""What a `tf.GradientTape` records of a step's graph.

While a step is traced, its tapes are not TensorFlow's: a real tape makes TensorFlow rewrite loops
for gradients that meshtf computes. A tape is the operations that were created while it was
recording, and what it watches. As in TensorFlow, all else is a constant for its gradients.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from meshtf.errors import ArgumentError


@dataclasses.dataclass(eq=False)
class Recording:
    """What a tape records.

    Attributes:
        graph: The step's graph.
        watches_variables: Whether it watches each trainable variable that is read.
        spans: When it was recording: counts of the graph's operations at the start and at
            the end; None, while it is recording.
        watched: References of the tensors that it watches.
        variables: Identities of the handles of variables that it watches since it was told to.
    """

    graph: tf.Graph
    watches_variables: bool = True
    spans: list[tuple[int, int | None]] = dataclasses.field(default_factory=list)
    watched: set[Any] = dataclasses.field(default_factory=set)
    variables: set[int] = dataclasses.field(default_factory=set)

    @property
    def is_on(self) -> bool:
        """Whether it is recording."""
        return bool(self.spans) and self.spans[-1][1] is None

    def start(self) -> None:
        """Records what is created from now on.

        Raises:
            ArgumentError: It is recording.
        """
        if self.is_on:
            raise ArgumentError("a tf.GradientTape was entered that is recording")
        self.spans.append((self._count(), None))

    def stop(self) -> None:
        """Records no more."""
        if self.is_on:
            self.spans[-1] = (self.spans[-1][0], self._count())

    def forget(self) -> None:
        """Forgets what was recorded and is watched."""
        was_on = self.is_on
        self.spans = []
        self.watched = set()
        self.variables = set()
        if was_on:
            self.start()

    def watch(self, x: Any) -> None:
        """Watches a tensor, or a variable of TensorFlow or Keras."""
        variable = variable_of(x)
        if variable is not None:
            self.variables.add(id(variable.handle))
        else:
            self.watched.add(x.ref())

    def watches(self, variable: tf.Variable) -> bool:
        """Whether a variable has a gradient."""
        if id(variable.handle) in self.variables:
            return True
        return self.watches_variables and variable.trainable

    def operations(self) -> set[str]:
        """Returns the names of the operations that were recorded."""
        operations = self.graph.get_operations()
        return {
            operation.name
            for begin, end in self.spans
            for operation in operations[begin:end]
        }

    def _count(self) -> int:
        return len(self.graph.get_operations())


def variable_of(x: Any) -> tf.Variable | None:
    """Returns the variable of TensorFlow that a variable of it or of Keras is; None for others."""
    variable = getattr(x, "value", None) if hasattr(x, "path") else x
    return variable if isinstance(variable, tf.Variable) else None
