"""Ops on whole tensors of drawn programs in plain TensorFlow: see
`tests.fuzz.judge.plain`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tests.fuzz.judge.elementwise import logaddexp, maximum, minimum
from tests.fuzz.judge.plain import (
    Named,
    along,
    names,
    next_draw,
    ordered,
    plain,
    reduced,
    rows,
    sizes,
    stacked,
)


def einsum(xs: Sequence[Any], order: Any) -> Named:
    tensors = [plain(x) for x in xs]
    out = names(order)
    letters = {
        d: chr(97 + i) for i, d in enumerate({d: 0 for x in tensors for d in x.dims})
    }
    spelled = [
        "".join(letters[d] for d in dims) for dims in (*(x.dims for x in tensors), out)
    ]
    return Named(
        tf.einsum(
            f"{','.join(spelled[:-1])}->{spelled[-1]}", *(x.value for x in tensors)
        ),
        out,
    )


def reduce_sum(x: Any, dims: Any = None) -> Named:
    return reduced(tf.reduce_sum, x, dims)


def reduce_mean(x: Any, dims: Any = None) -> Named:
    return reduced(tf.reduce_mean, x, dims)


def reduce_max(x: Any, dims: Any = None) -> Named:
    return reduced(tf.reduce_max, x, dims)


def reduce_min(x: Any, dims: Any = None) -> Named:
    return reduced(tf.reduce_min, x, dims)


def reduce_prod(x: Any, dims: Any = None) -> Named:
    return reduced(tf.reduce_prod, x, dims)


def reduce_variance(x: Any, dims: Any = None) -> Named:
    return reduced(tf.math.reduce_variance, x, dims)


def reduce_rms(x: Any, dims: Any = None) -> Named:
    return reduced(lambda v, axis: tf.sqrt(tf.reduce_mean(tf.square(v), axis)), x, dims)


def reduce_logsumexp(x: Any, dims: Any = None) -> Named:
    return reduced(tf.reduce_logsumexp, x, dims)


def softmax(x: Any, dim: str) -> Named:
    return along(tf.nn.softmax, x, dim)


def log_softmax(x: Any, dim: str) -> Named:
    return along(tf.nn.log_softmax, x, dim)


def cumsum(x: Any, dim: str, reverse: bool = False, exclusive: bool = False) -> Named:
    return along(lambda v, axis: tf.cumsum(v, axis, exclusive, reverse), x, dim)


def cumprod(x: Any, dim: str, reverse: bool = False, exclusive: bool = False) -> Named:
    return along(lambda v, axis: tf.math.cumprod(v, axis, exclusive, reverse), x, dim)


def cumulative_logsumexp(x: Any, dim: str, reverse: bool = False) -> Named:
    return _running(logaddexp, x, dim, reverse)


def cummax(x: Any, dim: str, reverse: bool = False) -> Named:
    return _running(lambda h, new: maximum(new, h), x, dim, reverse)


def cummin(x: Any, dim: str, reverse: bool = False) -> Named:
    return _running(lambda h, new: minimum(new, h), x, dim, reverse)


def _running(fn: Any, x: Any, dim: str, reverse: bool) -> Named:
    """Returns the results of a function of the last result and the next entry, from one
    end on.
    """
    entries = rows(x, dim)[::-1] if reverse else rows(x, dim)
    outputs = list(itertools.accumulate(entries, fn))
    return stacked(outputs[::-1] if reverse else outputs, dim)


def roll(x: Any, dim: str, by: int) -> Named:
    return along(lambda v, axis: tf.roll(v, by, axis), x, dim)


def shift(x: Any, dim: str, by: int) -> Named:
    x = plain(x)
    remaining = slice(x, dim, max(0, -by), x.sizes[dim] - abs(by))
    return Named(pad(remaining, dim, max(0, by), max(0, -by)).value, x.dims)


def linear_recurrence(a: Any, b: Any, dim: str, reverse: bool = False) -> Named:
    h = None
    outputs = []
    pairs = list(zip(rows(a, dim), rows(b, dim)))
    for decay, x in pairs[::-1] if reverse else pairs:
        h = x if h is None else decay * h + x
        outputs.append(h)
    return stacked(outputs[::-1] if reverse else outputs, dim)


def layer_norm(x: Any, dim: str) -> Named:
    x = plain(x)
    axis = x.dims.index(dim)
    # Not tf.nn.moments: the second gradient of its variance takes the mean for a constant.
    centered = x.value - tf.reduce_mean(x.value, axis, keepdims=True)
    variance = tf.reduce_mean(tf.square(centered), axis, keepdims=True)
    return Named(centered * tf.math.rsqrt(variance + 1e-6), x.dims)


def rms_norm(x: Any, dim: str) -> Named:
    return along(
        lambda v, axis: (
            v * tf.math.rsqrt(tf.reduce_mean(tf.square(v), axis, keepdims=True) + 1e-6)
        ),
        x,
        dim,
    )


def transpose(x: Any, order: Any) -> Named:
    return Named(ordered(x, names(order)), names(order))


def rename(x: Any, old: str, new: str) -> Named:
    x = plain(x)
    return Named(x.value, [new if d == old else d for d in x.dims])


def broadcast(x: Any, shape: str) -> Named:
    return Named(tf.broadcast_to(ordered(x, names(shape)), sizes(shape)), names(shape))


def flatten(x: Any, dims: str, new: str) -> Named:
    x = plain(x)
    gone = names(dims)
    order = [*gone, *(d for d in x.dims if d not in gone)]
    value = ordered(x, order)
    return Named(
        tf.reshape(value, [-1, *value.shape[len(gone) :]]), [new, *order[len(gone) :]]
    )


def unflatten(x: Any, dim: str, shape: str) -> Named:
    x = plain(x)
    order = [dim, *(d for d in x.dims if d != dim)]
    value = ordered(x, order)
    return Named(
        tf.reshape(value, [*sizes(shape), *value.shape[1:]]),
        [*names(shape), *order[1:]],
    )


def slice(x: Any, dim: str, begin: int, size: int) -> Named:
    return along(
        lambda v, axis: tf.gather(v, tf.range(begin, begin + size), axis=axis), x, dim
    )


def pad(x: Any, dim: str, before: int, after: int) -> Named:
    return along(
        lambda v, axis: tf.pad(
            v, [[before, after] if i == axis else [0, 0] for i in range(len(v.shape))]
        ),
        x,
        dim,
    )


def concat(xs: Sequence[Any], dim: str) -> Named:
    first = plain(xs[0])
    return Named(
        tf.concat([ordered(x, first.dims) for x in xs], first.dims.index(dim)),
        first.dims,
    )


def stack(xs: Sequence[Any], dim: str) -> Named:
    return stacked(xs, dim)


def unstack(x: Any, dim: str) -> tuple[Named, ...]:
    return tuple(rows(x, dim))


def add_n(xs: Sequence[Any]) -> Named:
    total = plain(xs[0])
    for x in xs[1:]:
        total = total + x
    return total


def shard(x: Any, layout: Any) -> Named:
    return plain(x)


def split(x: Any, dim: str, axis: str) -> Named:
    return plain(x)


def replicate(x: Any) -> Named:
    return plain(x)


def slicewise(fn: Any, xs: Sequence[Any], shardable: str) -> Named:
    return Named(fn(plain(xs[0]).value), plain(xs[0]).dims)


def dropout(x: Any, rate: float, name: str) -> Named:
    return plain(x) * next_draw()


def random_uniform(
    mesh: Any, shape: str, low: float, high: float, dtype: str, name: str
) -> Named:
    return next_draw()
