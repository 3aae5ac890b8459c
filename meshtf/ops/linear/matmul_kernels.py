"""Matmuls of two (batches of) matrices, in the form that TensorFlow computes fastest on CPUs.

TensorFlow has two matmul kernels: its default one (Eigen), and that of oneDNN. On many
processors with AVX-512, TensorFlow by default rewrites complete programs for oneDNN, and then
oneDNN computes all matmuls. On other processors, oneDNN's kernel is called by name where it is
several times as fast: for batches of small matrices, and for a transposed second matrix if the
output has few rows.

A processor's L1 cache selects the set of a line by the last 12 bits of its address. The rows
of a float32 matrix of 1,024 columns lie 4 KiB apart, so all elements of a column compete for
the same set, and a kernel that reads matrices in place takes up to twice as long. For the
default kernel such a matrix is padded by a few columns, which costs a copy and adds nothing to
the result. oneDNN's kernel is slow if it reads the second matrix by columns; for it, that
matrix is transposed first. `python -m benchmarks.ops.matmuls` measures this.

    fast_matmul(a, b, transpose_a=True, transpose_b=False, context=context)   # a^T b
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.graph import LocalContext

# The number of columns of a float32 matrix whose rows lie 4 KiB, or 2 KiB, apart.
_COLUMNS_4_KIB = 1024
_COLUMNS_2_KIB = 512
_PAD_COLUMNS = 16  # one cache line

# Bounds within which padding saves time, in a matmul of matrices a and b.
# Elements of a, and terms of each sum: with fewer, the copy costs more than it saves.
_MIN_ELEMENTS = 2**15
_MIN_TERMS = 256
# Rows of the output: with more, the default kernel does not read b in place, but copies it
# into blocks.
_MAX_ROWS_READ_IN_PLACE = 384
# Elements of the copy: a larger one would show in the peak memory of a step.
_MAX_COPY = 2**22
# Columns of the output: with more, memory access takes little of the time.
_MAX_COLUMNS = 512

# Bounds within which oneDNN's kernel is faster.
# Rows and columns of the output.
_MIN_SIZE = 8
# Multiply-adds of one matmul of a batch.
_MIN_BATCHED_WORK = 2**15
# Multiply-adds of a batch: with fewer, threads wait for each other.
_MIN_SHARED_WORK = 2**22
# Elements of one matrix b of a batch, which oneDNN copies.
_MAX_BATCHED_ELEMENTS = 2**18
# Rows of the output: with at least this many, a transpose of b takes little of the time.
_MANY_ROWS = 512


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
      context: the shard, which has the matmul kernels of its device; None: TensorFlow
        selects a kernel.
    """
    if a.dtype == tf.bfloat16 and not _kernel_rounds(context):
        wide_a = tf.cast(a, tf.float32)
        wide_b = tf.cast(b, tf.float32)
        y = fast_matmul(wide_a, wide_b, transpose_a, transpose_b, context)
        return tf.cast(y, a.dtype)
    kernels = None  # TensorFlow selects
    if context is not None and a.dtype == tf.float32:
        kernels = context.matmul_kernels
    # `kernels.onednn` calls oneDNN's kernel by name; `kernels.all_onednn`: TensorFlow uses
    # oneDNN for all matmuls of a graph.
    if kernels:
        form = _form_of(a, b, transpose_a, transpose_b)
    if kernels and not tf.executing_eagerly():
        if kernels.all_onednn and _transpose_b_pays(form):
            b = tf.raw_ops.Transpose(x=b, perm=[1, 0])
            transpose_b = False
        elif kernels.onednn and _suits_onednn(form, kernels.threads):
            return kernels.onednn(a, b, transpose_a, transpose_b)
    if len(a.shape) > 2:
        return _batch_matmul(a, b, transpose_a, transpose_b)
    if kernels and not kernels.all_onednn:
        return _padded_matmul(a, b, form, kernels.threads)
    return tf.raw_ops.MatMul(a=a, b=b, transpose_a=transpose_a, transpose_b=transpose_b)


class _Form(NamedTuple):
    """The sizes of a matmul `[m, k] [k, n]`, and how its inputs are stored.

    Attributes:
      m: the number of rows of the output.
      k: the number of terms of each sum.
      n: the number of columns of the output.
      transpose_a: whether a is stored as `[k, m]`.
      transpose_b: whether b is stored as `[n, k]`.
      batch_size: the number of matmuls of a batch; None: there is no batch.
    """

    m: int
    k: int
    n: int
    transpose_a: bool
    transpose_b: bool
    batch_size: int | None


