"""Does what lies on the positions of a mesh make up the wanted array?

Written apart from the library's own export: it looks at every position, so that a copy
that went wrong is seen even where no export would read it.
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


def difference(x: Tensor, shape: Shape, want: Any, tolerance: float = 0.0) -> str:
    """Returns how an eager tensor differs from named shape and array; "" where it does
    not.

    Args:
      x: an eager tensor.
      shape: its wanted shape.
      want: its wanted value, in the wanted data type.
      tolerance: how far floats may be off, absolutely or relatively; 0: every bit
        counts.
    """
    if x.shape != shape:
        return f"shape {x.shape!r}, wanted {shape!r}"
    if x.dtype != want.dtype.name:
        return f"dtype {x.dtype}, wanted {want.dtype.name}"
    if x.sharded_value is None or x.mesh is None:
        return "holds no value"
    locals_ = [np.asarray(v) for v in x.sharded_value.values]
    expected = _local_sizes(x.mesh, x.sharded_value, want.shape, shape)
    for position, value in enumerate(locals_):
        if value.shape != expected or value.dtype != want.dtype:
            return (
                f"position {position} holds {value.dtype}{list(value.shape)}, "
                f"{x.sharded_value.placement} means {want.dtype}{list(expected)}"
            )
    grid = _finish(x.mesh, x.sharded_value, locals_)
    return _differing_position(x.mesh, x.sharded_value, grid, shape, want, tolerance)


def same(value: Any, want: Any, tolerance: float) -> bool:
    """Whether two arrays agree: floats up to `tolerance`, others exactly; a NaN equals
    nothing.
    """
    if not tolerance or want.dtype.name not in TOLERANCE:
        return np.array_equal(value, want)
    if want.dtype.itemsize < 4:
        value, want = value.astype("float32"), want.astype("float32")
    return np.allclose(value, want, rtol=tolerance, atol=tolerance)


def _local_sizes(
    mesh: Mesh, held: ShardedValue, sizes: tuple[int, ...], shape: Shape
) -> tuple[int, ...]:
    out = list(sizes)
    for state, parts in zip(held.placement, mesh.axes.values(), strict=True):
        if isinstance(state, Sharded):
            out[shape.index(state.dim)] //= parts
    return tuple(out)


def _finish(mesh: Mesh, held: ShardedValue, values: list[Any]) -> Any:
    """Returns values as an array [*mesh, *local], reduced where they were partial."""
    sizes = tuple(mesh.axes.values())
    grid = np.stack(values).reshape(sizes + values[0].shape)
    for axis, state in enumerate(held.placement):
        if isinstance(state, Partial):
            grid = _REDUCE[state.kind](grid, axis=axis, keepdims=True)
    return np.broadcast_to(grid, sizes + values[0].shape)


def _differing_position(
    mesh: Mesh, held: ShardedValue, grid: Any, shape: Shape, want: Any, tolerance: float
) -> str:
    for coord in mesh.coords:
        mine = want
        for c, state, parts in zip(
            coord, held.placement, mesh.axes.values(), strict=True
        ):
            if isinstance(state, Sharded):
                axis = shape.index(state.dim)
                rows = mine.shape[axis] // parts
                mine = mine.take(range(c * rows, (c + 1) * rows), axis)
        if not same(grid[coord], mine, tolerance):
            return (
                f"values at {coord} of {held.placement}:\n"
                f"      have {_short(grid[coord])}\n      want {_short(mine)}"
            )
    return ""


def _short(value: Any) -> str:
    return (
        np.array2string(value.ravel()[:8], precision=6, separator=" ")
        + f" of {value.size}"
    )
