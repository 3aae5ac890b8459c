"""Measures elementwise ops: their bandwidth, and the time that it takes to start an op.

op_seconds, bandwidth = measure_elementwise(mesh, print)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshtf.calibration.clock import WALL, Clock
from meshtf.calibration.repeated_work import ROUNDS, RepeatedWork, measure
from meshtf.graph import Tensor
from meshtf.mesh import Mesh
from meshtf.ops.elementwise.unary import exp
from meshtf.ops.reductions.reduce import reduce_mean

_FLOAT = 4  # bytes of a float32
_SMALL = 64
_LARGE = 2**17  # elements on one device: as the activations of a layer


def measure_elementwise(
    mesh: Mesh, report: Callable[[str], None], rounds: int = ROUNDS, clock: Clock = WALL
) -> tuple[float, float]:
    """Returns (seconds to start an op, bytes per second that elementwise ops read and write).

    The body normalizes rows, since XLA fuses elementwise ops with each other, but not with a
    reduction that they need.

    Args:
      mesh: a mesh with one axis, "position".
      report: is called with a line for each result.
      rounds: how often each work is timed.
      clock: the clock.
    """
    works = [_normalization(mesh, size, clock) for size in (_SMALL, _LARGE)]
    small, large = measure(works, rounds)
    # Three ops: a mean, which reads x; exp(x - mean), which reads x and writes y.
    num_bytes = 3 * _FLOAT * (_LARGE - _SMALL)
    bandwidth = num_bytes / max(large - small, 1e-9)
    op_seconds = small / 2
    report(f"  elementwise ops  {bandwidth / 1e9:8.2f} GB/s")
    report(f"  start of an op   {op_seconds * 1e6:8.1f} us")
    return op_seconds, bandwidth


def _normalization(mesh: Mesh, size: int, clock: Clock) -> RepeatedWork:
    """Returns the repeated work of exp(x - mean(x)) on `size` elements of each device."""

    def body(x: Tensor) -> Tensor:
        return exp(x - reduce_mean(x, "columns")) * 0.5

    rows = max(size // 128, 1)
    array = np.zeros((mesh.size, rows, size // rows), "float32")
    return RepeatedWork(mesh, body, {"x": (array, "position;rows;columns")}, clock)
