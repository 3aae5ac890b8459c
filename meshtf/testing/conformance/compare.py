"""Compares a tensor's shards on all mesh positions (virtual devices) with an expected array.

`Tensor.numpy` reads only one copy of each shard. Here every position is compared, so a
wrong copy on one of several replicas is noticed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshtf.graph import ShardedValue, Tensor
from meshtf.mesh import Mesh
from meshtf.names import Shape

_REDUCE = {"sum": np.add.reduce, "max": np.maximum.reduce, "min": np.minimum.reduce}
# The absolute and relative tolerance of results of each data type.
TOLERANCE = {
    "float64": 1e-9,
    "float32": 1e-4,
    "float16": 1e-2,
    "bfloat16": 4e-2,
    "complex64": 1e-4,
    "complex128": 1e-9,
}


def difference(
    x: Tensor,
    shape: Shape,
    expected: Any,
    tolerance: float = 0.0,
) -> str:
    """Returns how an eager tensor differs from an expected shape and array, in words; "" if
    it does not.

    Args:
      x: an eager tensor.
      shape: the expected shape.
      expected: a NumPy array of the expected value and data type.
      tolerance: the absolute and relative tolerance of floats; 0: they must be equal.
    """
    if x.shape != shape:
        return f"shape {x.shape!r}, wanted {shape!r}"
    if x.dtype != expected.dtype.name:
        return f"dtype {x.dtype}, wanted {expected.dtype.name}"
    if x.sharded_value is None or x.mesh is None:
        return "holds no value"
    shards = [np.asarray(shard) for shard in x.sharded_value.values]
    local_sizes = _local_sizes(x.mesh, x.sharded_value, expected.shape, shape)
    for position, shard in enumerate(shards):
        if shard.shape != local_sizes or shard.dtype != expected.dtype:
            return (
                f"position {position} holds {shard.dtype}{list(shard.shape)}, "
                f"{x.sharded_value.placement} means {expected.dtype}{list(local_sizes)}"
            )
    grid = _reduce_partial(x.mesh, x.sharded_value, shards)
    for coord in x.mesh.coords:
        expected_shard, is_element = (
            _shard(x.mesh, x.sharded_value, coord=coord, shape=shape, array=array)
            for array in (expected, np.ones(expected.shape, bool))
        )
        value = grid[coord][is_element]  # without padding, which may have any value
        if not is_close(value, expected_shard[is_element], tolerance):
            return (
                f"values at {coord} of {x.sharded_value.placement}:\n"
                f"      have {_short_text(grid[coord])}\n"
                f"      want {_short_text(expected_shard)}"
            )
    return ""


def is_close(value: Any, expected: Any, tolerance: float) -> bool:
    """Returns whether two arrays agree: floats up to `tolerance`, other types exactly. NaN is
    equal to NaN alone.
    """
    if expected.dtype.name not in TOLERANCE:
        return np.array_equal(value, expected)
    if not tolerance:
        return np.array_equal(value, expected, equal_nan=True)
    if expected.dtype.itemsize < 4:  # np.allclose would compute in 16 bits
        value = value.astype("float32")
        expected = expected.astype("float32")
    return np.allclose(value, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def _local_sizes(
    mesh: Mesh,
    sharded: ShardedValue,
    sizes: tuple[int, ...],
    shape: Shape,
) -> tuple[int, ...]:
    """Returns the sizes of one shard of an array.

    Args:
      mesh: the mesh of the tensor.
      sharded: the tensor's value, of which only the placement is read.
      sizes: the sizes of the array.
      shape: the named shape of the array.
    """
    local_sizes = list(sizes)
    for dim_name, axes in sharded.placement.shards.items():
        dim = shape.index(dim_name)
        for axis in axes:
            local_sizes[dim] = math.ceil(local_sizes[dim] / mesh.axes[axis])
    return tuple(local_sizes)


def _reduce_partial(mesh: Mesh, sharded: ShardedValue, shards: list[Any]) -> Any:
    """Returns the shards of all positions as one array [*mesh axes, *local sizes], in which
    partial results are reduced over their mesh axes.
    """
    grid_shape = (*mesh.axes.values(), *shards[0].shape)
    grid = np.stack(shards).reshape(grid_shape)
    for axis, state in sharded.placement.partial.items():
        index = mesh.axis_index[axis]
        grid = _REDUCE[state.kind](grid, axis=index, keepdims=True)
    return np.broadcast_to(grid, grid_shape)


def _shard(
    mesh: Mesh,
    sharded: ShardedValue,
    coord: tuple[int, ...],
    shape: Shape,
    array: Any,
) -> Any:
    """Returns the shard of an array at one position, with zeros as padding.

    Args:
      mesh: the mesh of the tensor.
      sharded: the tensor's value, of which only the placement is read.
      coord: the coordinate of the position along each mesh axis.
      shape: the named shape of the array.
      array: the array.
    """
    shard = array
    coordinates = dict(zip(mesh.axes, coord, strict=True))
    for dim_name, axes in sharded.placement.shards.items():
        dim = shape.index(dim_name)
        for axis in axes:
            axis_size = mesh.axes[axis]
            local_size = math.ceil(shard.shape[dim] / axis_size)
            pads = [(0, 0)] * shard.ndim
            pads[dim] = (0, local_size * axis_size - shard.shape[dim])
            shard = np.split(np.pad(shard, pads), axis_size, dim)[coordinates[axis]]
    return shard


def _short_text(value: Any) -> str:
    """Returns the first elements of an array, and the count of all."""
    elements = np.array2string(value.ravel()[:8], precision=6, separator=" ")
    return f"{elements} of {value.size}"
