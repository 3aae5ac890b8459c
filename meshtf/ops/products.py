"""Products of two matrices, in the form that TensorFlow's kernel for CPUs computes fastest.

A processor's nearest cache finds a place by the last 12 bits of an address. The rows of a matrix of
1,024 columns of float32 lie 4 KiB apart, so all elements of a column want the same place, and a
kernel that reads matrices where they are takes up to twice as long. With a few more columns, which
cost a copy and add nothing to the product, they lie apart (`python -m benchmarks.products`).

    product(a, b, flip_a=True, flip_b=False, at=at)        # transpose(a) b
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from meshtf.graph import At

_APART = 1024        # columns of float32 whose rows lie a multiple of 4 KiB apart
_MORE = 16           # columns: a line of the cache
_ROWS = 384          # of a product of more rows, the kernel copies what it reads into blocks
_SIDES = 2**15       # elements of the smaller matrix: below that a copy costs more than it saves
_DEPTH = 256         # terms of a sum: as above
_COPY = 2**22        # elements: a larger copy would show in the peak of a step's memory
_WIDE = 512          # columns: above that, what is transposed is a small part of the work


def product(a: Any, b: Any, flip_a: bool, flip_b: bool, at: At | None = None) -> Any:
  """Returns the product of two (batches of) matrices, each transposed first where flipped.

  Args:
    a: `[..., m, k]`, or `[..., k, m]` if flipped.
    b: `[..., k, n]`, or `[..., n, k]` if flipped.
    flip_a: whether a is stored transposed.
    flip_b: whether b is.
    at: says which kernel will compute it.
  """
  if a.dtype == tf.bfloat16 and not _rounds():
    wide = product(tf.cast(a, tf.float32), tf.cast(b, tf.float32), flip_a, flip_b, at)
    return tf.cast(wide, a.dtype)
  if len(a.shape) > 2:
    return _batch(a, b, flip_a, flip_b)
  if at is not None and at.product_threads and a.dtype == tf.float32:
    return _spread(a, b, flip_a, flip_b, at.product_threads)
  return tf.raw_ops.MatMul(a=a, b=b, transpose_a=flip_a, transpose_b=flip_b)


def _batch(a: Any, b: Any, flip_a: bool, flip_b: bool) -> Any:
  if a.dtype.is_complex:            # what is flipped is conjugated, too
    a, b = (tf.math.conj(v) if flip else v for v, flip in ((a, flip_a), (b, flip_b)))
  return tf.raw_ops.BatchMatMulV2(x=a, y=b, adj_x=flip_a, adj_y=flip_b)


@functools.cache
def _rounds() -> bool:
  """Whether TensorFlow rounds products of bfloat16. On processors without instructions for them it
  cuts digits off, so that all products are too small."""
  with tf.init_scope():
    a, b = (tf.constant(x, tf.bfloat16) for x in ([[1.0, 2.0**-8]], [[1.0], [1.5]]))
    return float(tf.matmul(a, b)[0, 0]) > 1.0


def _spread(a: Any, b: Any, flip_a: bool, flip_b: bool, threads: int) -> Any:
  """Returns the product of matrices whose rows are brought apart where that pays."""
  (m, k), n = a.shape[::-1] if flip_a else a.shape, b.shape[0 if flip_b else 1]
  more_a, more_b = _pays(m, k, n, flip_a, flip_b, threads)
  y = tf.raw_ops.MatMul(a=_wider(a) if more_a else a, b=_wider(b) if more_b else b,
                        transpose_a=flip_a, transpose_b=flip_b)
  return y if y.shape == (m, n) else tf.raw_ops.Slice(input=y, begin=[0, 0], size=[m, n])


def _pays(m: int, k: int, n: int, flip_a: bool, flip_b: bool, threads: int) -> tuple[bool, bool]:
  """Returns whether a and b should be wider, for a product `[m, k] [k, n]`.

  One thread reads b where it is if there are few rows. Several copy a share of b's columns each,
  whose rows then are as far apart as it has columns.
  """
  if flip_b:
    both = (not flip_a and threads == 1 and k % _APART == 0 and m <= _ROWS and m * n >= _SIDES
            and k * max(m, n) <= _COPY)
    return both, both
  apart = n % _APART == 0 and m <= _ROWS if threads == 1 else n % (2 * _APART * threads) == 0
  return (flip_a and m % _APART == 0 and k >= _DEPTH and n <= _WIDE and m * max(k, n) <= _COPY,
          apart and m * k >= _SIDES and n * max(m, k) <= _COPY)


def _wider(x: Any) -> Any:
  return tf.raw_ops.Pad(input=x, paddings=[[0, 0], [0, _MORE]])
