"""Matmuls of two (batches of) matrices, in the form that TensorFlow computes fastest on CPUs.

TensorFlow has two matmul kernels, its default one (Eigen) and that of oneDNN. Where it
rewrites complete programs for oneDNN, as it does by default on many processors with
AVX-512, oneDNN computes all matmuls. Elsewhere oneDNN is several times as fast for batches
of small matrices, and for a transposed second matrix where the output has few rows; there
its kernel is called by name.

A processor's L1 cache selects the set of a line by the last 12 bits of its address. The
rows of a float32 matrix of 1,024 columns lie 4 KiB apart, so all elements of a column
compete for the same set, and a kernel that reads matrices in place takes up to twice as
long. For the default kernel such a matrix is padded by a few columns, which costs a copy
and adds nothing to the result. For oneDNN's kernel, which is slow where it reads the second
matrix by columns, that matrix is transposed first (`python -m benchmarks.ops.matmuls`).

    fast_matmul(a, b, transpose_a=True, transpose_b=False, context=context)   # a^T b
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.graph import LocalContext

# float32 columns whose rows lie a multiple of 4 KiB, or of 2 KiB, apart.
_COLUMNS_4_KIB = 1024
_COLUMNS_2_KIB = 512
_PAD_COLUMNS = 16  # one cache line

# When padding pays.
_MAX_ROWS_READ_IN_PLACE = (
    384  # of the output: for more, the kernel copies b into blocks
)
_MIN_ELEMENTS = 2**15  # elements of a: below, the copy costs more than it saves
_MIN_TERMS = 256  # terms of each sum: below, the copy costs more than it saves
_MAX_COPY = 2**22  # elements: a larger copy would show in the peak memory of a step
_MAX_COLUMNS = 512  # above, what is copied is a small part of the work

# When oneDNN's kernel is faster.
_MIN_SIZE = 8  # rows or columns of the output: with fewer it is hardly a matmul
_MIN_BATCHED_WORK = 2**15  # multiply-adds of a matrix in a batch
# Multiply-adds of a batch that threads share: below, they wait for each other.
_MIN_SHARED_WORK = 2**22
_MAX_BATCHED_ELEMENTS = 2**18  # elements of b in a batch, which oneDNN copies
_MANY_ROWS = 512  # from here on a transpose of b is a small part of the work


def fast_matmul(
    a: Any,
    b: Any,
    transpose_a: bool,
    transpose_b: bool,
    context: LocalContext | None = None,
) -> Any:
    """Returns the matmul of two (batches of) matrices, `[..., m, n]`.

    Args:
      a: `[..., m, k]`, or `[..., k, m]` if `transpose_a`.
      b: `[..., k, n]`, or `[..., n, k]` if `transpose_b`.
      transpose_a: whether a is stored transposed.
      transpose_b: whether b is stored transposed.
      context: has the matmul kernels of the device; None: TensorFlow selects one.
    """
    if a.dtype == tf.bfloat16 and not _kernel_rounds(context):
        wide_a = tf.cast(a, tf.float32)
        wide_b = tf.cast(b, tf.float32)
        y = fast_matmul(wide_a, wide_b, transpose_a, transpose_b, context)
        return tf.cast(y, a.dtype)
    kernels = None
    if context is not None and a.dtype == tf.float32:
        kernels = context.matmul_kernels
    if kernels and not tf.executing_eagerly():
        form = _form(a, b, transpose_a, transpose_b)
        if kernels.all_onednn and _transpose_b_pays(form):
            b = tf.raw_ops.Transpose(x=b, perm=[1, 0])
            transpose_b = False
        elif kernels.onednn and _suits_onednn(form, kernels.threads):
            return kernels.onednn(a, b, transpose_a, transpose_b)
    if len(a.shape) > 2:
        return _batch_matmul(a, b, transpose_a, transpose_b)
    if kernels and not kernels.all_onednn:
        return _padded_matmul(a, b, transpose_a, transpose_b, kernels.threads)
    return tf.raw_ops.MatMul(a=a, b=b, transpose_a=transpose_a, transpose_b=transpose_b)


class _Form(NamedTuple):
    """A matmul `[m, k] [k, n]` as its inputs are stored; batch_size is None without a batch."""

    m: int
    k: int
    n: int
    transpose_a: bool
    transpose_b: bool
    batch_size: int | None


def _form(a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> _Form:
    """Returns the form of a matmul."""
    *batch, m, k = a.shape
    if transpose_a:
        m, k = k, m
    n = b.shape[-2] if transpose_b else b.shape[-1]
    batch_size = math.prod(batch) if batch else None
    return _Form(m, k, n, transpose_a, transpose_b, batch_size)


def _suits_onednn(form: _Form, threads: int) -> bool:
    """Whether oneDNN's kernel is the faster one where `threads` threads share a matmul.

    It reads matrices in place too, and so is slow where rows of b lie 4 KiB apart. Where
    threads share a matmul of many rows, the default kernel is as fast and takes less
    memory.
    """
    if min(form.m, form.n) < _MIN_SIZE:
        return False
    if form.batch_size is not None:
        return _suits_onednn_batch(form, form.batch_size, threads)
    few_rows = threads == 1 or form.m < _MANY_ROWS
    return form.transpose_b and not form.transpose_a and few_rows


def _suits_onednn_batch(form: _Form, batch_size: int, threads: int) -> bool:
    work = form.m * form.k * form.n
    enough_work = work >= _MIN_BATCHED_WORK and (
        threads == 1 or batch_size * work >= _MIN_SHARED_WORK
    )
    rows_conflict = not form.transpose_b and form.n % _COLUMNS_4_KIB == 0
    is_small = form.k * form.n < _MAX_BATCHED_ELEMENTS
    return enough_work and is_small and not rows_conflict


def _transpose_b_pays(form: _Form) -> bool:
    """Whether oneDNN's kernel is so slow for a transposed b that it pays to transpose b
    first.

    That is where the output has few columns. With more, the kernel uses each row that it
    has loaded into the cache more often.
    """
    return (
        form.transpose_b
        and not form.transpose_a
        and form.batch_size is None
        and form.k % _COLUMNS_2_KIB == 0
        and form.m >= _MANY_ROWS
        and form.n <= _MAX_COLUMNS
        and form.k * form.n <= _MAX_COPY
    )


def _batch_matmul(a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> Any:
    if a.dtype.is_complex:  # BatchMatMulV2 also conjugates what it transposes
        a = tf.math.conj(a) if transpose_a else a
        b = tf.math.conj(b) if transpose_b else b
    return tf.raw_ops.BatchMatMulV2(x=a, y=b, adj_x=transpose_a, adj_y=transpose_b)


def _kernel_rounds(context: LocalContext | None) -> bool:
    """Whether the kernel rounds matmuls of bfloat16; the default kernel on CPUs truncates,
    so that all results are too small.
    """
    if context is None or tf.executing_eagerly() or _has_gpus():
        return _rounds(rewritten=True)
    kernels = context.matmul_kernels
    return _rounds(rewritten=kernels is not None and kernels.all_onednn)


@functools.cache
def _has_gpus() -> bool:
    return bool(tf.config.list_logical_devices("GPU"))


@functools.cache
def _rounds(rewritten: bool) -> bool:
    """Whether a matmul of bfloat16 is rounded, by computing 1 + 1.5 * 2**-8.

    Args:
      rewritten: whether TensorFlow may rewrite the op to oneDNN's; it does not in a
        branch.
    """
    with tf.init_scope():
        a = tf.constant([[1.0, 2.0**-8]], tf.bfloat16)
        b = tf.constant([[1.0], [1.5]], tf.bfloat16)
        if rewritten:
            y = tf.matmul(a, b)
        else:
            branch = tf.function(tf.matmul).get_concrete_function(a, b)
            (y,) = tf.raw_ops.StatelessCase(
                branch_index=0, input=[a, b], Tout=[a.dtype], branches=[branch]
            )
        return float(y[0, 0]) > 1.0


def _padded_matmul(
    a: Any, b: Any, transpose_a: bool, transpose_b: bool, threads: int
) -> Any:
    """Returns the matmul by the default kernel, of matrices padded by columns where that
    pays.
    """
    form = _form(a, b, transpose_a, transpose_b)
    pad_a = _padding_a_pays(form)
    pad_b = _padding_b_pays(form, threads)
    y = tf.raw_ops.MatMul(
        a=_pad_columns(a) if pad_a else a,
        b=_pad_columns(b) if pad_b else b,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
    )
    if not (pad_a or pad_b):
        return y
    return tf.raw_ops.Slice(input=y, begin=[0, 0], size=[form.m, form.n])


def _padding_a_pays(form: _Form) -> bool:
    return (
        not form.transpose_b
        and form.transpose_a
        and form.m % _COLUMNS_4_KIB == 0
        and form.k >= _MIN_TERMS
        and form.n <= _MAX_COLUMNS
        and form.m * max(form.k, form.n) <= _MAX_COPY
    )


def _padding_b_pays(form: _Form, threads: int) -> bool:
    """Whether b should be padded.

    One thread reads b in place if the output has few rows. Several threads copy a share of
    b's columns each, whose rows then are as far apart as the share has columns.
    """
    if form.transpose_b:
        return False
    if threads == 1:
        is_in_place = form.m <= _MAX_ROWS_READ_IN_PLACE
        rows_conflict = is_in_place and form.n % _COLUMNS_4_KIB == 0
    else:
        rows_conflict = form.n % (2 * _COLUMNS_4_KIB * threads) == 0
    return (
        rows_conflict
        and form.m * form.k >= _MIN_ELEMENTS
        and form.n * max(form.m, form.k) <= _MAX_COPY
    )


def _pad_columns(x: Any) -> Any:
    return tf.raw_ops.Pad(input=x, paddings=[[0, 0], [0, _PAD_COLUMNS]])
