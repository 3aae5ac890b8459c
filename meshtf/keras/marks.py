"""Marks in the trace of a training step: what its loss is, and where gradients are used.

Keras' step passes its loss through `optimizer.scale_loss`, and gradients to
`optimizer.apply_gradients`. While a step is traced, the first stops TensorFlow's gradient, so
no backward operations are traced, and the second gets tensors that stand for gradients.
meshtf computes them: the planner sees forward pass, backward pass and update as in any step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from meshtf.keras.repeated_updates import RepeatedUpdates, treats_variables_alike
from meshtf.tensorflow_import.graph.repeat import Repeat


class Marks:
    """What was marked.

    Attributes:
        loss: The loss; None if the step has passed none to the optimizer.
        gradients: Tensors that stand for gradients, each with its Keras variable.
        repeats: By reference of a tensor, the update that is repeated with it as gradient.
        unneeded: Variables of which the loss is known not to depend: they get no gradient.
    """

    def __init__(self, unneeded: set[int]) -> None:
        self.repeats: dict[Any, Repeat] = {}
        self.loss: tf.Tensor | None = None
        self.gradients: list[tuple[tf.Tensor, Any]] = []
        self.unneeded = unneeded

    def mark_loss(self, loss: Any) -> tf.Tensor:
        """Notes the loss, and returns it as a constant to TensorFlow's gradients."""
        self.loss = tf.identity(loss)
        return tf.stop_gradient(self.loss)

    def mark_gradients(self, pairs: Any) -> list[tuple[tf.Tensor | None, Any]]:
        """Returns a tensor for each variable's gradient (None where there is none)."""
        marked: list[tuple[tf.Tensor | None, Any]] = []
        for _, variable in pairs:
            mark = None
            if id(variable) not in self.unneeded:
                mark = tf.identity(tf.zeros(variable.shape, variable.dtype))
                self.gradients.append((mark, variable))
            marked.append((mark, variable))
        return marked


@contextlib.contextmanager
def marked(optimizer: Any, unneeded: set[int]) -> Iterator[Marks]:
    """Marks what an optimizer sees (None: of no optimizer) in the trace of a step.

    Args:
        optimizer: A Keras optimizer; its methods are replaced on the instance.
        unneeded: Identities of variables that get no gradient.
    """
    marks = Marks(unneeded)
    if optimizer is None:
        yield marks
        return
    scale, apply = optimizer.scale_loss, optimizer.apply_gradients
    alike = optimizer.built and treats_variables_alike(optimizer)

    def apply_gradients(pairs: Any, **kwargs: Any) -> Any:
        pairs = marks.mark_gradients(pairs)
        if alike and pairs:
            graph = tf.compat.v1.get_default_graph()
            updates = RepeatedUpdates(optimizer, [v for _, v in pairs], graph)
            marks.repeats = updates.repeats
            optimizer.update_step = updates.update_step
        return apply(pairs, **kwargs)

    optimizer.scale_loss = lambda loss: marks.mark_loss(scale(loss))
    optimizer.apply_gradients = apply_gradients
    try:
        yield marks
    finally:
        for name in ("scale_loss", "apply_gradients", "update_step"):
            optimizer.__dict__.pop(name, None)
