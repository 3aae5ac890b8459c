"""Sizes of factors and shards, and the bytes that reshards communicate.

`bytes_received` returns the mean number of bytes that one of p devices receives if each
device has a shard of n bytes before the reshard. The formulas are those of ring algorithms:

    slice, drop, keep              0            every device has its result
    all_gather                     n(p-1)
    all_reduce                     2n(p-1)/p
    reduce_scatter, all_to_all     n(p-1)/p
    collective_permute             n(p-1)/p     one device has its new shard already
    send                           n/p          one pipeline stage receives
    broadcast                      n(p-1)/p     all pipeline stages but one receive

>>> from meshtf.mesh import Mesh, Placement
>>> from meshtf.names import Shape
>>> mesh = Mesh("data:4")
>>> local_shape(Shape("batch:8;d:3"), Placement("batch:data"), mesh)
[batch:2 d:3]
>>> bytes_received("all_reduce", 400, 4)
600.0
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from meshtf.graph import Op, OpWithStatistics, Spec, Window, factor_of, window_of
from meshtf.mesh import Mesh, Placement
from meshtf.mesh.shard_sizes import has_empty_shard, shard_size
from meshtf.names import Dimension, Shape, dtype_bytes
from meshtf.partition.reshard_table import placement_after, reshards

FREE_RESHARDS = ("slice", "drop", "keep")  # each device has its result already
_REMOTE_KINDS = ("reduce_scatter", "all_to_all", "collective_permute", "broadcast")
_MAX_CACHED = 20_000  # sizes of shards; then the oldest are dropped


def local_shape(shape: Shape, placement: Placement, mesh: Mesh) -> Shape:
    """Returns the shape of one shard. If an axis does not divide a size, this is the shape of
    the first shard: later ones have fewer elements, and are stored with padding.
    """
    if not placement.shards:
        return shape
    return Shape(
        Dimension(dim.name, _local_dim(dim, placement, mesh.axes)) for dim in shape
    )


def _local_dim(dim: Dimension, placement: Placement, axes: Mapping[str, int]) -> int:
    """Returns the size of a dimension in one shard, with padding. `axes` are the names and
    sizes of the mesh's axes.
    """
    size = dim.size
    for axis in placement.shards.get(dim.name, ()):
        size = shard_size(size, axes[axis])
    return size


def local_size(shape: Shape, placement: Placement, mesh: Mesh) -> float:
    """Returns the number of elements of one shard, with padding. It is a float, since the
    planner adds it to costs.
    """
    if not placement.shards:
        return float(shape.size)
    return _local_size(shape, placement, tuple(mesh.axes.items()))


@functools.lru_cache(maxsize=_MAX_CACHED)
def _local_size(
    shape: Shape, placement: Placement, axes: tuple[tuple[str, int], ...]
) -> float:
    """Returns what `local_size` does, for axes with these names and sizes."""
    sizes = (_local_dim(dim, placement, dict(axes)) for dim in shape)
    return float(math.prod(sizes))


def local_bytes(spec: Spec, placement: Placement, mesh: Mesh) -> float:
    """Returns the size of one shard in bytes."""
    return local_size(spec.shape, placement, mesh) * dtype_bytes(spec.dtype)


def received_elements(mesh: Mesh, spec: Spec, old: Placement, new: Placement) -> float:
    """Returns the elements that one device receives in a reshard from `old` to `new`."""
    total = 0.0
    if old == new:
        return total
    placement = old
    for reshard in reshards(mesh.axes, old, new, spec.shape):
        size = local_size(spec.shape, placement, mesh)
        total += bytes_received(reshard.kind, size, reshard.num_exchanging(mesh.axes))
        placement = placement_after(placement, reshard)
    return total


def factor_sizes(op: Op, ins: Sequence[Spec], outs: Sequence[Spec]) -> dict[str, int]:
    """Returns {factor: its global size}: the size in an output or, for a factor that no
    output has, in the first input that has the factor.
    """
    sizes = {}
    for x in reversed(ins):
        for dim in x.shape:
            sizes[factor_of(op, dim.name)] = dim.size
    for y in outs:
        for dim in y.shape:
            sizes[dim.name] = dim.size
    return sizes


def all_sizes(op: Op, ins: Sequence[Spec], outs: Sequence[Spec]) -> dict[str, set[int]]:
    """Returns {factor: its sizes in inputs and outputs}, which may differ."""
    sizes: dict[str, set[int]] = {}
    for x in ins:
        for dim in x.shape:
            sizes.setdefault(factor_of(op, dim.name), set()).add(dim.size)
    for y in outs:
        for dim in y.shape:
            sizes.setdefault(dim.name, set()).add(dim.size)
    return sizes


def can_pad(
    factor: str, op: Op, ins: Sequence[Spec], axis_sizes: Sequence[int]
) -> bool:
    """Returns whether shards of a factor may end with padding: no input is to be gathered (see
    `Op.padding_value`). Windows end at the last element, not at the padding, unless they wrap
    around, or the shards of several axes begin at irregular distances.

    Args:
      factor: the factor.
      op: the op.
      ins: the specs of its inputs.
      axis_sizes: the sizes of the axes that shard the factor, in any order.
    """
    if isinstance(op, OpWithStatistics) and factor in op.statistics_dims():
        # Statistics meet, whatever the role of the factor is.
        if type(op).padding_value is Op.padding_value:
            return False
    for i, x in enumerate(ins):
        for dim in x.shape:
            if factor_of(op, dim.name) != factor:
                continue
            window = window_of(op, i, dim.name)
            if window is not None and (window.wrap or len(axis_sizes) > 1):
                return False
            value = op.padding_value(i, factor)
            if value == "gather" or (
                value == "first" and has_empty_shard(dim.size, axis_sizes)
            ):
                return False
    return True


def spans(
    start: int,
    stop: int,
    shard_size: int,
    num_shards: int,
    wrap: bool = False,
    size: int | None = None,
) -> list[tuple[int, int, int]]:
    """Returns the slices of shards that together are the elements [start, stop) of a
    sharded dimension, in order: (shard index, start in the shard, stop in the shard).

    Args:
      start: the global index of the first element; it may be negative.
      stop: the global index after the last element; it may be beyond the end.
      shard_size: the size of the dimension in one shard.
      num_shards: the number of shards of the dimension.
      wrap: whether indices beyond one end continue at the other end; otherwise they are
        left out.
      size: the size of the dimension without the padding of shards; None: there is none.

    >>> spans(2, 9, shard_size=4, num_shards=2)
    [(0, 2, 4), (1, 0, 4)]
    >>> spans(2, 9, shard_size=4, num_shards=2, wrap=True)
    [(0, 2, 4), (1, 0, 4), (0, 0, 1)]
    """
    if not wrap:
        start = max(start, 0)
        stop = min(stop, shard_size * num_shards if size is None else size)
    if start >= stop:
        return []
    # Block k has the elements from k * shard_size to (k + 1) * shard_size. With `wrap`, k
    # may be negative or beyond the last shard: block k is shard k % num_shards.
    blocks = range(start // shard_size, math.ceil(stop / shard_size))
    return [
        (
            block % num_shards,
            max(start - block * shard_size, 0),
            min(stop - block * shard_size, shard_size),
        )
        for block in blocks
    ]


def elements_received(
    window: Window, factor_size: int, input_size: int, num_shards: int
) -> float:
    """Returns the mean number of elements that a shard receives from other shards if an op
    such as a convolution reads windows of a sharded dimension.

    Args:
      window: the elements of the input that a shard of the output reads.
      factor_size: the global size of the dimension in the output.
      input_size: the size of the dimension in one shard of the input.
      num_shards: the number of shards of the dimension.
    """
    windows = _windows(window, factor_size, num_shards)
    # Local tensors have the same shape on all devices, so each device receives the
    # number of elements in the longest window, from the start of the local window on.
    length = max(high - low for low, high in windows)
    received = 0
    for shard, (low, _) in enumerate(windows):
        slices = spans(
            start=low,
            stop=low + length,
            shard_size=input_size,
            num_shards=num_shards,
            wrap=window.wrap,
        )
        for source, start, stop in slices:
            if source != shard:
                received += stop - start
    return received / num_shards


def reads_local_only(
    window: Window, factor_size: int, input_size: int, num_shards: int
) -> bool:
    """Returns whether each shard reads exactly its own elements, and none is padding, which
    an exchange would replace by `window.fill`.

    Args:
      window: the elements of the input that a shard of the output reads.
      factor_size: the global size of the dimension in the output.
      input_size: the global size of the dimension in the input.
      num_shards: the number of shards of the dimension.
    """
    if input_size % num_shards:
        return False
    local_size = input_size // num_shards
    windows = _windows(window, factor_size, num_shards)
    shards = [(i * local_size, (i + 1) * local_size) for i in range(num_shards)]
    return windows == shards


def _windows(
    window: Window, factor_size: int, num_shards: int
) -> list[tuple[int, int]]:
    """Returns, for each shard of the output, the input elements [low, high) that it reads."""
    local_size = shard_size(factor_size, num_shards)
    starts = [shard * local_size for shard in range(num_shards)]
    return [(window.low(start), window.high(start + local_size)) for start in starts]


def bytes_received(kind: str, size: float, num_devices: float) -> float:
    """Returns the bytes that one device receives in a reshard along a mesh axis.

    Args:
      kind: the kind of reshard, such as "all_reduce".
      size: the bytes of one shard before the reshard. If it is the number of elements,
        the result is a number of elements too.
      num_devices: the number of devices: `Reshard.num_exchanging`.
    """
    return size * float(bytes_per_byte(kind, num_devices))


def bytes_per_byte(kind: str, num_devices: Any) -> Any:
    """Returns the bytes that one device receives in a reshard, for each byte of its shard
    before the reshard.

    Args:
      kind: the kind of reshard, such as "all_reduce".
      num_devices: the size of the axis: a number, or an array of sizes.
    """
    if kind in FREE_RESHARDS:
        return 0.0
    if kind == "all_gather":
        return num_devices - 1.0
    if kind == "send":
        return 1 / num_devices
    # The fraction (p - 1) / p of the table in the header.
    remote = (num_devices - 1) / num_devices
    if kind == "all_reduce":
        return 2 * remote
    assert kind in _REMOTE_KINDS, kind
    return remote
