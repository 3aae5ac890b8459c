"""What collectives are made of: combine two partial results, take a piece, bring to a
device.

>>> import tensorflow as tf
>>> piece(tf.range(6), 0, 1, 3, "/device:CPU:0").numpy()
array([2, 3], dtype=int32)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.runtime.placed.program.tensor_ops import add_n, binary, identity, take


def combine(kind: str, x: Any, y: Any, device: str) -> Any:
    """Returns the sum, maximum or minimum of two partial results."""
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


def piece(x: Any, axis: int, j: int, parts: int, device: str) -> Any:
    """Returns piece j of `parts` equal ones along an axis."""
    size = x.shape[axis] // parts
    begin = [j * size if a == axis else 0 for a in range(len(x.shape))]
    sizes = [size if a == axis else n for a, n in enumerate(x.shape)]
    return take(x, begin, sizes, device)


def send(x: Any, source: str, target: str) -> Any:
    """Returns x on device `target`; the very tensor where it is there already."""
    return x if source == target else identity(x, target)
