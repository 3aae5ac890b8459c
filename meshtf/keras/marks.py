"""Marks in the trace of a step: which of its tensors are gradients, and of what.

While a step is traced, `tf.GradientTape.gradient` traces no backward operations: it returns
tensors that stand for gradients. meshtf computes them: the planner sees forward pass, backward
pass and update as in any step. A step may take gradients several times, of several losses, by
variables or by tensors.

As in TensorFlow, a source that the target does not depend on has no gradient, and a variable of
which only rows are read (an embedding) has one of these rows: `tf.IndexedSlices`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from meshtf.keras.dependencies import Dependencies
from meshtf.tensorflow_import.graph.program import Mark

# A tensor, tf.IndexedSlices or None.
_Gradient = Any


class Marks:
    """What was marked in a graph.

    Attributes:
        marks: Each loss with its gradients, in their order.
    """

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self._graph: tf.Graph | None = None

    def start(self, graph: tf.Graph) -> None:
        """Starts with a graph. (A function that makes variables is traced twice.)"""
        self.marks = []
        self._graph = graph

    def can_mark(self, targets: Sequence[Any], sources: Sequence[Any]) -> bool:
        """Whether gradients are those of tensors of the step's own graph."""
        if self._graph is None or tf.compat.v1.get_default_graph() is not self._graph:
            return False
        tensors = [x for x in sources if not _is_variable(x)]
        return all(
            isinstance(x, tf.Tensor) and getattr(x, "graph", None) is self._graph
            for x in [*targets, *tensors]
        )

    def gradients(
        self, targets: Sequence[tf.Tensor], sources: Sequence[Any], weights: Any
    ) -> list[_Gradient]:
        """Returns a mark for each source; None for those that the targets do not depend on."""
        loss = _sum_of(targets, weights)
        dependencies = Dependencies(loss, self.marks)
        mark = Mark(loss)
        results = []
        for source in sources:
            if not _is_variable(source):
                is_needed = dependencies.of_tensor(source)
                results.append(mark.add(source) if is_needed else None)
                continue
            uses = dependencies.uses_of(source)
            if uses.rows and not uses.other_uses:
                results.append(_of_rows(mark, uses.rows, source))
            elif uses.rows or uses.other_uses:
                results.append(mark.add(source))
            else:
                results.append(None)
        if mark.gradients:
            self.marks.append(mark)
        return results


@contextlib.contextmanager
def gradients_marked() -> Iterator[Marks]:
    """Marks gradients in the trace of a step, which begins with `Marks.start`."""
    marks = Marks()
    original = tf.GradientTape.gradient

    def gradient(
        tape: tf.GradientTape,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        targets, flat = tf.nest.flatten(target), tf.nest.flatten(sources)
        if not marks.can_mark(targets, flat):
            return original(
                tape, target, sources, output_gradients, unconnected_gradients
            )
        results = marks.gradients(targets, flat, output_gradients)
        if tf.UnconnectedGradients(unconnected_gradients).value == "zero":
            results = [
                tf.zeros(x.shape, x.dtype) if y is None else y
                for x, y in zip(flat, results)
            ]
        return tf.nest.pack_sequence_as(sources, results)

    tf.GradientTape.gradient = gradient
    try:
        yield marks
    finally:
        tf.GradientTape.gradient = original


def _is_variable(x: Any) -> bool:
    return isinstance(
        getattr(x, "value", None) if hasattr(x, "path") else x, tf.Variable
    )


def _sum_of(targets: Sequence[tf.Tensor], weights: Any) -> tf.Tensor:
    """Returns the scalar whose gradient is that of the targets."""
    if weights is not None:
        targets = [
            x if w is None else x * tf.stop_gradient(tf.convert_to_tensor(w, x.dtype))
            for x, w in zip(targets, tf.nest.flatten(weights))
        ]
    sums = [tf.reduce_sum(x) if x.shape.rank != 0 else x for x in targets]
    return tf.identity(tf.add_n(sums) if len(sums) > 1 else sums[0])


def _of_rows(
    mark: Mark, rows: Sequence[tuple[tf.Tensor, tf.Tensor]], variable: Any
) -> tf.IndexedSlices:
    """Returns the gradient of rows of a variable: one entry for each time that a row was read.

    Args:
        mark: Where the gradients of what was read are added.
        rows: What was read, and its ids.
        variable: The variable.
    """
    shape = tuple(variable.shape)
    dtype = tf.as_dtype(variable.dtype)
    values, indices = [], []
    for x, ids in rows:
        gradient = mark.add(x)
        values.append(tf.cast(tf.reshape(gradient, [-1, *shape[1:]]), dtype))
        indices.append(tf.reshape(ids, [-1]))
    return tf.IndexedSlices(
        tf.concat(values, 0) if len(values) > 1 else values[0],
        tf.concat(indices, 0) if len(indices) > 1 else indices[0],
        tf.constant(shape, tf.int64),
    )
