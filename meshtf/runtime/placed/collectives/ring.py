"""Ring collectives, for devices with separate memories.

Device j sends only to device j + 1, and the last device to the first. In a reduce_scatter
or an all_gather among p devices, each device receives (p - 1)/p of the tensor, which is
optimal (Patarasuk and Yuan, 2009). An all_to_all uses no ring: each shard is sent directly
to its target.

    all_reduce([x0, x1], ("/device:GPU:0", "/device:GPU:1"), "sum")

In all functions, `xs` are the tensors of a group of devices, in the order of `devices`, and
`kind` is the reduction: "sum", "max" or "min".
Tensors are sliced on the device that sends them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from meshtf.runtime.placed.collectives.primitives import combine, send
from meshtf.runtime.placed.program import tensor_ops
from meshtf.runtime.placed.program.tensor_ops import concat, reshape, split


def all_reduce(xs: Sequence[Any], devices: Sequence[str], kind: str) -> list[Any]:
    """Returns the reduced tensor on each device: a reduce_scatter and an all_gather of
    flat chunks.

    The sizes of chunks differ by at most one element; a tensor with fewer elements than
    devices has one chunk for each element. So no padding is sent.
    """
    shape = xs[0].shape
    size = shape.num_elements()
    num_chunks = min(len(xs), size)
    bounds = [size * j // num_chunks for j in range(num_chunks + 1)]
    sizes = [stop - start for start, stop in itertools.pairwise(bounds)]
    sizes_or_count: list[int] | int = sizes
    if len(set(sizes)) == 1:
        sizes_or_count = num_chunks  # equal chunks: a simpler op
    chunks = []  # chunks[device index][chunk index]
    for x, device in zip(xs, devices):
        flat = reshape(x, [-1], device)
        chunks.append(split(flat, sizes_or_count, axis=0, device=device))
    reduced_chunks = reduce_chunks(chunks, devices, kind)
    outputs = []
    for all_chunks, device in zip(gather_chunks(reduced_chunks, devices), devices):
        flat = concat(all_chunks, axis=0, device=device)
        outputs.append(reshape(flat, shape, device))
    return outputs


def reduce_scatter(
    xs: Sequence[Any],
    devices: Sequence[str],
    kind: str,
    axis: int,
) -> list[Any]:
    """Returns shard j of the reduced tensor on device j."""
    return reduce_chunks(_split_each(xs, devices, axis), devices, kind)


def all_gather(xs: Sequence[Any], devices: Sequence[str], axis: int) -> list[Any]:
    """Returns all tensors concatenated along an axis, on each device."""
    outputs = []
    for shards, device in zip(gather_chunks(xs, devices), devices):
        outputs.append(concat(shards, axis, device))
    return outputs


def stack(xs: Sequence[Any], devices: Sequence[str]) -> list[Any]:
    """Returns all tensors stacked along a new first axis, on each device."""
    tensors_of_devices = gather_chunks(xs, devices)
    return [
        tensor_ops.stack(tensors, device)
        for tensors, device in zip(tensors_of_devices, devices)
    ]


def all_to_all(
    xs: Sequence[Any],
    devices: Sequence[str],
    split_axis: int,
    concat_axis: int,
) -> list[Any]:
    """Returns, on device j, shard j along `split_axis` of every tensor, concatenated
    along `concat_axis`.
    """
    shards = _split_each(xs, devices, split_axis)  # shards[source index][target index]
    outputs = []
    for j, target in enumerate(devices):
        received = [
            send(shards_of_source[j], source, target)
            for shards_of_source, source in zip(shards, devices)
        ]
        outputs.append(concat(received, concat_axis, target))
    return outputs


def _split_each(
    xs: Sequence[Any], devices: Sequence[str], axis: int
) -> list[list[Any]]:
    """Returns the shards of each device's tensor, one shard for each device."""
    return [split(x, len(xs), axis, device) for x, device in zip(xs, devices)]


def reduce_chunks(
    chunks: Sequence[Sequence[Any]], devices: Sequence[str], kind: str
) -> list[Any]:
    """Returns each chunk reduced over all devices, chunk j on device j.

    Args:
      chunks: for each device, all chunks of its tensor.
      devices: the devices, in the order of the ring.
      kind: "sum", "max" or "min".
    """
    num_devices = len(devices)
    totals = []
    for j in range(len(chunks[0])):
        # The partial sum starts on device j + 1 and goes once around the ring, to device j.
        total = chunks[(j + 1) % num_devices][j]
        for step in range(1, num_devices):
            source = (j + step) % num_devices
            target = (j + step + 1) % num_devices
            received = send(total, devices[source], devices[target])
            total = combine(kind, received, chunks[target][j], devices[target])
        totals.append(total)
    return totals


def gather_chunks(chunks: Sequence[Any], devices: Sequence[str]) -> list[list[Any]]:
    """Returns on each device the list of all chunks, given chunk j on device j: an
    all-gather without the concatenation.
    """
    num_devices = len(devices)
    # chunks_of[device index][chunk index]
    chunks_of: list[list[Any]] = [[None] * len(chunks) for _ in devices]
    for j, x in enumerate(chunks):
        # Chunk j goes from device j around the ring.
        chunks_of[j][j] = x
        for step in range(num_devices - 1):
            source = (j + step) % num_devices
            target = (j + step + 1) % num_devices
            x = send(x, devices[source], devices[target])
            chunks_of[target][j] = x
    return chunks_of
