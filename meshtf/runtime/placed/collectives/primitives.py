"""What collectives are made of: combine two partial results, take a piece, bring to a
device.

>>> import tensorflow as tf
>>> piece(tf.range(6), 0, 1, 3).numpy()
array([2, 3], dtype=int32)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def combine(kind: str, x: Any, y: Any) -> Any:
    """Returns the sum, maximum or minimum of two partial results."""
    if kind == "sum":
        return x + y
    if x.dtype == tf.bool:
        return tf.logical_or(x, y) if kind == "max" else tf.logical_and(x, y)
    return tf.maximum(x, y) if kind == "max" else tf.minimum(x, y)


def combine_all(kind: str, xs: Sequence[Any]) -> Any:
    """Returns the sum, maximum or minimum of several partial results."""
    if kind == "sum" and len(xs) > 1:
        return tf.raw_ops.AddN(inputs=list(xs))
    total = xs[0]
    for x in xs[1:]:
        total = combine(kind, total, x)
    return total


def piece(
    x: Any, axis: int, j: Any, parts: int, starts: dict[Any, Any] | None = None
) -> Any:
    """Returns piece j, a number or a scalar tensor, of `parts` equal ones along an
    axis.

    Args:
      x: the whole.
      axis: which of its axes is cut.
      j: which piece.
      parts: how many there are.
      starts: keeps where the pieces j of tensors start, for further ones of these
        sizes.
    """
    size, starts = x.shape[axis] // parts, {} if starts is None else starts
    key = axis, size, len(x.shape)
    if key not in starts:
        starts[key] = tf.stack(
            [j * size if a == axis else 0 for a in range(len(x.shape))]
        )
    return tf.slice(
        x, starts[key], [size if a == axis else n for a, n in enumerate(x.shape)]
    )


def send(x: Any, source: str, target: str) -> Any:
    """Returns x on device `target`; the very tensor where it is there already."""
    if source == target:
        return x
    with tf.device(target):
        return tf.identity(x)
