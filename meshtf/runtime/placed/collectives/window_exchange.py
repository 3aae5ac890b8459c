"""The exchange of rows between neighbours: what a window reads beyond a slice's own
rows.

Example:

    rows_of_slices(slices, devices, j, axis, start, stop, step)      # on device j, filled outside
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshtf.partition import WindowStep
from meshtf.partition.cost import spans
from meshtf.runtime.lowering.padding import rows_of
from meshtf.runtime.placed.collectives.primitives import send
from meshtf.runtime.placed.program.tensor_ops import concat, pad, take


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
        own = _rows(xs[q], axis, low, high, fill, devices[q])
        pieces.append(send(own, devices[q], devices[j]))
    if not pieces:
        return _rows(xs[j], axis, -(stop - start), 0, fill, devices[j])
    rows = pieces[0] if len(pieces) == 1 else concat(pieces, axis, devices[j])
    before, have = 0 if step.window.wrap else max(0, -start), rows.shape[axis]
    if not before and have >= stop - start:
        return rows
    return _rows(rows, axis, -before, stop - start - before, fill, devices[j])


def _rows(x: Any, axis: int, start: int, stop: int, fill: float, device: str) -> Any:
    """Returns rows [start, stop) of an axis, `fill` where there are none."""
    rows = rows_of(x.shape, axis, start, stop)
    if rows.begin is not None:
        x = take(x, rows.begin, rows.sizes, device)
    return x if rows.pads is None else pad(x, rows.pads, fill, device)
