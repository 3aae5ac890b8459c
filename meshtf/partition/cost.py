"""Sizes of shards, and bytes that reshards send.

`bytes_received` counts what one device receives, by the formulas of ring algorithms, of
p devices that hold n bytes each before the reshard: all_reduce 2n(p-1)/p,
reduce_scatter and all_to_all n(p-1)/p, all_gather n(p-1), slice and drop nothing. In a
collective_permute one of p devices has its new shard already. Of a send, one of p
stages receives n bytes; of a broadcast, all stages but one: the mean over the stages
counts.

>>> from meshtf.mesh import Mesh, Partial, Sharded, Replicated
>>> from meshtf.names import Shape
>>> mesh = Mesh("data:4")
>>> local_shape(Shape("batch:8;d:3"), (Sharded("batch"),), mesh)
[batch:2 d:3]
>>> bytes_received("all_reduce", 400, 4)
600.0
"""

from __future__ import annotations

import math

from meshtf.graph import Spec, Window
from meshtf.mesh import Mesh, Placement, Sharded
from meshtf.names import Dimension, Shape, dtype_bytes


def local_shape(shape: Shape, placement: Placement, mesh: Mesh) -> Shape:
    """Returns the shape of one shard."""
    num_shards: dict[str, int] = {}
    for state, axis_size in zip(placement, mesh.axes.values()):
        if isinstance(state, Sharded):
            num_shards[state.dim] = num_shards.get(state.dim, 1) * axis_size
    if not num_shards:
        return shape
    return Shape(Dimension(d.name, d.size // num_shards.get(d.name, 1)) for d in shape)


def local_size(shape: Shape, placement: Placement, mesh: Mesh) -> float:
    """Returns the number of elements of one shard."""
    num_shards = 1
    for state, axis_size in zip(placement, mesh.axes.values()):
        if isinstance(state, Sharded):
            num_shards *= axis_size
    return shape.size / num_shards


def local_bytes(spec: Spec, placement: Placement, mesh: Mesh) -> float:
    """Returns the bytes of one shard."""
    return local_size(spec.shape, placement, mesh) * dtype_bytes(spec.dtype)


def spans(
    start: int, stop: int, size: int, num_shards: int, wrap: bool = False
) -> list[tuple[int, int, int]]:
    """Returns where the elements [start, stop) of a sharded dimension are, in order, as
    (shard, start in the shard, stop in the shard).

    Args:
      start: index of an element, in the global tensor; it may be negative.
      stop: index after the last element; it may be beyond the end.
      size: of the dimension in one shard.
      num_shards: number of shards of the dimension.
      wrap: whether elements beyond one end are those of the other end; otherwise they
        are left out.

    >>> spans(2, 9, size=4, num_shards=2)
    [(0, 2, 4), (1, 0, 4)]
    >>> spans(2, 9, size=4, num_shards=2, wrap=True)
    [(0, 2, 4), (1, 0, 4), (0, 0, 1)]
    """
    if not wrap:
        start = max(start, 0)
        stop = min(stop, size * num_shards)
    if start >= stop:
        return []
    blocks = range(start // size, math.ceil(stop / size))
    return [
        (
            block % num_shards,
            max(start - block * size, 0),
            min(stop - block * size, size),
        )
        for block in blocks
    ]


def elements_received(
    window: Window, factor_size: int, input_size: int, num_shards: int
) -> float:
    """Returns the elements that one shard receives from other shards, on average.

    Args:
      window: which elements of the input a shard of the factor reads.
      factor_size: global size of the factor.
      input_size: of the input's dimension in one shard.
      num_shards: number of shards of the factor.
    """
    windows = _windows(window, factor_size, num_shards)
    # All shards receive equally many elements, as tensors of all devices have one shape.
    length = max(high - low for low, high in windows)
    received = 0
    for shard, (low, _) in enumerate(windows):
        for source, start, stop in spans(
            low, low + length, input_size, num_shards, window.wrap
        ):
            if source != shard:
                received += stop - start
    return received / num_shards


def reads_local_only(
    window: Window, factor_size: int, input_size: int, num_shards: int
) -> bool:
    """Returns whether each shard reads exactly its own elements.

    The arguments are those of `elements_received`.
    """
    windows = _windows(window, factor_size, num_shards)
    shards = [(j * input_size, (j + 1) * input_size) for j in range(num_shards)]
    return windows == shards


def _windows(
    window: Window, factor_size: int, num_shards: int
) -> list[tuple[int, int]]:
    """Returns the input elements [low, high) that each shard of the factor reads."""
    size = factor_size // num_shards
    return [
        (window.low(j * size), window.high((j + 1) * size)) for j in range(num_shards)
    ]


def bytes_received(kind: str, size: float, num_devices: int) -> float:
    """Returns what one device receives in a reshard along an axis.

    Args:
      kind: of the reshard, such as "all_reduce".
      size: bytes (or elements) of one shard before the reshard.
      num_devices: size of the axis.
    """
    # Of the data that a ring moves, the fraction that comes from other devices.
    remote = (num_devices - 1) / num_devices
    factors = {
        "slice": 0.0,
        "all_reduce": 2 * remote,
        "reduce_scatter": remote,
        "all_to_all": remote,
        "collective_permute": remote,
        "all_gather": num_devices - 1.0,
        "drop": 0.0,
        "send": 1 / num_devices,
        "broadcast": remote,
    }
    return size * factors[kind]
