"""The contraction of two TensorFlow tensors by names, as one matmul.

Names fall into four groups: batch (both inputs and the output), summed (both inputs), and
free names of x and of y (one input and the output). Without batch names it is one 2-D
matmul, which TensorFlow runs up to twice as fast as a batch of small ones. Transposes are
added only where the order of names needs them.

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

    A name of only one input must be in `out`; `context` selects the matmul kernel.
    """
    summed = [n for n in x_names if n in y_names and n not in out]
    batch = [n for n in out if n in x_names and n in y_names]
    x_free = [n for n in x_names if n not in y_names]
    y_free = [n for n in y_names if n not in x_names]
    if not summed:
        return _align(x, x_names, out) * _align(y, y_names, out)
    if not x_free and not y_free:
        return _dot(x, x_names, y, y_names, summed, out)
    if not _starts_with(out, batch + x_free) and _starts_with(out, batch + y_free):
        # As y x, whose output needs no transpose.
        return _contract_matrices(
            (y, y_names, y_free), (x, x_names, x_free), batch, out, context
        )
    return _contract_matrices(
        (x, x_names, x_free), (y, y_names, y_free), batch, out, context
    )


def _contract_matrices(
    left: tuple[Any, Names, list[str]],
    right: tuple[Any, Names, list[str]],
    batch: list[str],
    out: Names,
    context: LocalContext | None,
) -> Any:
    """Returns the contraction as a matmul of left and right, each a tensor with its names
    and its free names.
    """
    x, x_names, x_free = left
    y, y_names, y_free = right
    sizes = dict(zip(x_names, x.shape)) | dict(zip(y_names, y.shape))
    # Free names in the order of the output, which saves its transpose.
    x_free = [n for n in out if n in x_free]
    y_free = [n for n in out if n in y_free]
    summed = [n for n in x_names if n in y_names and n not in out]
    x_needs_transpose = _is_transposed(x_names, batch, x_free, summed) is None
    y_needs_transpose = _is_transposed(y_names, batch, summed, y_free) is None
    if x_needs_transpose and y_needs_transpose:
        summed = [n for n in y_names if n in summed]
    a, transpose_a = _as_matrix(x, x_names, batch, x_free, summed, sizes)
    b, transpose_b = _as_matrix(y, y_names, batch, summed, y_free, sizes)
    z = fast_matmul(a, b, transpose_a, transpose_b, context)
    z_names = (*batch, *x_free, *y_free)
    z = reshape(z, [sizes[n] for n in z_names])
    return _transpose_to(z, z_names, out)


def _as_matrix(
    x: Any,
    names: Names,
    batch: list[str],
    rows: list[str],
    columns: list[str],
    sizes: dict[str, int],
) -> tuple[Any, bool]:
    """Returns x as a (batch of) matrices `[*batch, rows, columns]`, and whether they are
    stored transposed.
    """
    is_transposed = _is_transposed(names, batch, rows, columns)
    if is_transposed is None:
        is_transposed = False
        x = transpose(x, [names.index(n) for n in (*batch, *rows, *columns)])
    num_rows = math.prod(sizes[n] for n in rows)
    num_columns = math.prod(sizes[n] for n in columns)
    if is_transposed:
        matrix = [num_columns, num_rows]
    else:
        matrix = [num_rows, num_columns]
    return reshape(x, [*(sizes[n] for n in batch), *matrix]), is_transposed


def _is_transposed(
    names: Names, batch: list[str], rows: list[str], columns: list[str]
) -> bool | None:
    """Whether a tensor with these names is stored as transposed matrices; None if it is
    stored neither way and needs a transpose.
    """
    if list(names) == [*batch, *rows, *columns]:
        return False
    if list(names) == [*batch, *columns, *rows]:
        return True
    return None


def _starts_with(out: Names, names: Sequence[str]) -> bool:
    return list(out[: len(names)]) == list(names)


def _align(x: Any, names: Names, out: Names) -> Any:
    """Returns x with its axes in the order in which they broadcast to `out`."""
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
    """Returns inner products along the names `summed`: a multiplication and a sum."""
    dtype = x.dtype
    if dtype in (tf.bfloat16, tf.float16):  # otherwise each term would be rounded
        x = tf.cast(x, tf.float32)
        y = tf.cast(y, tf.float32)
    terms = x * _align(y, y_names, x_names)
    z = tf.reduce_sum(terms, [x_names.index(n) for n in summed])
    z = tf.cast(z, dtype)
    rest = [n for n in x_names if n not in summed]
    return _transpose_to(z, tuple(rest), out)


def _transpose_to(x: Any, names: Names, out: Names) -> Any:
    """Returns x with its axes in the order of `out`, which has the same names."""
    if names == out:
        return x
    return transpose(x, [names.index(n) for n in out])
