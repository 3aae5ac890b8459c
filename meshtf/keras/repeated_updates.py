"""Updates of variables of one shape are traced once.

Most operations of a training step are the optimizer's, about 20 for each variable, and the same
for all variables of a shape. For optimizers that treat variables alike, the first of each
shape is traced; for the others the trace only notes the gradient, and the graph's reader
repeats the first one's operations with other variables.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from meshtf.keras.layer_settings.slots import slots_by_variable
from meshtf.tensorflow_import.graph.program import Repeat

# Their `update_step` depends on the variable's shape only. (Others, such as Muon and Lamb's
# relatives of users, may look at its name.)
_UNIFORM = (
    keras.optimizers.SGD,
    keras.optimizers.RMSprop,
    keras.optimizers.Adam,
    keras.optimizers.AdamW,
    keras.optimizers.Adagrad,
    keras.optimizers.Adadelta,
    keras.optimizers.Adamax,
    keras.optimizers.Nadam,
    keras.optimizers.Lion,
)


class RepeatedUpdates:
    """Replaces an optimizer's `update_step` while a step is traced.

    Attributes:
        repeats: By the tensor that stands for a repeated update, what it repeats.
    """

    def __init__(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Prepares the trace of an optimizer's updates.

        Args:
            optimizer: A Keras optimizer that is built; None if nothing is to be repeated.
            variables: Those that it updates.
        """
        self.repeats: dict[Any, Repeat] = {}
        self._graph: Any = None
        self._first: dict[Any, tuple[Repeat, dict[str, Any]]] = {}
        if optimizer is not None:
            self._update = optimizer.update_step
            self._slots = slots_by_variable(optimizer, variables)

    def start(self, graph: tf.Graph) -> None:
        """Starts with a graph; updates in graphs within it are all traced."""
        self._graph = graph
        self.repeats.clear()
        self._first.clear()

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Traces an update, or notes that it repeats another one."""
        graph: Any = tf.compat.v1.get_default_graph()
        slots = self._slots.get(id(variable.handle))
        if (
            graph is not self._graph
            or slots is None
            or not isinstance(gradient, tf.Tensor)
        ):
            self._update(gradient, variable, learning_rate)
            return
        key = (tuple(variable.shape), variable.dtype, gradient.dtype, tuple(slots))
        marked = tf.identity(gradient)
        if key in self._first:
            first, first_slots = self._first[key]
            variables = {id(first_slots[name]): slots[name] for name in slots}
            self.repeats[marked.ref()] = dataclasses.replace(first, variables=variables)
            return
        begin = len(graph.get_operations())
        self._update(marked, variable, learning_rate)
        end = len(graph.get_operations())
        self._first[key] = (Repeat(begin, end, marked.ref(), {}), slots)


@contextlib.contextmanager
def repeated(model: Any, method: str) -> Iterator[RepeatedUpdates]:
    """Repeats updates of a model's optimizer in the trace of a training step."""
    optimizer: Any = getattr(model, "optimizer", None)
    if method != "train_step" or type(optimizer) not in _UNIFORM or not optimizer.built:
        yield RepeatedUpdates(None, ())
        return
    updates = RepeatedUpdates(optimizer, model.trainable_variables)
    optimizer.update_step = updates.update_step
    try:
        yield updates
    finally:
        del optimizer.update_step
