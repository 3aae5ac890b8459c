"""Splitting arrays into shards: which region of an array is on which mesh position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import Spec
from meshtf.mesh import Mesh, Placement, Sharded
from meshtf.names import Shape
from meshtf.runtime.devices.resolve import devices_of, one_memory

ShardKey = tuple[int, ...]  # coordinates along the axes that shard, 0 along others


def distinct(values: Sequence[Any]) -> tuple[list[Any], tuple[int, ...]]:
    """Returns the distinct objects among `values`, and the index of each value's object;
    -1 for None.
    """
    index_of: dict[int, int] = {id(None): -1}
    objects: list[Any] = []
    for x in values:
        if id(x) not in index_of:
            index_of[id(x)] = len(objects)
            objects.append(x)
    return objects, tuple(index_of[id(x)] for x in values)


def shard_keys(placement: Placement, mesh: Mesh) -> list[ShardKey]:
    """Returns the key of each position's shard: positions with equal keys have equal
    shards.
    """
    return [_shard_key(placement, coordinates) for coordinates in mesh.coords]


def _shard_key(placement: Placement, coordinates: Sequence[int]) -> ShardKey:
    return tuple(
        coordinate if isinstance(state, Sharded) else 0
        for state, coordinate in zip(placement, coordinates)
    )


def region(
    shape: Shape,
    placement: Placement,
    key: ShardKey,
    mesh: Mesh,
) -> tuple[slice, ...]:
    """Returns the region of the global array that a shard covers, a slice for each
    dimension.
    """
    starts = {d.name: 0 for d in shape}
    sizes = {d.name: d.size for d in shape}
    for state, coordinate, num_shards in zip(placement, key, mesh.axes.values()):
        if isinstance(state, Sharded):
            sizes[state.dim] //= num_shards
            starts[state.dim] += coordinate * sizes[state.dim]
    return tuple(slice(starts[dim], starts[dim] + sizes[dim]) for dim in sizes)


def shards_of(
    array: Any,
    spec: Spec,
    placement: Placement,
    mesh: Mesh,
) -> list[Any]:
    """Returns each position's shard of a global array, on the position's device.

    The array is sliced on its own device. In a graph whose devices share one memory, the
    shards stay on that device: TensorFlow copies them where they are needed.
    """
    shards = shards_on_source(array, spec, placement, mesh)
    if not tf.executing_eagerly() and one_memory(mesh):
        return shards
    sent: dict[Any, Any] = {}
    outputs: list[Any] = []
    for device, x in zip(devices_of(mesh), shards):
        key = device, id(x)
        if x is not None and key not in sent:
            with tf.device(device):
                sent[key] = tf.identity(x)
        outputs.append(None if x is None else sent[key])
    return outputs


def shards_on_source(
    array: Any,
    spec: Spec,
    placement: Placement,
    mesh: Mesh,
) -> list[Any]:
    """Returns each position's shard of a global array, on the device of the array."""
    with tf.device(getattr(array, "device", "") or "/device:CPU:0"):
        shards = _distinct_shards(array, spec, placement, mesh)
    keys = shard_keys(placement, mesh)
    return [
        shards[key] if has_shard else None
        for key, has_shard in zip(keys, mesh.has(placement))
    ]


def _distinct_shards(
    array: Any,
    spec: Spec,
    placement: Placement,
    mesh: Mesh,
) -> dict[ShardKey, Any]:
    """Returns the distinct shards of a global array, by their keys."""
    shards: dict[ShardKey, Any] = {
        (): array
    }  # keys grow by one coordinate for each axis
    for state, num_shards in zip(placement, mesh.axes.values()):
        if isinstance(state, Sharded):
            axis = spec.shape.index(state.dim)
            shards = {
                (*key, j): shard
                for key, x in shards.items()
                for j, shard in enumerate(tf.split(x, num_shards, axis))
            }
        else:
            shards = {(*key, 0): x for key, x in shards.items()}
    return shards
