"""Loops whose iterations the axes of a mesh divide, but not equally.

    7 entries on 4 devices: 2, 2, 2 and 1        # all run two iterations

A device that has fewer entries takes its last one again. What an iteration stacks then lies in the
padding of its shard; terms of sums count once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf

from meshtf.mesh import Mesh
from meshtf.partition import LoopStep, Value
from meshtf.runtime.lowering.padding.element_ranges import num_elements_at


class Shards(Protocol):
    """The members of an executor that loops use; see `StepExecutor`."""

    mesh: Mesh

    def shard_coordinates(self, value: Value) -> list[Any]:
        """Returns the coordinates on the mesh of each distinct shard of a value, by axis."""


def entries_of_shards(
    executor: Shards, step: LoopStep, value: Value, shards: Sequence[Any], index: Any
) -> list[Any]:
    """Returns the distinct shards of an entry of a scanned input.

    Args:
      executor: says where shards are.
      step: the loop.
      value: the argument of its body that is the entry.
      shards: the distinct shards of the scanned input: tensors with the scanned dimension first,
        or tf.TensorArrays.
      index: the index of the iteration, a scalar.
    """
    indices = [index] * len(shards)
    if step.is_uneven:
        counts = _numbers_of_entries(executor, step, value)
        indices = [tf.minimum(index, count - 1) for count in counts]
    return [
        x.read(i) if isinstance(x, tf.TensorArray) else x[i]
        for x, i in zip(shards, indices)
    ]


def counted_once(
    executor: Shards, step: LoopStep, value: Value, shards: list[Any], index: Any
) -> list[Any]:
    """Returns the distinct shards [...] of a term of a sum, 0 where the entry was counted before.

    Args:
      executor: says where shards are.
      step: the loop.
      value: the result of its body that is the term.
      shards: the distinct shards of the term.
      index: the index of the iteration, a scalar.
    """
    if not step.is_uneven:
        return shards
    return [
        tf.where(index < count, x, tf.zeros([], x.dtype))
        for x, count in zip(shards, _numbers_of_entries(executor, step, value))
    ]


def _numbers_of_entries(executor: Shards, step: LoopStep, value: Value) -> list[Any]:
    """Returns the number of entries of the device of each distinct shard of a value, scalar int32
    tensors.
    """
    assert step.op.dim is not None
    return [
        num_elements_at(coordinates, step.op.dim.size, step.axes, executor.mesh)
        for coordinates in executor.shard_coordinates(value)
    ]
