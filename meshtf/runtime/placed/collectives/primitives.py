"""The building blocks of collectives: combining partial results, slicing a shard, sending
to a device.

>>> import tensorflow as tf
>>> shard(tf.range(6), axis=0, index=1, num_shards=3, device="/device:CPU:0").numpy()
array([2, 3], dtype=int32)

The argument `device` is the device that runs the op.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.runtime.placed.program.tensor_ops import add_n, binary, identity, slice_of


def combine(
    kind: str,
    x: Any,
    y: Any,
    device: str,
) -> Any:
    """Returns the sum, maximum or minimum of two partial results; for booleans, the
    maximum is "or" and the minimum is "and".
    """
    if kind == "sum":
        return binary("AddV2", x, y, device)
    if x.dtype == tf.bool:
        return binary("LogicalOr" if kind == "max" else "LogicalAnd", x, y, device)
    return binary("Maximum" if kind == "max" else "Minimum", x, y, device)


def combine_all(kind: str, xs: Sequence[Any], device: str) -> Any:
    """Returns the sum, maximum or minimum of several partial results."""
    if kind == "sum" and len(xs) > 1:
        return add_n(xs, device)
    total = xs[0]
    for x in xs[1:]:
        total = combine(kind, total, x, device)
    return total


def shard(
    x: Any,
    axis: int,
    index: int,
    num_shards: int,
    device: str,
) -> Any:
    """Returns shard `index` of `num_shards` equal shards along an axis."""
    sizes = list(x.shape)
    sizes[axis] //= num_shards
    start = [0] * len(sizes)
    start[axis] = index * sizes[axis]
    return slice_of(x, start, sizes, device)


def send(x: Any, source: str, target: str) -> Any:
    """Returns x on device `target`; x itself if both devices are the same."""
    if source == target:
        return x
    return identity(x, target)
