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

import tensorflow as tf


def all_reduce(
    how: ModuleType, xs: Sequence[Sequence[Any]], devices: Sequence[str], kind: str
) -> list[tuple[Any, ...]]:
    """Returns the reduced tensors on each device."""
    flat = []
    for tensors, device in zip(xs, devices):
        with tf.device(device):
            flat.append(tf.concat([tf.reshape(x, [-1]) for x in tensors], 0))
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
        with tf.device(device):
            rows.append(
                tf.concat([_rows(x, axis, number) for x, axis in zip(tensors, axes)], 1)
            )
    shapes = [
        [n // (number if i == axis else 1) for i, n in enumerate(x.shape)]
        for x, axis in zip(xs[0], axes)
    ]
    return [
        _unpacked(y, shapes, device)
        for y, device in zip(how.reduce_scatter(rows, devices, kind, 0), devices)
    ]


def _rows(x: Any, axis: int, number: int) -> Any:
    """Returns [number, elements]: row j is piece j of x along an axis."""
    pieces = x if axis == 0 else tf.stack(tf.split(x, number, axis))
    return tf.reshape(pieces, [number, -1])


def _unpacked(flat: Any, shapes: Sequence[Any], device: str) -> tuple[Any, ...]:
    with tf.device(device):
        parts = tf.split(tf.reshape(flat, [-1]), [math.prod(shape) for shape in shapes])
        return tuple(tf.reshape(part, shape) for part, shape in zip(parts, shapes))
