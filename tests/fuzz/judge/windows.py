"""Convolutions and pooling of drawn programs in plain TensorFlow: see
`tests.fuzz.judge.plain`.

Which entry of x each tap of each window reads is a tensor of zeros and ones, and all
else is a product with it; a transposed convolution is the same product, summed over
windows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.fuzz.judge.ops import einsum, reduce_sum, rename
from tests.fuzz.judge.plain import Named, names, ordered, plain, sizes

_WINDOW = ".window"
_TAP = ".tap"


def conv(
    x: Any,
    kernel: Any,
    window: str,
    stride: int = 1,
    padding: str = "same",
    dilation: int = 1,
    groups: Any = (),
) -> Named:
    x, kernel, (dim, tap) = plain(x), plain(kernel), window.split(":")
    reads = _reads(x.sizes[dim], kernel.sizes[tap], stride, padding, dilation, x)
    reads = Named(reads.value, [dim, tap, _WINDOW])
    return _product(x, reads, kernel, dim, tap, groups)


def conv_transpose(
    x: Any,
    kernel: Any,
    window: str,
    stride: int = 1,
    padding: str = "same",
    dilation: int = 1,
    groups: Any = (),
) -> Named:
    x, kernel, (dim, tap) = plain(x), plain(kernel), window.split(":")
    reach = (kernel.sizes[tap] - 1) * dilation + 1
    output_size = x.sizes[dim] * stride
    if padding == "valid":
        output_size = (x.sizes[dim] - 1) * stride + reach
    reads = _reads(output_size, kernel.sizes[tap], stride, padding, dilation, x)
    reads = Named(reads.value, [_WINDOW, tap, dim])
    return _product(x, reads, kernel, dim, tap, groups)


def _product(
    x: Named, reads: Named, kernel: Named, dim: str, tap: str, groups: Any
) -> Named:
    summed = [d for d in kernel.dims if d in x.dims and d not in names(groups)]
    out = [_WINDOW if d == dim else d for d in x.dims if d not in summed]
    new = [d for d in kernel.dims if d not in x.dims and d != tap]
    return rename(einsum([x, reads, kernel], [*out, *new]), _WINDOW, dim)


def avg_pool(
    x: Any, window: str, stride: int | None = None, padding: str = "valid"
) -> Named:
    x = plain(x)
    dim = names(window)[0]
    size = sizes(window)[0]
    reads = _reads(x.sizes[dim], size, stride or size, padding, 1, x)
    reads = Named(reads.value, [dim, _TAP, _WINDOW])
    counts = reduce_sum(reads, [dim, _TAP])
    total = einsum([x, reads], [_WINDOW if d == dim else d for d in x.dims])
    return rename(total / counts, _WINDOW, dim)


def max_pool(
    x: Any, window: str, stride: int | None = None, padding: str = "valid"
) -> Named:
    x = plain(x)
    dim = names(window)[0]
    size = sizes(window)[0]
    reads = _reads(x.sizes[dim], size, stride or size, padding, 1, x).value
    dims = [*(d for d in x.dims if d != dim), dim]
    read = tf.einsum("...i,itw->...wt", ordered(x, dims), reads)
    is_read = tf.transpose(tf.reduce_sum(reads, 0))
    largest = tf.reduce_max(tf.where(is_read > 0, read, -1e9 * tf.ones_like(read)), -1)
    return Named(ordered(Named(largest, dims), x.dims), x.dims)


def _reads(
    size: int, taps: int, stride: int, padding: str, dilation: int, like: Named
) -> Named:
    """Returns [entry, tap, window]: 1 where a tap of a window reads an entry, in the
    type of x.
    """
    reach = (taps - 1) * dilation + 1
    windows = (size - reach) // stride + 1 if padding == "valid" else -(-size // stride)
    before = {
        "valid": 0,
        "causal": reach - 1,
        "same": max((windows - 1) * stride + reach - size, 0) // 2,
    }[padding]
    entry, tap, window = np.ogrid[:size, :taps, :windows]
    read = entry == window * stride + tap * dilation - before
    return Named(
        tf.constant(read.astype(like.value.dtype.name)), ["entry", "tap", "window"]
    )
