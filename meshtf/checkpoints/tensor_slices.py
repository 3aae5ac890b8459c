"""Boxes: parts of a tensor, a start and a size for each dimension; what V2 files call
slices.

Example:

    >>> from meshtf.checkpoints.tensor_slices import cut, spec, read_spec, overlap
    >>> box = ((0, 4), (6, 6))
    >>> spec((8, 12), box), spec((8, 12), ((0, 8), (0, 12)))
    ('8 12 0,4:6,6', '')
    >>> list(cut(box, at_most=8))
    [((0, 1), (6, 6)), ((1, 1), (6, 6)), ((2, 1), (6, 6)), ((3, 1), (6, 6))]
    >>> overlap(box, ((3, 5), (0, 8)))
    ((3, 1), (6, 2))
    >>> runs(((1, 2), (2, 4)), outer=((0, 3), (0, 6)))      # of 2 numbers each, 9 in all
    (2, array([4, 5, 7, 8], dtype=int32))
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

Box = tuple[tuple[int, int], ...]


def whole(sizes: Sequence[int]) -> Box:
    """Returns the box that is all of a tensor."""
    return tuple((0, size) for size in sizes)


def numbers(box: Box) -> int:
    """Returns how many numbers are in a box."""
    return math.prod(size for _, size in box)


def spec(sizes: Sequence[int], box: Box) -> str:
    """Returns a box as V2 files write it: "" is all of the tensor."""
    if box == whole(sizes):
        return ""
    return " ".join(map(str, sizes)) + " " + spans(box)


def spans(box: Box) -> str:
    """Returns a box as text, such as "0,4:6,6"."""
    return ":".join(f"{start},{size}" for start, size in box)


def read_spec(text: str) -> Box:
    """Returns the box that `spans` wrote."""
    pairs = (span.split(",") for span in text.split(":")) if text else ()
    return tuple((int(start), int(size)) for start, size in pairs)


def cut(box: Box, at_most: int) -> Iterator[Box]:
    """Yields boxes that make up `box`, in order, of at most so many numbers each where
    that can be.

    Only leading dimensions are cut, so that the numbers of each lie together in a
    row-major array.
    """
    if numbers(box) <= at_most or not box:
        yield box
        return
    (start, size), *rest = box
    row = max(numbers(tuple(rest)), 1)
    if row > at_most:
        for i in range(size):
            for inner in cut(tuple(rest), at_most):
                yield ((start + i, 1), *inner)
        return
    rows = at_most // row
    for first in range(0, size, rows):
        yield ((start + first, min(rows, size - first)), *rest)


def overlap(box: Box, other: Box) -> Box | None:
    """Returns what two boxes of one tensor have in common, or None."""
    common = []
    for (start, size), (low, length) in zip(box, other, strict=True):
        first, last = max(start, low), min(start + size, low + length)
        if first >= last:
            return None
        common.append((first, last - first))
    return tuple(common)


def inside(box: Box, outer: Box) -> tuple[slice, ...]:
    """Returns where a box lies in an array of what `outer` holds."""
    return tuple(
        slice(start - low, start - low + size)
        for (start, size), (low, _) in zip(box, outer, strict=True)
    )


def runs(box: Box, outer: Box) -> tuple[int, np.ndarray]:
    """Returns where a box lies in a row-major array of what `outer` holds: as runs of
    one length.

    Returns:
      The length of a run, and the numbers of those that are the box's, in its order.
    """
    sizes = [size for _, size in outer]
    last = max((k for k, (_, size) in enumerate(box) if size != sizes[k]), default=0)
    before = np.zeros(1, np.int64)  # rows of dimensions before the last that is cut
    for (start, size), (low, length) in zip(box[:last], outer):
        before = (before[:, None] * length + start - low + np.arange(size)).ravel()
    inner = math.prod(sizes[last + 1 :])
    start, size, row = (
        (
            (box[last][0] - outer[last][0]) * inner,
            box[last][1] * inner,
            sizes[last] * inner,
        )
        if box
        else (0, 1, 1)
    )
    length = math.gcd(start, size, row)
    inside_row = start // length + np.arange(size // length)
    return length, (before[:, None] * (row // length) + inside_row).ravel().astype(
        np.int32
    )
