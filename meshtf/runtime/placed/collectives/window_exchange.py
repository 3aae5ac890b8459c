"""Window (halo) exchange: a device receives the elements of other shards that its windows
read, such as those of a convolution along a sharded dimension.

    elements_of_shards(
        shards, devices, shard_index=1, axis=0, start=3, stop=9, window=window, size=8
    )
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshtf.graph import Window
from meshtf.partition.cost import spans
from meshtf.runtime.lowering.padding.element_ranges import element_range
from meshtf.runtime.placed.collectives.primitives import send
from meshtf.runtime.placed.program.tensor_ops import concat, pad, slice_of


def elements_of_shards(
    shards: Sequence[Any],
    devices: Sequence[str],
    shard_index: int,
    axis: int,
    start: int,
    stop: int,
    window: Window,
    size: int,
) -> Any:
    """Returns the elements [start, stop) of a sharded axis, on one device.

    Elements beyond the ends of the axis are `window.fill` or, if `window.wrap`, those from
    the other end.

    Args:
      shards: the shards of a group of devices, in order.
      devices: the device of each shard.
      shard_index: the index of the device that gets the elements.
      axis: the sharded axis of the tensors.
      start: the global index of the first element; negative before the axis.
      stop: the global index after the last element.
      window: the window that reads the elements.
      size: the size of the axis over all shards, without their padding.
    """
    device = devices[shard_index]
    length = stop - start
    received_elements = []
    # Each span is a range of elements of one shard, which `device` receives.
    for source, low, high in spans(
        start,
        stop,
        shard_size=shards[0].shape[axis],
        num_shards=len(shards),
        wrap=window.wrap,
        size=size,
    ):
        source_device = devices[source]
        elements = _padded_elements(
            shards[source],
            axis,
            start=low,
            stop=high,
            fill=window.fill,
            device=source_device,
        )
        received_elements.append(send(elements, source_device, device))
    if not received_elements:
        # All elements are beyond the ends, so all are `window.fill`, as are the elements
        # [-length, 0) of any tensor.
        return _padded_elements(
            shards[shard_index],
            axis,
            start=-length,
            stop=0,
            fill=window.fill,
            device=device,
        )
    elements = received_elements[0]
    if len(received_elements) > 1:
        elements = concat(received_elements, axis, device)
    # The count of elements before the start of the axis.
    missing_before = 0 if window.wrap else max(0, -start)
    if not missing_before and elements.shape[axis] >= length:
        return elements
    return _padded_elements(
        elements,
        axis,
        start=-missing_before,
        stop=length - missing_before,
        fill=window.fill,
        device=device,
    )


def _padded_elements(
    x: Any, axis: int, start: int, stop: int, fill: float, device: str
) -> Any:
    """Returns the elements [start, stop) of an axis of x, which may begin before x and end
    after x; elements beyond the ends are `fill`.
    """
    elements = element_range(x.shape, axis, start, stop)
    if elements.begin is not None:
        x = slice_of(x, elements.begin, elements.sizes, device)
    if elements.pads is None:
        return x
    return pad(x, elements.pads, fill, device)
