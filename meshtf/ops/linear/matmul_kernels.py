"""Products of two matrices, in the form that TensorFlow computes fastest on CPUs.

TensorFlow has two kernels for them, its own and that of oneDNN. Where it rewrites whole
programs for the latter, as it does by itself on many processors with AVX-512, that
computes all. Elsewhere it is several times as fast at batches of small matrices, and
where the second of few rows is stored transposed; there it is asked for by name.

A processor's nearest cache finds a place by the last 12 bits of an address. The rows of
a matrix of 1,024 columns of float32 lie 4 KiB apart, so all elements of a column want
the same place, and a kernel that reads matrices where they are takes up to twice as
long. For TensorFlow's own such a matrix gets a few more columns, which cost a copy and
add nothing to the product. For oneDNN's, which loses where it reads the second matrix
by its columns, that one is transposed first (`python -m benchmarks.ops.matmuls`).

    product(a, b, flip_a=True, flip_b=False, context=context)   # transpose(a) b
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.graph import LocalContext

_APART = 1024  # columns of float32 whose rows lie a multiple of 4 KiB apart
_MORE = 16  # columns: a line of the cache
_ROWS = 384  # of a product of more rows, the kernel copies what it reads into blocks
_SIDES = (
    2**15
)  # elements of the smaller matrix: below that a copy costs more than it saves
_DEPTH = 256  # terms of a sum: as above
_COPY = 2**22  # elements: a larger copy would show in the peak of a step's memory
_WIDE = 512  # columns: above that, what is transposed is a small part of the work
_FEW = 8  # rows or columns: a product of fewer is hardly one of matrices
_SMALL = (
    2**15
)  # terms of all sums of a matrix: of smaller ones, in a batch, oneDNN is slower
_LARGE = 2**18  # elements of the second matrix of a batch, of which oneDNN makes copies
_SHARED = (
    2**22
)  # terms of a batch that threads share: below it they wait for each other
_MANY = 512  # rows: see `_suits_onednn`; from there on a transpose of b is a small part
_EVERY_OTHER = 512  # columns of float32 whose rows lie a multiple of 2 KiB apart


def fast_matmul(
    a: Any,
    b: Any,
    transpose_a: bool,
    transpose_b: bool,
    context: LocalContext | None = None,
) -> Any:
    """Returns the product of two (batches of) matrices, each transposed first where
    flipped.

    Args:
      a: `[..., m, k]`, or `[..., k, m]` if flipped.
      b: `[..., k, n]`, or `[..., n, k]` if flipped.
      flip_a: whether a is stored transposed.
      flip_b: whether b is.
      context: says which kernel will compute it.
    """
    if a.dtype == tf.bfloat16 and not _kernel_rounds(context):
        wide = fast_matmul(
            tf.cast(a, tf.float32),
            tf.cast(b, tf.float32),
            transpose_a,
            transpose_b,
            context,
        )
        return tf.cast(wide, a.dtype)
    kernels = (
        context.matmul_kernels
        if context is not None and a.dtype == tf.float32
        else None
    )
    if kernels and not tf.executing_eagerly():
        form = _form(a, b, transpose_a, transpose_b)
        if kernels.all_onednn and _turns(form):
            b, transpose_b = tf.raw_ops.Transpose(x=b, perm=[1, 0]), False
        elif kernels.onednn and _suits_onednn(form, kernels.threads):
            return kernels.onednn(a, b, transpose_a, transpose_b)
    if len(a.shape) > 2:
        return _batch(a, b, transpose_a, transpose_b)
    if kernels and not kernels.all_onednn:
        return _spread(a, b, transpose_a, transpose_b, kernels.threads)
    return tf.raw_ops.MatMul(a=a, b=b, transpose_a=transpose_a, transpose_b=transpose_b)


class _Form(NamedTuple):
    """A product `[m, k] [k, n]` as it is stored."""

    m: int
    k: int
    n: int
    transpose_a: bool
    transpose_b: bool
    matrices: int | None  # of a batch; None: no batch


def _form(a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> _Form:
    """Returns the form of a product."""
    *batch, m, k = a.shape
    if transpose_a:
        m, k = k, m
    return _Form(
        m,
        k,
        b.shape[-2 if transpose_b else -1],
        transpose_a,
        transpose_b,
        math.prod(batch) if batch else None,
    )


def _suits_onednn(form: _Form, threads: int) -> bool:
    """Whether oneDNN's kernel is the faster one where so many threads share a product.

    It reads matrices where they are, too, and so is slow where rows of b lie 4 KiB
    apart. Where threads share a product of many rows, TensorFlow's is as fast and takes
    less memory beside.
    """
    m, k, n, transpose_a, transpose_b, count = form
    if min(m, n) < _FEW:
        return False
    if count is not None:
        return (
            m * k * n >= _SMALL
            and (threads == 1 or count * m * k * n >= _SHARED)
            and k * n < _LARGE
            and (transpose_b or n % _APART != 0)
        )
    return transpose_b and not transpose_a and (threads == 1 or m < _MANY)


def _turns(form: _Form) -> bool:
    """Whether oneDNN's kernel is so slow where b is stored transposed that a transpose
    pays.

    That is where b has few columns. Of more it makes use of each row that it brings in
    the cache.
    """
    m, k, n, transpose_a, transpose_b, count = form
    return (
        transpose_b
        and not transpose_a
        and count is None
        and k % _EVERY_OTHER == 0
        and m >= _MANY
        and n <= _WIDE
        and k * n <= _COPY
    )


def _batch(a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> Any:
    if a.dtype.is_complex:  # what is flipped is conjugated, too
        a, b = (
            tf.math.conj(v) if flip else v
            for v, flip in ((a, transpose_a), (b, transpose_b))
        )
    return tf.raw_ops.BatchMatMulV2(x=a, y=b, adj_x=transpose_a, adj_y=transpose_b)


def _kernel_rounds(context: LocalContext | None) -> bool:
    """Whether products of bfloat16 are rounded; TensorFlow's own kernel on CPUs cuts
    digits off, so that all of them are too small.
    """
    if context is None or tf.executing_eagerly() or _on_gpus():
        return _rounds(as_it_is=False)
    kernels = context.matmul_kernels
    return _rounds(as_it_is=kernels is None or not kernels.all_onednn)


@functools.cache
def _on_gpus() -> bool:
    return bool(tf.config.list_logical_devices("GPU"))


@functools.cache
def _rounds(as_it_is: bool) -> bool:
    """Whether a sum of products is rounded to bfloat16.

    Args:
      as_it_is: in a branch, which a device runs as it is; else TensorFlow may put an op
        of oneDNN in place.
    """
    with tf.init_scope():
        a, b = (tf.constant(x, tf.bfloat16) for x in ([[1.0, 2.0**-8]], [[1.0], [1.5]]))
        if as_it_is:
            branch = tf.function(tf.matmul).get_concrete_function(a, b)
            (y,) = tf.raw_ops.StatelessCase(
                branch_index=0, input=[a, b], Tout=[a.dtype], branches=[branch]
            )
        else:
            y = tf.matmul(a, b)
        return float(y[0, 0]) > 1.0


def _spread(a: Any, b: Any, transpose_a: bool, transpose_b: bool, threads: int) -> Any:
    """Returns the product of matrices whose rows are brought apart where that pays."""
    form = _form(a, b, transpose_a, transpose_b)
    more_a, more_b = _pays(form, threads)
    y = tf.raw_ops.MatMul(
        a=_pad_columns(a) if more_a else a,
        b=_pad_columns(b) if more_b else b,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
    )
    if not (more_a or more_b):
        return y
    return tf.raw_ops.Slice(input=y, begin=[0, 0], size=[form.m, form.n])


def _pays(form: _Form, threads: int) -> tuple[bool, bool]:
    """Returns whether a and b should be wider.

    One thread reads b where it is if there are few rows. Several copy a share of b's
    columns each, whose rows then are as far apart as it has columns.
    """
    m, k, n, transpose_a, transpose_b, _ = form
    if transpose_b:
        return False, False
    apart = (
        n % _APART == 0 and m <= _ROWS
        if threads == 1
        else n % (2 * _APART * threads) == 0
    )
    return (
        transpose_a
        and m % _APART == 0
        and k >= _DEPTH
        and n <= _WIDE
        and m * max(k, n) <= _COPY,
        apart and m * k >= _SIDES and n * max(m, k) <= _COPY,
    )


def _pad_columns(x: Any) -> Any:
    return tf.raw_ops.Pad(input=x, paddings=[[0, 0], [0, _MORE]])
