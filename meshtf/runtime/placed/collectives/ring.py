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

from meshtf.runtime.placed.collectives.primitives import combine, send
from meshtf.runtime.placed.program.tensor_ops import concat, reshape, split
from meshtf.runtime.placed.program.tensor_ops import stack as stacked


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
    parts = sizes if len(set(sizes)) > 1 else count
    flat = [
        split(reshape(x, [-1], device), parts, 0, device)
        for x, device in zip(xs, devices)
    ]
    totals = share_pieces(reduce_pieces(flat, devices, kind), devices)
    return [
        reshape(concat(pieces, 0, device), shape, device)
        for pieces, device in zip(totals, devices)
    ]


def reduce_scatter(
    xs: Sequence[Any], devices: Sequence[str], kind: str, axis: int
) -> list[Any]:
    """Returns piece j of the reduced tensor on device j."""
    return reduce_pieces(_pieces(xs, devices, axis), devices, kind)


def all_gather(xs: Sequence[Any], devices: Sequence[str], axis: int) -> list[Any]:
    """Returns all tensors joined along an axis on each device."""
    shared = share_pieces(xs, devices)
    return [concat(pieces, axis, device) for pieces, device in zip(shared, devices)]


def stack(xs: Sequence[Any], devices: Sequence[str]) -> list[Any]:
    """Returns all tensors as rows of one, on each device."""
    shared = share_pieces(xs, devices)
    return [stacked(rows, device) for rows, device in zip(shared, devices)]


def all_to_all(
    xs: Sequence[Any], devices: Sequence[str], cut: int, join: int
) -> list[Any]:
    """Returns on device j piece j along `cut` of every tensor, joined along `join`."""
    pieces = _pieces(xs, devices, cut)
    out = []
    for j, target in enumerate(devices):
        came = [send(p[j], source, target) for p, source in zip(pieces, devices)]
        out.append(concat(came, join, target))
    return out


def _pieces(xs: Sequence[Any], devices: Sequence[str], axis: int) -> list[list[Any]]:
    """Returns for each device the pieces of its tensor, one for every device."""
    return [split(x, len(xs), axis, device) for x, device in zip(xs, devices)]


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
            own = pieces[(j + step + 1) % number][j]
            total = combine(kind, came, own, target)
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
