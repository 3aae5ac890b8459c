"""Several reductions as one collective of a packed flat tensor, for devices with separate
memories.

    totals = all_reduce(ring, [(x0, y0), (x1, y1)], devices, "sum")     # [(x, y), (x, y)]

Here x0 is the term of x on device 0, and x the sum of x0 and x1. The tensors of one device,
such as (x0, y0), are a *bundle*. Packing and unpacking copy each element within a device,
but the latency of a collective is paid only once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from meshtf.runtime.placed.program.tensor_ops import concat, reshape, split, stack

Bundle = tuple[Any, ...]  # the tensors of one device, one for each reduction
# Packed tensors of `reduce_scatter` are [num_shards, elements of one shard of each tensor].
_SHARD_AXIS = 0
_ELEMENT_AXIS = 1


def all_reduce(
    algorithms: ModuleType,
    bundles: Sequence[Bundle],
    devices: Sequence[str],
    kind: str,
) -> list[Bundle]:
    """Returns the reduced tensors on each device.

    Args:
      algorithms: the module with the algorithms for one tensor, such as `ring`.
      bundles: the tensors of each device, all of one data type.
      devices: the devices.
      kind: "sum", "max" or "min".
    """
    packed_tensors = []
    for bundle, device in zip(bundles, devices):
        flat_tensors = [reshape(x, [-1], device) for x in bundle]
        packed_tensors.append(concat(flat_tensors, axis=0, device=device))
    shapes = [x.shape for x in bundles[0]]
    reduced_tensors = algorithms.all_reduce(packed_tensors, devices, kind)
    return [_unpack(x, shapes, device) for x, device in zip(reduced_tensors, devices)]


def reduce_scatter(
    algorithms: ModuleType,
    bundles: Sequence[Bundle],
    devices: Sequence[str],
    kind: str,
    axes: Sequence[int],
) -> list[Bundle]:
    """Returns shard j of each reduced tensor on device j. Tensor k is sharded along
    axes[k]; the other arguments are those of `all_reduce`.
    """
    num_shards = len(devices)
    packed_tensors = []
    for bundle, device in zip(bundles, devices):
        flat_tensors = [
            _flat_shards(x, axis, num_shards, device) for x, axis in zip(bundle, axes)
        ]
        packed_tensors.append(concat(flat_tensors, axis=_ELEMENT_AXIS, device=device))
    shapes = [
        _shard_shape(x.shape, axis, num_shards) for x, axis in zip(bundles[0], axes)
    ]
    reduced_tensors = algorithms.reduce_scatter(
        packed_tensors, devices, kind, _SHARD_AXIS
    )
    return [_unpack(x, shapes, device) for x, device in zip(reduced_tensors, devices)]


def _shard_shape(shape: Sequence[int], axis: int, num_shards: int) -> list[int]:
    """Returns the shape of one of `num_shards` shards along an axis."""
    sizes = list(shape)
    sizes[axis] //= num_shards
    return sizes


def _flat_shards(
    x: Any,
    axis: int,
    num_shards: int,
    device: str,
) -> Any:
    """Returns the shards of x along an axis as [num_shards, elements of a shard]."""
    shards = x
    # The elements of a shard along axis 0 are next to each other in memory already.
    if axis != 0:
        shards = stack(split(x, num_shards, axis, device), device)
    return reshape(shards, [num_shards, -1], device)


def _unpack(packed: Any, shapes: Sequence[Any], device: str) -> Bundle:
    """Returns the tensors of these shapes that were packed into one tensor."""
    sizes = [math.prod(shape) for shape in shapes]
    # [elements], or [1, elements] after a reduce_scatter
    flat = reshape(packed, [-1], device)
    tensors = split(flat, sizes, axis=0, device=device)
    return tuple(reshape(x, shape, device) for x, shape in zip(tensors, shapes))
