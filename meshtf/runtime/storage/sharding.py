"""Splits global arrays into shards: computes which region of an array each mesh position
has, and slices the array.

    shards = shards_of(array, spec, placement, mesh)      # the shard of each mesh position

A mesh position is an element of the mesh's grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.graph import Spec
from meshtf.mesh import Mesh, Placement
from meshtf.mesh.shard_sizes import num_elements, shard_size, start_of_shard
from meshtf.names import Shape
from meshtf.runtime.devices.names import LOCAL_CPU
from meshtf.runtime.devices.resolve import devices_of, one_memory

# Identifies a shard of a tensor: the mesh coordinate along each axis that shards the
# tensor, 0 along all other axes.
ShardKey = tuple[int, ...]


def distinct(values: Sequence[Any]) -> tuple[list[Any], tuple[int, ...]]:
    """Returns (distinct objects, index of each of `values` among them). Objects are
    distinct by identity, as by `is`; the index of None is -1.
    """
    index_of: dict[int, int] = {id(None): -1}
    objects: list[Any] = []
    for x in values:
        if id(x) not in index_of:
            index_of[id(x)] = len(objects)
            objects.append(x)
    return objects, tuple(index_of[id(x)] for x in values)


def shard_keys(placement: Placement, mesh: Mesh) -> list[ShardKey]:
    """Returns the shard key of each position: positions with equal keys have equal
    shards.
    """
    axes = {axis for axes in placement.shards.values() for axis in axes}
    return [coordinates_along(axes, mesh, coordinates) for coordinates in mesh.coords]


def coordinates_along(
    axes: Set[str], mesh: Mesh, coordinates: Sequence[int]
) -> tuple[int, ...]:
    """Returns the coordinates of a position, with 0 along axes that are not in `axes`."""
    return tuple(c if axis in axes else 0 for axis, c in zip(mesh.axes, coordinates))


def region(
    shape: Shape,
    placement: Placement,
    key: ShardKey,
    mesh: Mesh,
) -> tuple[slice, ...]:
    """Returns the region of the global array that a shard covers, a slice for each
    dimension, without the padding of the shard.
    """
    coordinates = dict(zip(mesh.axes, key))
    slices = []
    for dim in shape:
        axes = placement.axes_of(dim.name)
        position = [mesh.axes[a] for a in axes], [coordinates[a] for a in axes]
        # The region of an empty shard is empty, at the end of the dimension.
        start = min(start_of_shard(dim.size, *position), dim.size)
        slices.append(slice(start, start + num_elements(dim.size, *position)))
    return tuple(slices)


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
    # Positions of one device share the copy of a shard.
    copies: dict[Any, Any] = {}
    outputs: list[Any] = []
    for device, x in zip(devices_of(mesh), shards):
        if x is None:
            outputs.append(None)
            continue
        key = device, id(x)
        if key not in copies:
            with tf.device(device):
                copies[key] = tf.identity(x)
        outputs.append(copies[key])
    return outputs


def shards_on_source(
    array: Any,
    spec: Spec,
    placement: Placement,
    mesh: Mesh,
) -> list[Any]:
    """Returns each position's shard of a global array, on the device of the array."""
    device = getattr(array, "device", "") or LOCAL_CPU
    with tf.device(device):
        shard_of = _distinct_shards(array, spec, placement, mesh)
    keys = shard_keys(placement, mesh)
    return [
        shard_of[key] if has_shard else None
        for key, has_shard in zip(keys, mesh.has(placement))
    ]


def _distinct_shards(
    array: Any,
    spec: Spec,
    placement: Placement,
    mesh: Mesh,
) -> dict[ShardKey, Any]:
    """Returns {shard key: shard} for the distinct shards of a global array."""
    # Each axis of the mesh that shards a dimension divides all shards.
    shards: dict[ShardKey, Any] = {(0,) * len(mesh.axes): array}
    for dim, axes in placement.shards.items():
        axis = spec.shape.index(dim)
        for mesh_axis in axes:
            index = mesh.axis_index[mesh_axis]
            num_shards = mesh.axes[mesh_axis]
            smaller_shards: dict[ShardKey, Any] = {}
            for key, x in shards.items():
                slices = tf.split(_padded(x, axis, num_shards), num_shards, axis)
                for coordinate, smaller_shard in enumerate(slices):
                    smaller_key = (*key[:index], coordinate, *key[index + 1 :])
                    smaller_shards[smaller_key] = smaller_shard
            shards = smaller_shards
    return shards


def _padded(x: Any, axis: int, num_shards: int) -> Any:
    """Returns x with zeros at the end of an axis, such that shards are equal."""
    size = int(x.shape[axis])
    num_added = shard_size(size, num_shards) * num_shards - size
    if num_added == 0:
        return x
    shape = list(x.shape)
    # Three axes, since TensorFlow pads tensors of at most eight.
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    x_3d = tf.reshape(x, [outer, size, inner])
    padded = tf.pad(x_3d, [[0, 0], [0, num_added], [0, 0]])
    return tf.reshape(padded, [*shape[:axis], size + num_added, *shape[axis + 1 :]])


def without_padding(shard: Any, region: tuple[slice, ...]) -> Any:
    """Returns the elements of a shard, an array, that are in its region."""
    sizes = tuple(bounds.stop - bounds.start for bounds in region)
    if tuple(shard.shape) == sizes:
        return shard
    return shard[tuple(map(slice, sizes))]


def with_padding(array: Any, sizes: Sequence[int]) -> Any:
    """Returns an array with zeros at the end of its axes, which then have these sizes."""
    if tuple(array.shape) == tuple(sizes):
        return array
    pads = [(0, size - n) for size, n in zip(sizes, array.shape)]
    return np.pad(array, pads)
