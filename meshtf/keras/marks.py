"""Marks in the trace of a step: which of its tensors are gradients, and of what.

While a step is traced, `tf.GradientTape.gradient` traces no backward operations: it returns
tensors that stand for gradients. meshtf computes them: the planner sees forward pass, backward
pass and update as in any step. A step may take gradients several times, of several losses, by
variables or by tensors. What a tape records, and what it watches, is as in TensorFlow
(`tapes/recording.py`).

As in TensorFlow, a source that the target does not depend on has no gradient, and a variable of
which only rows are read (an embedding) has one of these rows: `tf.IndexedSlices`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import ArgumentError
from meshtf.keras.dependencies import Dependencies
from meshtf.keras.tapes.patches import StepTapes
from meshtf.keras.tapes.recording import Recording, variable_of
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
        self.tapes = StepTapes(self.gradients)

    def start(self, graph: tf.Graph) -> None:
        """Starts with a graph. (A function that makes variables is traced twice.)"""
        self.marks = []
        self.tapes.start(graph)

    def gradients(
        self,
        recording: Recording,
        targets: Sequence[Any],
        sources: Sequence[Any],
        weights: Any,
    ) -> list[_Gradient]:
        """Returns a mark for each source; None for those that the targets do not depend on.

        Args:
            recording: What the tape has recorded.
            targets: Tensors; the gradient is that of their sum.
            sources: Tensors or variables.
            weights: A tensor for each target, which multiplies it; None: all are 1.

        Raises:
            ArgumentError: A target or a source is no dense tensor or variable.
        """
        _check_dense([*targets, *sources])
        dependencies = Dependencies(targets, self.marks, recording)
        uses = {k: dependencies.uses_of(x) for k, x in enumerate(sources)}
        if not any(uses.values()):
            return [None] * len(sources)
        mark = Mark(_sum_of(targets, weights))
        mark.constants = dependencies.constants_above(sources)
        results: list[_Gradient] = []
        for k, source in enumerate(sources):
            if not uses[k]:
                results.append(None)
            elif uses[k].rows and not uses[k].other_uses:
                results.append(_of_rows(mark, uses[k].rows, source))
            else:
                results.append(mark.add(source))
        self.marks.append(mark)
        return results


@contextlib.contextmanager
def gradients_marked() -> Iterator[Marks]:
    """Marks gradients in the trace of a step, which begins with `Marks.start`."""
    marks = Marks()
    with marks.tapes.replaced():
        yield marks


def _check_dense(values: Sequence[Any]) -> None:
    """Raises ArgumentError if a target or a source is no dense tensor or variable."""
    for x in values:
        if not isinstance(x, tf.Tensor) and variable_of(x) is None:
            raise ArgumentError(
                f"tf.GradientTape.gradient of or by a {type(x).__name__}: on a mesh targets "
                "and sources are dense tensors and variables"
            )


def _sum_of(targets: Sequence[Any], weights: Any) -> tf.Tensor:
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
    if len({x.dtype for x in indices}) > 1:  # as TensorFlow adds up such gradients
        indices = [tf.cast(x, tf.int64) for x in indices]
    return tf.IndexedSlices(
        tf.concat(values, 0) if len(values) > 1 else values[0],
        tf.concat(indices, 0) if len(indices) > 1 else indices[0],
        tf.constant(shape, tf.int64),
    )
