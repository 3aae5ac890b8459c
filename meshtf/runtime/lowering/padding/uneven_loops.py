"""Loops whose iterations the axes of a mesh divide, but not equally.

    7 entries on 4 devices: 2, 2, 2 and 1        # all run two iterations

A device that has fewer entries takes its last one again, and one that has none the first of all.
What an iteration stacks then lies in the padding of its shard; terms of sums count once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf

from meshtf.mesh import Mesh
from meshtf.partition import FirstEntryStep, LoopStep, Value
from meshtf.runtime.lowering.padding.element_ranges import num_elements_at


class Shards(Protocol):
    """The members of an executor that loops use; see `StepExecutor`."""

    mesh: Mesh
    values: dict[Value, Any]

    def shard_devices(self, value: Value) -> list[str | None]:
        """Returns the device of each distinct shard of a value."""

    def distinct_shards(self, value: Value, shards: Any) -> list[Any]:
        """Returns the distinct shards of a value, given its entry of `values`."""

    def to_positions(self, value: Value, shards: list[Any]) -> Any:
        """Returns the entry of `values` for a value with these distinct shards."""

    def shard_coordinates(self, value: Value) -> list[Any]:
        """Returns the coordinates on the mesh of each distinct shard of a value, by axis."""


def take_first_entry(executor: Shards, step: FirstEntryStep) -> list[Any]:
    """Executes a `FirstEntryStep`: returns the entry of `executor.values` for its output."""
    spec = step.src.spec
    assert spec is not None
    axis = spec.shape.index(step.dim)
    coordinates = executor.shard_coordinates(step.src)
    shards = executor.distinct_shards(step.src, executor.values[step.src])
    entries = []
    for x, device, at in zip(shards, executor.shard_devices(step.src), coordinates):
        with tf.device(device):
            is_first = tf.equal(sum(at[name] for name in step.axes), 0)
            entry = tf.gather(x, 0, axis=axis)
            entries.append(tf.where(is_first, entry, tf.zeros([], x.dtype)))
    return [executor.to_positions(step.out, entries)]


def entries_of_shards(
    executor: Shards, step: LoopStep, k: int, shards: Sequence[Any], index: Any
) -> list[Any]:
    """Returns the distinct shards of an entry of a scanned input.

    Args:
      executor: says where shards are.
      step: the loop.
      k: the index of the scanned input.
      shards: the distinct shards of the scanned input: tensors with the scanned dimension first,
        or tf.TensorArrays.
      index: the index of the iteration, a scalar.
    """
    value = step.entries[k]
    indices = [index] * len(shards)
    counts: list[Any] = []
    if step.is_uneven:
        counts = _numbers_of_entries(executor, step, value)
        indices = [tf.maximum(tf.minimum(index, count - 1), 0) for count in counts]
    entries = [
        x.read(i) if isinstance(x, tf.TensorArray) else x[i]
        for x, i in zip(shards, indices)
    ]
    spare = step.spares[k] if step.spares else None
    if spare is None:
        return entries
    spares = executor.distinct_shards(value, executor.values[spare])
    return [
        tf.where(count > 0, entry, first)
        for count, entry, first in zip(counts, entries, spares)
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
