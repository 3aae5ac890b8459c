"""The product of two TensorFlow tensors by names, as the fastest matrix product there
is.

Names fall into four groups: batch (both inputs and the output), summed (both inputs),
and free (one input and the output). Without batch names it is one 2-D product, which
TensorFlow runs up to twice as fast as a batch of small ones; transposes are made only
where the order of names asks for them.

    contract(x, ("batch", "length", "d"), w, ("d", "heads", "key"),
             ("batch", "length", "heads", "key"))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import LocalContext
from meshtf.ops.common.local_reshape import reshape, transpose
from meshtf.ops.linear.matmul_kernels import fast_matmul

Names = tuple[str, ...]


def contract(
    x: Any,
    x_names: Names,
    y: Any,
    y_names: Names,
    out: Names,
    context: LocalContext | None = None,
) -> Any:
    """Returns the product of x and y, summed over the names that `out` lacks.

    A name of only one input must be in `out`; `context` says which kernel will compute it.
    """
    sizes = dict(zip(x_names, x.shape)) | dict(zip(y_names, y.shape))
    summed = [n for n in x_names if n in y_names and n not in out]
    batch = [n for n in out if n in x_names and n in y_names]
    x_free = [n for n in x_names if n not in y_names]
    y_free = [n for n in y_names if n not in x_names]
    if not summed:
        return _aligned(x, x_names, out) * _aligned(y, y_names, out)
    if not x_free and not y_free:
        return _dot(x, x_names, y, y_names, summed, out)
    if not _follows(out, batch + x_free) and _follows(out, batch + y_free):
        x, x_names, x_free, y, y_names, y_free = y, y_names, y_free, x, x_names, x_free
        summed = [n for n in x_names if n in summed]
    x_free, y_free = _in_order(x_free, out), _in_order(y_free, out)
    if (
        _ends(y_names, batch, summed, y_free) is None
        and _ends(x_names, batch, x_free, summed) is None
    ):
        summed = [n for n in y_names if n in summed]
    a, flip_a = _matrix(x, x_names, batch, x_free, summed, sizes)
    b, flip_b = _matrix(y, y_names, batch, summed, y_free, sizes)
    made = (*batch, *x_free, *y_free)
    z = reshape(fast_matmul(a, b, flip_a, flip_b, context), [sizes[n] for n in made])
    return z if made == out else transpose(z, [made.index(n) for n in out])


def _matrix(
    x: Any,
    names: Names,
    batch: list[str],
    rows: list[str],
    columns: list[str],
    sizes: dict[str, int],
) -> tuple[Any, bool]:
    """Returns x as (batch of) matrices of rows by columns, and whether they are
    flipped.
    """
    flipped = _ends(names, batch, rows, columns)
    if flipped is None:
        order, flipped = [*batch, *rows, *columns], False
        x = transpose(x, [names.index(n) for n in order])
    first, second = (columns, rows) if flipped else (rows, columns)
    shape = [sizes[n] for n in batch]
    shape += [math.prod(sizes[n] for n in group) for group in (first, second)]
    return reshape(x, shape), flipped


def _ends(
    names: Names, batch: list[str], rows: list[str], columns: list[str]
) -> bool | None:
    """Whether x is stored flipped; None: neither way, so that it needs a transpose."""
    if list(names) == [*batch, *rows, *columns]:
        return False
    return True if list(names) == [*batch, *columns, *rows] else None


def _follows(out: Names, order: Sequence[str]) -> bool:
    return list(out[: len(order)]) == list(order)


def _in_order(names: Sequence[str], out: Names) -> list[str]:
    """Returns free names in the order of the output where that spares its transpose."""
    return [n for n in out if n in names]


def _aligned(x: Any, names: Names, out: Names) -> Any:
    """Returns x with its axes where broadcasting to `out` finds them."""
    order = [n for n in out if n in names]
    if tuple(order) != names:
        x = transpose(x, [names.index(n) for n in order])
    if tuple(order) == out[len(out) - len(order) :]:
        return x
    sizes = dict(zip(order, x.shape))
    return reshape(x, [sizes.get(n, 1) for n in out])


def _dot(
    x: Any, x_names: Names, y: Any, y_names: Names, summed: list[str], out: Names
) -> Any:
    """Returns inner products of rows: a product and a sum, no matrices."""
    dtype = x.dtype
    if dtype in (tf.bfloat16, tf.float16):  # else each product would be rounded
        x, y = tf.cast(x, tf.float32), tf.cast(y, tf.float32)
    z = tf.reduce_sum(
        x * _aligned(y, y_names, x_names), [x_names.index(n) for n in summed]
    )
    z = tf.cast(z, dtype)
    rest = [n for n in x_names if n not in summed]
    return z if tuple(rest) == out else transpose(z, [rest.index(n) for n in out])
