"""Boxes: a box is a slice of a tensor, as a pair (start, size) for each dimension.

TensorFlow's V2 checkpoint files call a box a slice specification.

    >>> from meshtf.checkpoints.tensor_slices import overlap, parse_spans, slice_spec, split
    >>> box = ((0, 4), (6, 6))
    >>> slice_spec((8, 12), box), slice_spec((8, 12), ((0, 8), (0, 12)))
    ('8 12 0,4:6,6', '')
    >>> list(split(box, max_elements=8))
    [((0, 1), (6, 6)), ((1, 1), (6, 6)), ((2, 1), (6, 6)), ((3, 1), (6, 6))]
    >>> overlap(box, ((3, 5), (0, 8)))
    ((3, 1), (6, 2))
    >>> # In an array [3, 6], viewed as [9, 2]: the rows 4, 5, 7 and 8.
    >>> contiguous_runs(((1, 2), (2, 4)), outer=((0, 3), (0, 6)))
    (2, array([4, 5, 7, 8], dtype=int32))
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

Box = tuple[tuple[int, int], ...]  # (start, size) along each dimension


def box_of(slices: Sequence[slice]) -> Box:
    """Returns the box of a slice along each dimension."""
    return tuple((s.start, s.stop - s.start) for s in slices)


def full_box(sizes: Sequence[int]) -> Box:
    """Returns the box of an entire tensor."""
    return tuple((0, size) for size in sizes)


def num_elements(box: Box) -> int:
    """Returns the count of elements of a box."""
    return math.prod(size for _, size in box)


def slice_spec(sizes: Sequence[int], box: Box) -> str:
    """Returns a box as V2 files write it, with the sizes of the tensor: "8 12 0,4:6,6"; ""
    for the entire tensor.
    """
    if box == full_box(sizes):
        return ""
    return " ".join(map(str, sizes)) + " " + spans(box)


def spans(box: Box) -> str:
    """Returns a box as text, such as "0,4:6,6"."""
    return ":".join(f"{start},{size}" for start, size in box)


def parse_spans(text: str) -> Box:
    """Returns the box of a text from `spans`."""
    if not text:
        return ()  # the box of a scalar
    pairs = (span.split(",") for span in text.split(":"))
    return tuple((int(start), int(size)) for start, size in pairs)


def split(box: Box, max_elements: int) -> Iterator[Box]:
    """Yields the boxes that a box is split into, in row-major order.

    Only leading dimensions are split, so that the elements of each box are contiguous in
    a row-major array.

    Args:
      box: the box to split.
      max_elements: the maximum count of elements of a yielded box, at least 1.
    """
    if num_elements(box) <= max_elements or not box:
        yield box
        return
    (start, size), *inner_dims = box
    inner_elements = max(num_elements(tuple(inner_dims)), 1)
    if inner_elements > max_elements:
        for i in range(size):
            for inner in split(tuple(inner_dims), max_elements):
                yield ((start + i, 1), *inner)
        return
    step = max_elements // inner_elements
    for offset in range(0, size, step):
        yield ((start + offset, min(step, size - offset)), *inner_dims)


def overlap(box: Box, other: Box) -> Box | None:
    """Returns the intersection of two boxes of one tensor, or None if it is empty."""
    common = []
    for (start, size), (other_start, other_size) in zip(box, other, strict=True):
        common_start = max(start, other_start)
        common_end = min(start + size, other_start + other_size)
        if common_start >= common_end:
            return None
        common.append((common_start, common_end - common_start))
    return tuple(common)


def slices_in(box: Box, outer: Box) -> tuple[slice, ...]:
    """Returns the slices that select the elements of a box from an array of the elements
    of `outer`, a box that contains it.
    """
    return tuple(
        slice(start - outer_start, start - outer_start + size)
        for (start, size), (outer_start, _) in zip(box, outer, strict=True)
    )


def contiguous_runs(box: Box, outer: Box) -> tuple[int, np.ndarray]:
    """Returns the indices of a box's elements in a row-major array of the elements of
    `outer`, as runs of contiguous elements.

    The array is viewed as [runs, length], with the largest length for which the box
    consists of entire runs.

    Args:
      box: the box.
      outer: a box that contains it.

    Returns:
      The length of a run, and the index of each run of the box, int32 [runs], in the
      row-major order of the box.
    """
    if not box:
        return 1, np.zeros(1, np.int32)
    outer_sizes = [size for _, size in outer]
    split_dims = [k for k, (_, size) in enumerate(box) if size != outer_sizes[k]]
    # The last dimension along which the box is smaller: along all later dimensions it is
    # as large as `outer`.
    last = max(split_dims, default=0)
    # Indices of the box along all dimensions before `last`, flattened.
    leading_indices = np.zeros(1, np.int64)
    for (start, size), (outer_start, outer_size) in zip(box[:last], outer):
        indices = start - outer_start + np.arange(size)
        leading_indices = (leading_indices[:, None] * outer_size + indices).ravel()
    # For each leading index, the box has one contiguous range of elements.
    last_start, last_size = box[last]
    outer_start, outer_size = outer[last]
    inner_elements = math.prod(outer_sizes[last + 1 :])
    range_start = (last_start - outer_start) * inner_elements
    range_size = last_size * inner_elements
    stride = outer_size * inner_elements
    length = math.gcd(range_start, range_size, stride)
    range_runs = range_start // length + np.arange(range_size // length)
    run_indices = leading_indices[:, None] * (stride // length) + range_runs
    return length, run_indices.ravel().astype(np.int32)
