"""The exchange of rows between neighbours: what a window reads beyond a slice's own
rows.

Example:

    rows_of_slices(slices, devices, j, axis, start, stop, step)      # on device j, filled outside
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.partition import WindowStep
from meshtf.partition.cost import spans
from meshtf.runtime.lowering.padding import take_rows
from meshtf.runtime.placed.collectives.primitives import send


def rows_of_slices(
    xs: Sequence[Any],
    devices: Sequence[str],
    j: int,
    axis: int,
    start: int,
    stop: int,
    step: WindowStep,
) -> Any:
    """Returns rows [start, stop) of the whole that the slices make up, on device j."""
    pieces, fill = [], step.window.fill
    for q, low, high in spans(
        start, stop, xs[0].shape[axis], len(xs), step.window.wrap
    ):
        with tf.device(devices[q]):
            pieces.append(
                send(take_rows(xs[q], axis, low, high, fill), devices[q], devices[j])
            )
    with tf.device(devices[j]):
        if not pieces:
            return take_rows(xs[j], axis, -(stop - start), 0, fill)
        rows = pieces[0] if len(pieces) == 1 else tf.concat(pieces, axis)
        before, have = 0 if step.window.wrap else max(0, -start), rows.shape[axis]
        return (
            take_rows(rows, axis, -before, stop - start - before, fill)
            if (before or have < stop - start)
            else rows
        )
