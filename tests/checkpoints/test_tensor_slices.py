"""Boxes: split, and located in arrays, against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from meshtf.checkpoints.tensor_slices import (
    contiguous_runs,
    full_box,
    num_elements,
    overlap,
    parse_spans,
    slice_spec,
    slices_in,
    spans,
    split,
)


def draw(rng, outer):
    """Returns a box within another."""
    starts = [rng.integers(low, low + size) for low, size in outer]
    return tuple(
        (int(a), int(rng.integers(1, low + size - a + 1)))
        for a, (low, size) in zip(starts, outer)
    )


@pytest.mark.parametrize("rank", [0, 1, 2, 3, 4])
def test_boxes_are_parts_of_arrays(rank, rng):
    for _ in range(30):
        sizes = tuple(int(n) for n in rng.integers(1, 6, rank))
        array = np.arange(math.prod(sizes)).reshape(sizes)
        outer = draw(rng, full_box(sizes))
        box = draw(rng, outer)
        values = array[slices_in(outer, full_box(sizes))]
        expected = array[slices_in(box, full_box(sizes))]
        np.testing.assert_array_equal(values[slices_in(box, outer)], expected)
        length, rows = contiguous_runs(box, outer)
        np.testing.assert_array_equal(
            values.reshape(-1, length)[rows].ravel(), expected.ravel()
        )
        assert overlap(box, outer) == overlap(outer, box) == box
        assert parse_spans(spans(box)) == box
        assert slice_spec(sizes, full_box(sizes)) == ""


@pytest.mark.parametrize("max_elements", [1, 3, 7, 100])
def test_slices_cover_the_full_array(max_elements, rng):
    for _ in range(20):
        outer = tuple(
            (int(a), int(n))
            for a, n in zip(rng.integers(0, 9, 3), rng.integers(1, 6, 3))
        )
        boxes = list(split(outer, max_elements))
        assert all(num_elements(chunk_box) <= max_elements for chunk_box in boxes)
        values = np.arange(num_elements(outer)).reshape([n for _, n in outer])
        joined = np.concatenate(
            [values[slices_in(chunk_box, outer)].ravel() for chunk_box in boxes]
        )
        np.testing.assert_array_equal(joined, values.ravel())
        assert len(boxes) == 1 or all(
            overlap(a, b) is None for a, b in zip(boxes, boxes[1:])
        )


def test_boxes_that_do_not_meet():
    assert overlap(((0, 4), (0, 4)), ((0, 4), (4, 2))) is None