def _form_of(a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> _Form:
    """Returns the form of a matmul with the arguments of `fast_matmul`."""
    *batch, m, k = a.shape
    if transpose_a:
        m, k = k, m
    n = b.shape[-2] if transpose_b else b.shape[-1]
    batch_size = math.prod(batch) if batch else None
    return _Form(m, k, n, transpose_a, transpose_b, batch_size)


def _suits_onednn(form: _Form, threads: int) -> bool:
    """Returns whether oneDNN's kernel is faster if `threads` threads share a matmul.

    Like the default kernel, it reads matrices in place, and so is slow if the rows of b lie
    4 KiB apart. If several threads share a matmul of many rows, the default kernel is as
    fast and takes less memory.
    """
    if min(form.m, form.n) < _MIN_SIZE:
        return False
    if form.batch_size is not None:
        return _suits_onednn_batch(form, form.batch_size, threads)
    is_fast_for_rows = threads == 1 or form.m < _MANY_ROWS
    return form.transpose_b and not form.transpose_a and is_fast_for_rows


def _suits_onednn_batch(form: _Form, batch_size: int, threads: int) -> bool:
    """Returns whether oneDNN's kernel is faster for a batch of matmuls."""
    work = form.m * form.k * form.n
    if work < _MIN_BATCHED_WORK:
        return False
    if threads > 1 and batch_size * work < _MIN_SHARED_WORK:
        return False
    rows_conflict = not form.transpose_b and form.n % _COLUMNS_4_KIB == 0
    is_small = form.k * form.n < _MAX_BATCHED_ELEMENTS
    return is_small and not rows_conflict


def _transpose_b_pays(form: _Form) -> bool:
    """Returns whether oneDNN's kernel is so slow for a transposed b that a transpose of b
    before the matmul saves time.

    This is so if the output has few columns. With more columns, the kernel uses each row
    that it has loaded into the cache more often.
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
    """Returns the matmul by TensorFlow's op for batches; the arguments are those of
    `fast_matmul`.
    """
    if a.dtype.is_complex:
        # The op also conjugates the matrices that it transposes; a conjugate before it
        # cancels that.
        if transpose_a:
            a = tf.math.conj(a)
        if transpose_b:
            b = tf.math.conj(b)
    return tf.raw_ops.BatchMatMulV2(x=a, y=b, adj_x=transpose_a, adj_y=transpose_b)


def _kernel_rounds(context: LocalContext | None) -> bool:
    """Returns whether the kernel rounds the results of bfloat16 matmuls to nearest. The
    default kernel of CPUs truncates them, so that all magnitudes are too small.
    """
    if context is None or tf.executing_eagerly() or _has_gpus():
        return _rounds(may_rewrite=True)
    kernels = context.matmul_kernels
    return _rounds(may_rewrite=kernels is not None and kernels.all_onednn)


@functools.cache
def _has_gpus() -> bool:
    """Returns whether TensorFlow has a GPU."""
    return bool(tf.config.list_logical_devices("GPU"))


@functools.cache
def _rounds(may_rewrite: bool) -> bool:
    """Returns whether TensorFlow rounds a bfloat16 matmul to nearest, tested by an example.

    The exact result, 1 + 1.5 * 2**-8, is between the bfloat16 numbers 1 and 1 + 2**-7. The
    latter is nearer; truncation gives 1.

    Args:
      may_rewrite: whether TensorFlow may rewrite the op to oneDNN's, as it does outside of
        branches.
    """
    with tf.init_scope():
        a = tf.constant([[1.0, 2.0**-8]], tf.bfloat16)
        b = tf.constant([[1.0], [1.5]], tf.bfloat16)
        if may_rewrite:
            y = tf.matmul(a, b)
        else:
            # TensorFlow does not rewrite the ops of a branch.
            branch = tf.function(tf.matmul).get_concrete_function(a, b)
            (y,) = tf.raw_ops.StatelessCase(
                branch_index=0, input=[a, b], Tout=[a.dtype], branches=[branch]
            )
        return float(y[0, 0]) > 1.0


def _padded_matmul(a: Any, b: Any, form: _Form, threads: int) -> Any:
    """Returns the matmul by the default kernel of several threads, with columns added to the
    inputs if that saves time.
    """
    pad_a = _padding_a_pays(form)
    pad_b = _padding_b_pays(form, threads)
    y = tf.raw_ops.MatMul(
        a=_pad_columns(a) if pad_a else a,
        b=_pad_columns(b) if pad_b else b,
        transpose_a=form.transpose_a,
        transpose_b=form.transpose_b,
    )
    if not (pad_a or pad_b):
        return y
    return tf.raw_ops.Slice(input=y, begin=[0, 0], size=[form.m, form.n])


def _padding_a_pays(form: _Form) -> bool:
    """Returns whether the matmul is faster if a, which is stored transposed, is padded."""
    return (
        not form.transpose_b
        and form.transpose_a
        and form.m % _COLUMNS_4_KIB == 0
        and form.k >= _MIN_TERMS
        and form.n <= _MAX_COLUMNS
        and form.m * max(form.k, form.n) <= _MAX_COPY
    )


def _padding_b_pays(form: _Form, threads: int) -> bool:
    """Returns whether the matmul is faster if b is padded.

    One thread reads b in place if the output has few rows; then rows of b that lie a
    multiple of 4 KiB apart conflict. Each of several threads copies its share of the columns
    of b, n / threads; then rows of the copy that are a multiple of 8 KiB long conflict.
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
    """Returns a matrix with `_PAD_COLUMNS` columns of zeros added."""
    return tf.raw_ops.Pad(input=x, paddings=[[0, 0], [0, _PAD_COLUMNS]])
