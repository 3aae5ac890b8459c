"""The contraction of two TensorFlow tensors with named axes, as one matmul.

Names are of four kinds: batch (in both inputs and the output), summed (in both inputs only),
and the free names of x and of y (in one input and the output). Without batch names it is one
2-D matmul, which TensorFlow runs up to twice as fast as a batch of small ones. Transposes are
added only where the order of names needs them.

    contract(x, ("batch", "length", "d"), w, ("d", "heads", "key"),
             ("batch", "length", "heads", "key"))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.graph import LocalContext
from meshtf.ops.common.local_reshape import reshape, transpose
from meshtf.ops.linear.matmul_kernels import fast_matmul

Names = tuple[str, ...]


class _Operand(NamedTuple):
    """An input of a matmul.

    Attributes:
      x: the tensor.
      names: the names of its axes.
      free_names: the names that only this input has.
    """

    x: Any
    names: Names
    free_names: list[str]


def contract(
    x: Any,
    x_names: Names,
    y: Any,
    y_names: Names,
    out: Names,
    context: LocalContext | None = None,
) -> Any:
    """Returns the product of x and y, summed over the names that `out` lacks.

    Args:
      x: a TensorFlow tensor.
      x_names: the names of its axes.
      y: a TensorFlow tensor.
      y_names: the names of its axes.
      out: the names of the axes of the result; a name of only one input must be in it.
      context: selects the matmul kernel.
    """
    shared = [name for name in x_names if name in y_names]
    summed = [name for name in shared if name not in out]
    batch = [name for name in out if name in shared]
    x_free = [name for name in x_names if name not in shared]
    y_free = [name for name in y_names if name not in shared]
    if not summed:
        return _align(x, x_names, out) * _align(y, y_names, out)
    if not x_free and not y_free:
        return _dot(x, x_names, y, y_names, summed, out)
    left = _Operand(x, x_names, x_free)
    right = _Operand(y, y_names, y_free)
    if _starts_with(out, batch + y_free) and not _starts_with(out, batch + x_free):
        # The matmul of y and x gives the output without a transpose.
        left, right = right, left
    return _contract_matrices(left, right, batch, out, context)


def _contract_matrices(
    left: _Operand,
    right: _Operand,
    batch: list[str],
    out: Names,
    context: LocalContext | None,
) -> Any:
    """Returns the contraction as a matmul of left and right."""
    sizes = dict(zip(left.names, left.x.shape))
    sizes.update(zip(right.names, right.x.shape))
    # Free names in the order of the output, which saves its transpose.
    rows = [name for name in out if name in left.free_names]
    columns = [name for name in out if name in right.free_names]
    summed = [n for n in left.names if n in right.names and n not in out]
    is_left_matrix = _is_transposed(left.names, batch, rows, summed) is not None
    is_right_matrix = _is_transposed(right.names, batch, summed, columns) is not None
    if not is_left_matrix and not is_right_matrix:
        # Both would be copied; in the order of the right input's names perhaps only one.
        summed = [name for name in right.names if name in summed]
    a, transpose_a = _as_matrix(left, batch, rows, summed, sizes)
    b, transpose_b = _as_matrix(right, batch, summed, columns, sizes)
    z = fast_matmul(a, b, transpose_a, transpose_b, context)
    z_names = (*batch, *rows, *columns)
    z = reshape(z, [sizes[name] for name in z_names])
    return _transpose_to(z, z_names, out)


def _as_matrix(
    operand: _Operand,
    batch: list[str],
    rows: list[str],
    columns: list[str],
    sizes: dict[str, int],
) -> tuple[Any, bool]:
    """Returns an input as a matrix [*batch, rows, columns], and whether it is stored
    transposed, as [*batch, columns, rows].
    """
    x = operand.x
    is_transposed = _is_transposed(operand.names, batch, rows, columns)
    if is_transposed is None:
        is_transposed = False
        x = _transpose_to(x, operand.names, (*batch, *rows, *columns))
    batch_sizes = [sizes[name] for name in batch]
    num_rows = math.prod(sizes[name] for name in rows)
    num_columns = math.prod(sizes[name] for name in columns)
    if is_transposed:
        matrix_sizes = [num_columns, num_rows]
    else:
        matrix_sizes = [num_rows, num_columns]
    return reshape(x, [*batch_sizes, *matrix_sizes]), is_transposed


def _is_transposed(
    names: Names, batch: list[str], rows: list[str], columns: list[str]
) -> bool | None:
    """Returns whether a tensor is stored as [*batch, columns, rows]; False if it is stored
    as [*batch, rows, columns]; None if it is neither and has to be transposed.
    """
    if list(names) == [*batch, *rows, *columns]:
        return False
    if list(names) == [*batch, *columns, *rows]:
        return True
    return None


def _starts_with(out: Names, names: Sequence[str]) -> bool:
    return list(out[: len(names)]) == list(names)


def _align(x: Any, names: Names, out: Names) -> Any:
    """Returns x transposed, and with axes of size 1, such that it broadcasts to `out`."""
    order = tuple(name for name in out if name in names)
    x = _transpose_to(x, names, order)
    last_names = out[len(out) - len(order) :]
    if order == last_names:  # leading axes of size 1 are implied
        return x
    sizes = dict(zip(order, x.shape))
    return reshape(x, [sizes.get(name, 1) for name in out])


def _dot(
    x: Any, x_names: Names, y: Any, y_names: Names, summed: list[str], out: Names
) -> Any:
    """Returns inner products along the names `summed`: a multiplication and a sum."""
    dtype = x.dtype
    if dtype in (tf.bfloat16, tf.float16):
        # In float32, as a matmul accumulates; otherwise each term would be rounded.
        x = tf.cast(x, tf.float32)
        y = tf.cast(y, tf.float32)
    terms = x * _align(y, y_names, x_names)
    axes = [x_names.index(name) for name in summed]
    z = tf.cast(tf.reduce_sum(terms, axes), dtype)
    remaining = tuple(name for name in x_names if name not in summed)
    return _transpose_to(z, remaining, out)


def _transpose_to(x: Any, names: Names, out: Names) -> Any:
    """Returns x with its axes in the order of `out`, which has the same names."""
    if names == out:
        return x
    order = [names.index(name) for name in out]
    return transpose(x, order)
