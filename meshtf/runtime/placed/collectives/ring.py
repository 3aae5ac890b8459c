"""Collectives where each device has its own memory: pieces go around a ring.

Every device sends to its right neighbour only, and receives (p-1)/p of the tensor in a
reduce_scatter or an all_gather, which is the least there is. An all_to_all is no ring:
each piece goes straight to where it belongs.

    all_reduce([x0, x1], ("/device:GPU:0", "/device:GPU:1"), "sum")

What is sent is cut before, on the device that sends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.runtime.placed.collectives.primitives import combine, send


def all_reduce(xs: Sequence[Any], devices: Sequence[str], kind: str) -> list[Any]:
    """Returns the reduced tensor on each device: reduce_scatter and all_gather of flat
    pieces.

    Pieces differ by one element where their number does not divide the size, and there
    are fewer of them where there are fewer elements than devices: nothing is sent that
    is not needed.
    """
    shape, number = xs[0].shape, len(xs)
    count = min(number, shape.num_elements())
    ends = [shape.num_elements() * j // count for j in range(count + 1)]
    sizes = [stop - start for start, stop in zip(ends, ends[1:])]
    flat = []
    for x, device in zip(xs, devices):
        with tf.device(device):
            flat.append(
                tf.split(tf.reshape(x, [-1]), sizes if len(set(sizes)) > 1 else count)
            )
    out = []
    for pieces, device in zip(
        share_pieces(reduce_pieces(flat, devices, kind), devices), devices
    ):
        with tf.device(device):
            out.append(tf.reshape(tf.concat(pieces, 0), shape))
    return out


def reduce_scatter(
    xs: Sequence[Any], devices: Sequence[str], kind: str, axis: int
) -> list[Any]:
    """Returns piece j of the reduced tensor on device j."""
    return reduce_pieces(_pieces(xs, devices, axis), devices, kind)


def all_gather(xs: Sequence[Any], devices: Sequence[str], axis: int) -> list[Any]:
    """Returns all tensors joined along an axis on each device."""
    out = []
    for pieces, device in zip(share_pieces(xs, devices), devices):
        with tf.device(device):
            out.append(tf.concat(pieces, axis))
    return out


def stack(xs: Sequence[Any], devices: Sequence[str]) -> list[Any]:
    """Returns all tensors as rows of one, on each device."""
    out = []
    for rows, device in zip(share_pieces(xs, devices), devices):
        with tf.device(device):
            out.append(tf.stack(rows))
    return out


def all_to_all(
    xs: Sequence[Any], devices: Sequence[str], cut: int, join: int
) -> list[Any]:
    """Returns on device j piece j along `cut` of every tensor, joined along `join`."""
    pieces = _pieces(xs, devices, cut)
    out = []
    for j, target in enumerate(devices):
        came = [send(p[j], source, target) for p, source in zip(pieces, devices)]
        with tf.device(target):
            out.append(tf.concat(came, join))
    return out


def _pieces(xs: Sequence[Any], devices: Sequence[str], axis: int) -> list[list[Any]]:
    """Returns for each device the pieces of its tensor, one for every device."""
    pieces = []
    for x, device in zip(xs, devices):
        with tf.device(device):
            pieces.append(tf.split(x, len(xs), axis))
    return pieces


def reduce_pieces(
    pieces: Sequence[Sequence[Any]], devices: Sequence[str], kind: str
) -> list[Any]:
    """Returns each piece reduced over all devices, piece j on device j."""
    number = len(devices)
    totals = []
    for j in range(len(pieces[0])):  # the sum of piece j travels, and ends on device j
        total = pieces[(j + 1) % number][j]
        for step in range(1, number):
            source, target = (
                devices[(j + step) % number],
                devices[(j + step + 1) % number],
            )
            came = send(total, source, target)
            with tf.device(target):
                total = combine(kind, came, pieces[(j + step + 1) % number][j])
        totals.append(total)
    return totals


def share_pieces(pieces: Sequence[Any], devices: Sequence[str]) -> list[list[Any]]:
    """Returns all pieces on each device, in order, when piece j lies on device j."""
    number = len(devices)
    have: list[list[Any]] = [[None] * len(pieces) for _ in devices]
    for j, x in enumerate(pieces):
        have[j][j] = x
        for step in range(number - 1):
            source, target = (j + step) % number, (j + step + 1) % number
            x = send(x, devices[source], devices[target])
            have[target][j] = x
    return have
