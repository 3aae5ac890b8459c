"""Loops whose iterations the axes of a mesh divide, but not equally.

    7 entries on 4 devices: 2, 2, 2 and 1        # all run two iterations

A device that has fewer entries takes its last one again. What an iteration stacks then lies in the
padding of its shard; terms of sums count once.
"""

from __future__ import annotations

from typing import Any, Protocol

import tensorflow as tf

from meshtf.mesh import Mesh
from meshtf.partition import LoopStep, Value
from meshtf.runtime.lowering.local_context import num_elements_at


class Shards(Protocol):
    """The members of an executor that loops use; see `StepExecutor`."""

    mesh: Mesh

    def shard_devices(self, value: Value) -> list[str | None]:
        """Returns the device of each distinct shard of a value."""

    def shard_coordinates(self, value: Value) -> list[Any]:
        """Returns the coordinates on the mesh of each distinct shard of a value, by axis."""


def indices_of_entries(
    executor: Shards, step: LoopStep, value: Value, index: Any
) -> list[Any]:
    """Returns the index, on its device, of the entry that each distinct shard of a value is.

    Args:
      executor: says where shards are.
      step: the loop.
      value: an argument of its body, an entry of a scanned input.
      index: the index of the iteration, a scalar.
    """
    if not step.is_uneven:
        return [index] * len(executor.shard_devices(value))
    return [
        tf.minimum(index, x - 1) for x in _numbers_of_entries(executor, step, value)
    ]


def counted_once(
    executor: Shards, step: LoopStep, value: Value, shards: list[Any], index: Any
) -> list[Any]:
    """Returns the distinct shards [...] of a term of a sum, 0 where the entry was counted before;
    the arguments are those of `indices_of_entries`.
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
