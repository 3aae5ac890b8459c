"""Compares the shards on all positions of a mesh with an expected array.

Independent of the library's export: it checks every position, so that it detects a wrong
copy which no export would read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshtf.graph import ShardedValue, Tensor
from meshtf.mesh import Mesh, Partial, Sharded
from meshtf.names import Shape

_REDUCE = {"sum": np.add.reduce, "max": np.maximum.reduce, "min": np.minimum.reduce}
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
    """Returns how an eager tensor differs from a named shape and array; "": it does not.

    Args:
      x: an eager tensor.
      shape: its expected shape.
      expected: its value, in the expected data type.
      tolerance: absolute and relative tolerance of floats; 0: they must be equal.
    """
    if x.shape != shape:
        return f"shape {x.shape!r}, wanted {shape!r}"
    if x.dtype != expected.dtype.name:
        return f"dtype {x.dtype}, wanted {expected.dtype.name}"
    if x.sharded_value is None or x.mesh is None:
        return "holds no value"
    shards = [np.asarray(v) for v in x.sharded_value.values]
    local_sizes = _local_sizes(
        x.mesh,
        x.sharded_value,
        expected.shape,
        shape,
    )
    for position, value in enumerate(shards):
        if value.shape != local_sizes or value.dtype != expected.dtype:
            return (
                f"position {position} holds {value.dtype}{list(value.shape)}, "
                f"{x.sharded_value.placement} means {expected.dtype}{list(local_sizes)}"
            )
    grid = _reduced(x.mesh, x.sharded_value, shards)
    return _differing_position(
        x.mesh,
        x.sharded_value,
        grid,
        shape,
        expected,
        tolerance,
    )


def is_close(value: Any, expected: Any, tolerance: float) -> bool:
    """Returns whether two arrays agree: floats up to `tolerance`, others exactly; a NaN is
    never equal.
    """
    if not tolerance or expected.dtype.name not in TOLERANCE:
        return np.array_equal(value, expected)
    if expected.dtype.itemsize < 4:
        value = value.astype("float32")
        expected = expected.astype("float32")
    return np.allclose(value, expected, rtol=tolerance, atol=tolerance)


def _local_sizes(
    mesh: Mesh,
    sharded: ShardedValue,
    sizes: tuple[int, ...],
    shape: Shape,
) -> tuple[int, ...]:
    """Returns the sizes of one shard."""
    local_sizes = list(sizes)
    for state, axis_size in zip(sharded.placement, mesh.axes.values(), strict=True):
        if isinstance(state, Sharded):
            local_sizes[shape.index(state.dim)] //= axis_size
    return tuple(local_sizes)


def _reduced(mesh: Mesh, sharded: ShardedValue, shards: list[Any]) -> Any:
    """Returns shards as an array [*mesh, *local], with partial results reduced."""
    grid_shape = (*mesh.axes.values(), *shards[0].shape)
    grid = np.stack(shards).reshape(grid_shape)
    for axis, state in enumerate(sharded.placement):
        if isinstance(state, Partial):
            grid = _REDUCE[state.kind](grid, axis=axis, keepdims=True)
    return np.broadcast_to(grid, grid_shape)


def _differing_position(
    mesh: Mesh,
    sharded: ShardedValue,
    grid: Any,
    shape: Shape,
    expected: Any,
    tolerance: float,
) -> str:
    """Returns a message about the first position whose shard differs, or ""."""
    for coord in mesh.coords:
        shard = _expected_shard(mesh, sharded, coord, shape, expected)
        if not is_close(grid[coord], shard, tolerance):
            return (
                f"values at {coord} of {sharded.placement}:\n"
                f"      have {_short(grid[coord])}\n      want {_short(shard)}"
            )
    return ""


def _expected_shard(
    mesh: Mesh,
    sharded: ShardedValue,
    coord: tuple[int, ...],
    shape: Shape,
    expected: Any,
) -> Any:
    """Returns the shard of an array at the coordinates of a position."""
    axis_sizes = mesh.axes.values()
    for c, state, axis_size in zip(
        coord,
        sharded.placement,
        axis_sizes,
        strict=True,
    ):
        if isinstance(state, Sharded):
            dim = shape.index(state.dim)
            local_size = expected.shape[dim] // axis_size
            expected = expected.take(range(c * local_size, (c + 1) * local_size), dim)
    return expected


def _short(value: Any) -> str:
    elements = np.array2string(value.ravel()[:8], precision=6, separator=" ")
    return f"{elements} of {value.size}"
