"""What loops stack: whether it stays a list of elements, and entries that are written late.

ys = mtf.scan(layer_1, xs)      # a list of elements: only another loop reads it
zs = mtf.scan(layer_2, ys)      # stacked: a result of the program
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import tensorflow as tf

from meshtf.mesh import Mesh
from meshtf.partition import (
    LoopStep,
    Step,
    Value,
    WriteEntryStep,
    ZerosStep,
)
from meshtf.partition.cost import local_shape
from meshtf.runtime.lowering.padding.uneven_loops import Shards


def unstacked_values(steps: Collection[Step], results: Iterable[Value]) -> set[Value]:
    """Returns the stacked outputs of loops that are used only as scanned inputs of other
    loops, along their first dimension.

    A runtime can keep such a value as a list of its elements, and never stack them.

    Args:
      steps: the steps of a program.
      results: the results of the program.
    """
    stacked_outputs = {
        value for step in steps if step.loop is not None for value in step.loop.stacked
    }
    for step in steps:
        if step.loop is not None:
            stacked_outputs.difference_update(_tensor_inputs(step.loop))
        else:
            stacked_outputs.difference_update(step.dependencies)
    return stacked_outputs.difference(results)


def _tensor_inputs(step: LoopStep) -> Iterator[Value]:
    """Yields the inputs of a loop that it cannot take as lists of elements: all but the
    scanned inputs whose first dimension is the scanned one.
    """
    yield from step.initial_values
    yield from step.captured_values
    yield from step.waits_for
    for value in step.scanned_inputs:
        assert value.spec is not None and step.op.dim is not None
        if value.spec.shape.names[0] != step.op.dim.name:
            yield value


def make_zeros(executor: Shards, step: ZerosStep) -> list[Any]:
    """Executes a `ZerosStep`: returns the entry of `executor.values` for its output."""
    sizes, dtype = local_shape_and_dtype(step.out, executor.mesh)
    shards = []
    for device in executor.shard_devices(step.out):
        with tf.device(device):
            shards.append(tf.zeros(sizes, dtype))
    return [executor.to_positions(step.out, shards)]


def write_entry(executor: Shards, step: WriteEntryStep) -> list[Any]:
    """Executes a `WriteEntryStep`: returns the entry of `executor.values` for its output."""
    stacks = executor.distinct_shards(step.src, executor.values[step.src])
    entries = executor.distinct_shards(step.src, executor.values[step.entry])
    shards = []
    for x, entry, device in zip(stacks, entries, executor.shard_devices(step.src)):
        with tf.device(device):
            shards.append(tf.tensor_scatter_nd_update(x, [[step.index]], entry[None]))
    return [executor.to_positions(step.out, shards)]


def index_of_entry(step: LoopStep, value: Value, index: Any) -> Any:
    """Returns the index at which an iteration writes an entry of what a loop stacks.

    Args:
      step: the loop.
      value: the result of its body that is stacked.
      index: the index of the iteration, a scalar.
    """
    if value not in step.late:
        return index
    assert step.num_iterations is not None
    # The first iteration has nothing to write yet: the next one overwrites what it writes.
    if step.op.reverse:
        return tf.minimum(index + 1, step.num_iterations - 1)
    return tf.maximum(index - 1, 0)


def with_leading_dim(executor: Shards, value: Value, dim: str) -> list[Any]:
    """Returns the distinct shards of a value, transposed so that `dim` comes first."""
    assert value.spec is not None
    axis = value.spec.shape.index(dim)
    shards = executor.distinct_shards(value, executor.values[value])
    if axis == 0:
        return shards
    other_axes = [i for i in range(len(value.spec.shape)) if i != axis]
    transposed_shards = []
    for device, x in zip(executor.shard_devices(value), shards):
        with tf.device(device):
            transposed_shards.append(tf.transpose(x, [axis, *other_axes]))
    return transposed_shards


def local_shape_and_dtype(value: Value, mesh: Mesh) -> tuple[tuple[int, ...], tf.DType]:
    """Returns (sizes, data type) of one shard of a value."""
    assert value.spec is not None
    shape = local_shape(value.spec.shape, value.placement, mesh)
    return shape.sizes, tf.as_dtype(value.spec.dtype)
