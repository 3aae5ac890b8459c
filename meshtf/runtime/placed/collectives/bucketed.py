"""Collectives of several tensors as one of a flat tensor, for devices with memories of
their own.

    totals = all_reduce(ring, [(x0, y0), (x1, y1)], devices, "sum")     # [(x, y), (x, y)]

`how` is the module with the algorithms for one tensor. Packing and unpacking read and
write each number once more, on the device that has it, and save the latency of all
messages but those of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from meshtf.runtime.placed.program.tensor_ops import concat, reshape, split, stack


def all_reduce(
    how: ModuleType, xs: Sequence[Sequence[Any]], devices: Sequence[str], kind: str
) -> list[tuple[Any, ...]]:
    """Returns the reduced tensors on each device."""
    flat = [
        concat([reshape(x, [-1], device) for x in tensors], 0, device)
        for tensors, device in zip(xs, devices)
    ]
    shapes = [x.shape for x in xs[0]]
    return [
        _unpacked(y, shapes, device)
        for y, device in zip(how.all_reduce(flat, devices, kind), devices)
    ]


def reduce_scatter(
    how: ModuleType,
    xs: Sequence[Sequence[Any]],
    devices: Sequence[str],
    kind: str,
    axes: Sequence[int],
) -> list[tuple[Any, ...]]:
    """Returns piece j of each reduced tensor on device j; `axes` says where each is
    cut.
    """
    number = len(devices)
    rows = []
    for tensors, device in zip(xs, devices):
        own = [_rows(x, axis, number, device) for x, axis in zip(tensors, axes)]
        rows.append(concat(own, 1, device))
    shapes = [
        [n // (number if i == axis else 1) for i, n in enumerate(x.shape)]
        for x, axis in zip(xs[0], axes)
    ]
    return [
        _unpacked(y, shapes, device)
        for y, device in zip(how.reduce_scatter(rows, devices, kind, 0), devices)
    ]


def _rows(x: Any, axis: int, number: int, device: str) -> Any:
    """Returns [number, elements]: row j is piece j of x along an axis."""
    pieces = x if axis == 0 else stack(split(x, number, axis, device), device)
    return reshape(pieces, [number, -1], device)


def _unpacked(flat: Any, shapes: Sequence[Any], device: str) -> tuple[Any, ...]:
    sizes = [math.prod(shape) for shape in shapes]
    parts = split(reshape(flat, [-1], device), sizes, 0, device)
    return tuple(reshape(part, shape, device) for part, shape in zip(parts, shapes))
