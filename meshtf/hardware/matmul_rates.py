"""The time of a matmul: from measured matmuls of similar shapes, or from the peak rate.

>>> from meshtf.hardware.profile import Hardware, Link, MeasuredMatmul
>>> link = Link("all", None, 1e9, 0.0)
>>> measured = MeasuredMatmul(1, 512, 512, 512, "float32", seconds=2e-3)
>>> cpu = Hardware("cpu", {"float32": 2e11}, 1e10, (link,), matmuls=(measured,))
>>> float(MatmulTimes(cpu).seconds(MatmulShape(1, 512, 512, 512, "float32"), num_bytes=0))
0.002
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from meshtf.hardware.profile import Hardware

# The measured matmuls that count for a shape lie within so many doublings of a size.
_COVERED_DOUBLINGS = 1.5


class MatmulShape(NamedTuple):
    """The local shape of a matmul: `batch` products [m, k] times [k, n]. Sizes are numbers, or
    arrays with an entry for each mesh that is compared.
    """

    batch: Any
    m: Any
    n: Any
    k: Any
    dtype: str

    @property
    def elements(self) -> Any:
        """The elements of all products."""
        return self.batch * self.m * self.n

    @property
    def flops(self) -> Any:
        """The floating-point operations of all products."""
        return 2.0 * self.batch * self.m * self.n * self.k


class MatmulTimes:
    """Predicts the seconds of matmuls on one kind of hardware."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        # dtype -> (log2 of the sizes [measured, 4], log of the fraction of the peak [measured])
        self._tables: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for dtype in {matmul.dtype for matmul in hardware.matmuls}:
            rows = [matmul for matmul in hardware.matmuls if matmul.dtype == dtype]
            sizes = np.array(
                [[row.batch, row.m, row.n, row.k] for row in rows], dtype=float
            )
            seconds = np.array([row.seconds for row in rows])
            flops = 2.0 * sizes.prod(axis=1)
            efficiency = flops / seconds / hardware.peak_flops(dtype)
            self._tables[dtype] = np.log2(sizes), np.log(efficiency)

    def seconds(self, shape: MatmulShape, num_bytes: Any) -> Any:
        """Returns the seconds of a matmul.

        Args:
          shape: the local shape.
          num_bytes: the bytes that it reads and writes.
        """
        peak = self._hardware.peak_flops(shape.dtype)
        if shape.dtype in self._tables:
            # A measured time includes the reads and writes of memory.
            return shape.flops / (peak * self._measured_efficiency(shape))
        tile = self._hardware.matmul_tile
        rows = np.ceil(shape.m / tile) * tile
        columns = np.ceil(shape.n / tile) * tile
        flops = 2.0 * shape.batch * rows * columns * shape.k
        compute = flops / (peak * self._hardware.matmul_efficiency)
        bandwidth = self._hardware.memory_bandwidth * self._hardware.memory_efficiency
        return np.maximum(compute, num_bytes / bandwidth)

    def is_covered(self, shape: MatmulShape) -> Any:
        """Returns whether a matmul of similar sizes was measured."""
        if shape.dtype not in self._tables:
            return np.zeros_like(np.asarray(shape.flops), dtype=bool)
        distances = self._distances(shape)
        return distances.min(axis=-1) <= _COVERED_DOUBLINGS

    def _distances(self, shape: MatmulShape) -> np.ndarray:
        """Returns the distance of a shape to each measured one, in doublings: `[..., measured]`.
        A matmul and its transposed one, with m and n swapped, are as good as equal.
        """
        table, _ = self._tables[shape.dtype]
        sizes = np.broadcast_arrays(*map(np.asarray, shape[:4]))
        stacked = np.stack(sizes, axis=-1)
        log_sizes = np.log2(np.maximum(stacked, 1))
        straight = np.abs(log_sizes[..., None, :] - table)
        swapped = log_sizes[..., [0, 2, 1, 3]]
        transposed = np.abs(swapped[..., None, :] - table)
        # Of two measured ones, the one that is not transposed is nearer.
        return np.minimum(straight.sum(axis=-1), transposed.sum(axis=-1) + 1e-3)

    def _measured_efficiency(self, shape: MatmulShape) -> Any:
        """Returns the fraction of the peak that a matmul reaches: the mean of the measured
        ones in log space, weighted by the inverse of the distance to the fourth power.
        """
        _, log_efficiency = self._tables[shape.dtype]
        weights = 1.0 / (self._distances(shape) ** 4 + 1e-12)
        mean = (weights * log_efficiency).sum(axis=-1) / weights.sum(axis=-1)
        return np.exp(mean)
