"""Measures matmuls of several shapes on all positions of a mesh at once.

    measure_matmuls(mesh, TABLE, "float32", print)

A matmul is measured with the one that takes its result back to the shape of its input, as
layers of a model do: [m, k] times [k, n], then [m, n] times [n, k]. Both get the same rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from meshtf.calibration.clock import WALL, Clock
from meshtf.calibration.repeated_work import ROUNDS, RepeatedWork, measure
from meshtf.graph import Tensor
from meshtf.hardware import MatmulShape, MeasuredMatmul
from meshtf.mesh import Mesh
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.linear.einsum import einsum

# (batch, m, n, k): squares, skinny ones, and attention's products by head.
TABLE = (
    (1, 32, 32, 32),
    (1, 64, 256, 64),
    (1, 128, 128, 128),
    (1, 256, 512, 128),
    (1, 128, 1024, 256),
    (1, 1024, 1024, 256),
    (1, 2048, 16, 128),
    (1, 2048, 64, 128),
    (1, 2048, 128, 512),
    (8, 64, 64, 16),
    (32, 64, 64, 16),
    (16, 128, 128, 32),
    (4, 256, 256, 64),
)


def measure_matmuls(
    mesh: Mesh,
    shapes: Sequence[tuple[int, int, int, int]],
    dtype: str,
    report: Callable[[str], None],
    rounds: int = ROUNDS,
    clock: Clock = WALL,
) -> tuple[MeasuredMatmul, ...]:
    """Returns measured matmuls, two for each shape: it, and the one with n and k swapped.

    Args:
      mesh: a mesh with one axis, "position", that shards the dimension of this name.
      shapes: (batch, m, n, k) of each matmul on one device.
      dtype: their dtype.
      report: is called with a line for each shape.
      rounds: how often each matmul is timed.
      clock: the clock.
    """
    unique = [MatmulShape(*sizes, dtype=dtype) for sizes in dict.fromkeys(shapes)]
    times = measure([_pair(mesh, shape, clock) for shape in unique], rounds)
    measured: dict[MatmulShape, MeasuredMatmul] = {}
    for shape, seconds_of_pair in zip(unique, times):
        batch, m, n, k, _ = shape
        seconds = seconds_of_pair / 2
        rate = shape.flops / seconds
        report(f"  {batch} x [{m}, {k}] x [{k}, {n}]  {rate / 1e9:8.1f} GFLOP/s")
        for entry in (shape, shape._replace(n=k, k=n)):
            measured[entry] = MeasuredMatmul(*entry, seconds=seconds)
    return tuple(measured.values())


def _pair(mesh: Mesh, shape: MatmulShape, clock: Clock) -> RepeatedWork:
    """Returns the repeated work of a matmul and of the one that takes its result back."""
    batch, m, n, k, dtype = shape
    positions = mesh.size
    rng = np.random.default_rng(0)

    def array(rows: int, columns: int) -> np.ndarray:
        sizes = (positions, batch, rows, columns)
        values = rng.standard_normal(sizes, dtype=np.float32)
        return values / np.float32(rows**0.5)

    def body(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        y = einsum([cast(x, dtype), cast(up, dtype)], "position;b;m;n")
        z = einsum([y, cast(down, dtype)], "position;b;m;k")
        return cast(z, "float32")

    inputs = {
        "x": (array(m, k), "position;b;m;k"),
        "up": (array(k, n), "position;b;k;n"),
        "down": (array(n, k), "position;b;n;k"),
    }
    return RepeatedWork(mesh, body, inputs, clock)
