"""Window exchange: a shard receives the elements that a window reads beyond its ends.

elements_of_shards(shards, devices, j, axis, start, stop, step)      # on device j
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshtf.partition import WindowStep
from meshtf.partition.cost import spans
from meshtf.runtime.lowering.padding import element_range
from meshtf.runtime.placed.collectives.primitives import send
from meshtf.runtime.placed.program.tensor_ops import concat, pad, slice_of


def elements_of_shards(
    shards: Sequence[Any],
    devices: Sequence[str],
    j: int,
    axis: int,
    start: int,
    stop: int,
    step: WindowStep,
) -> Any:
    """Returns elements [start, stop) of the sharded axis, on device j; elements beyond
    the ends of the axis have the window's fill value.
    """
    wrap = step.window.wrap
    fill = step.window.fill
    device = devices[j]
    local_size = shards[0].shape[axis]
    received = []
    for source, low, high in spans(start, stop, local_size, len(shards), wrap):
        elements = _elements(
            shards[source],
            axis,
            low,
            high,
            fill,
            devices[source],
        )
        received.append(send(elements, devices[source], device))
    if not received:
        return _elements(
            shards[j],
            axis,
            start - stop,
            0,
            fill,
            device,
        )
    joined = received[0]
    if len(received) > 1:
        joined = concat(received, axis, device)
    missing_before = 0 if wrap else max(0, -start)
    if not missing_before and joined.shape[axis] >= stop - start:
        return joined
    low = -missing_before
    return _elements(
        joined,
        axis,
        low,
        low + stop - start,
        fill,
        device,
    )


def _elements(
    x: Any,
    axis: int,
    start: int,
    stop: int,
    fill: float,
    device: str,
) -> Any:
    """Returns elements [start, stop) of an axis, padded with `fill` beyond its ends."""
    elements = element_range(x.shape, axis, start, stop)
    if elements.begin is not None:
        x = slice_of(x, elements.begin, elements.sizes, device)
    return x if elements.pads is None else pad(x, elements.pads, fill, device)
