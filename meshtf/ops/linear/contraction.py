"""The contraction of two TensorFlow tensors with named axes, as one matmul: their product,
summed over the names that the output lacks.

There are four kinds of names:

    batch             in both inputs and the output
    summed            in both inputs, and not in the output
    free names of x   in x and the output
    free names of y   in y and the output

Without batch names it is one 2-D matmul, which TensorFlow runs up to twice as fast as a batch
of small ones. Transposes are added only where the order of names needs them.

    contract(x, ("batch", "length", "d"), w, ("d", "heads", "key"),
             out_names=("batch", "length", "heads", "key"))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.graph import LocalContext
from meshtf.names import Shape
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.broadcasting import broadcast_call
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
    out_names: Names,
    context: LocalContext | None = None,
) -> Any:
    """Returns the product of x and y, summed over the names that `out_names` lacks.

    Args:
      x: a TensorFlow tensor.
      x_names: the names of the axes of x.
      y: a TensorFlow tensor.
      y_names: the names of the axes of y.
      out_names: the names of the axes of the result. It includes all names of only one input.
      context: the shard, whose device selects the matmul kernel; None: TensorFlow does.
    """
    shared_names = [name for name in x_names if name in y_names]
    summed_names = [name for name in shared_names if name not in out_names]
    batch = [name for name in out_names if name in shared_names]
    x_free_names = [name for name in x_names if name not in shared_names]
    y_free_names = [name for name in y_names if name not in shared_names]
    left = _Operand(x, x_names, x_free_names)
    right = _Operand(y, y_names, y_free_names)
    if not summed_names:
        return _product(left, right, out_names)  # an elementwise or outer product
    if not x_free_names and not y_free_names:
        return _dot(left, right, summed_names, out_names)
    is_x_first = _starts_with(out_names, batch + x_free_names)
    is_y_first = _starts_with(out_names, batch + y_free_names)
    if is_y_first and not is_x_first:
        # The matmul of y and x is the output without a transpose.
        left, right = right, left
    return _contract_matrices(
        left, right, batch=batch, out_names=out_names, context=context
    )


def _contract_matrices(
    left: _Operand,
    right: _Operand,
    batch: list[str],
    out_names: Names,
    context: LocalContext | None,
) -> Any:
    """Returns the contraction, computed as a matmul [batch, left free names, summed] times
    [batch, summed, right free names].
    """
    sizes = dict(zip(left.names, left.x.shape))
    sizes.update(zip(right.names, right.x.shape))
    # Free names are in the order of the output, so that it need not be transposed.
    left_free = [name for name in out_names if name in left.free_names]
    right_free = [name for name in out_names if name in right.free_names]
    summed_names = [
        name for name in left.names if name in right.names and name not in out_names
    ]
    # None: a tensor in another order, which has to be copied to become a batch of matrices.
    left_is_transposed = _is_transposed(left.names, batch, left_free, summed_names)
    right_is_transposed = _is_transposed(right.names, batch, summed_names, right_free)
    if left_is_transposed is None and right_is_transposed is None:
        # With summed names in the order of the right input, perhaps only the left one has
        # to be copied.
        summed_names = [name for name in right.names if name in summed_names]
    a, transpose_a = _as_matrix(
        left, batch, row_names=left_free, column_names=summed_names, sizes=sizes
    )
    b, transpose_b = _as_matrix(
        right, batch, row_names=summed_names, column_names=right_free, sizes=sizes
    )
    z = fast_matmul(
        a, b, transpose_a=transpose_a, transpose_b=transpose_b, context=context
    )
    z_names = (*batch, *left_free, *right_free)
    z = reshape(z, [sizes[name] for name in z_names])
    return _transpose_to(z, z_names, out_names)


def _as_matrix(
    operand: _Operand,
    batch: list[str],
    row_names: list[str],
    column_names: list[str],
    sizes: dict[str, int],
) -> tuple[Any, bool]:
    """Returns an input as a batch of matrices [*batch, rows, columns], and whether they are
    stored transposed, as [*batch, columns, rows].

    Args:
      operand: the input.
      batch: the batch names.
      row_names: the names that are merged into the rows.
      column_names: the names that are merged into the columns.
      sizes: the size of each name.
    """
    x = operand.x
    is_transposed = _is_transposed(operand.names, batch, row_names, column_names)
    if is_transposed is None:
        is_transposed = False
        x = _transpose_to(x, operand.names, (*batch, *row_names, *column_names))
    batch_sizes = [sizes[name] for name in batch]
    num_rows = math.prod(sizes[name] for name in row_names)
    num_columns = math.prod(sizes[name] for name in column_names)
    if is_transposed:
        matrix_sizes = [num_columns, num_rows]
    else:
        matrix_sizes = [num_rows, num_columns]
    return reshape(x, [*batch_sizes, *matrix_sizes]), is_transposed


def _is_transposed(
    names: Names, batch: list[str], row_names: list[str], column_names: list[str]
) -> bool | None:
    """Returns whether a tensor is stored as transposed matrices.

    It is True for [*batch, columns, rows], False for [*batch, rows, columns], and None for
    other orders, which have to be transposed.

    Args:
      names: the names of the tensor's axes.
      batch: the batch names.
      row_names: the names that are merged into the rows.
      column_names: the names that are merged into the columns.
    """
    if list(names) == [*batch, *row_names, *column_names]:
        return False
    if list(names) == [*batch, *column_names, *row_names]:
        return True
    return None


def _starts_with(out_names: Names, names: Sequence[str]) -> bool:
    """Returns whether `names` are the first names of `out_names`."""
    return list(out_names[: len(names)]) == list(names)


def _product(left: _Operand, right: _Operand, out_names: Names) -> Any:
    """Returns the elementwise or outer product of two tensors, with the axes `out_names`."""
    left_shape = Shape(zip(left.names, left.x.shape))
    right_shape = Shape(zip(right.names, right.x.shape))
    sizes = {dim.name: dim.size for dim in (*left_shape, *right_shape)}
    out = Shape((name, sizes[name]) for name in out_names)
    xs = [left.x, right.x]
    return broadcast_call(tf.multiply, xs, [left_shape, right_shape], out)


def _dot(
    left: _Operand, right: _Operand, summed_names: list[str], out_names: Names
) -> Any:
    """Returns the contraction of two tensors without free names, computed as a product and
    a sum over `summed_names`.
    """
    dtype = left.x.dtype
    # As in a matmul, which accumulates in float32. In 16 bits each term would be rounded.
    left = left._replace(x=widen(left.x))
    right = right._replace(x=widen(right.x))
    terms = _product(left, right, left.names)
    axes = [left.names.index(name) for name in summed_names]
    z = tf.cast(tf.reduce_sum(terms, axes), dtype)
    remaining_names = tuple(name for name in left.names if name not in summed_names)
    return _transpose_to(z, remaining_names, out_names)


def _transpose_to(x: Any, names: Names, out_names: Names) -> Any:
    """Returns x with its axes in the order of `out_names`, which has the same names."""
    if names == out_names:
        return x
    order = [names.index(name) for name in out_names]
    return transpose(x, order)
