"""Ops on indices of drawn programs in plain TensorFlow: see `tests.fuzz.judge.plain`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.fuzz.judge.elementwise import cast, maximum
from tests.fuzz.judge.ops import einsum, log_softmax, reduce_sum, slice
from tests.fuzz.judge.plain import Named, along, names, ordered, plain, reduced, sizes


def one_hot(ids: Any, dim: str, dtype: str = "float32") -> Named:
    ids = plain(ids)
    return Named(
        tf.one_hot(ids.value, sizes(dim)[0], dtype=dtype), [*ids.dims, *names(dim)]
    )


def gather(table: Any, ids: Any, dim: str) -> Named:
    table = plain(table)
    rest = [d for d in table.dims if d != dim and d not in plain(ids).dims]
    return einsum([_hot(ids, dim, table), table], [*plain(ids).dims, *rest])


def _hot(ids: Any, dim: str, x: Any) -> Named:
    """Returns one_hot(ids) along a dimension of x, in the type of x."""
    return one_hot(ids, f"{dim}:{plain(x).sizes[dim]}", plain(x).value.dtype.name)


def cross_entropy(logits: Any, labels: Any, dim: str) -> Named:
    return reduce_sum(_hot(labels, dim, logits) * log_softmax(logits, dim) * -1.0, dim)


def argmax(x: Any, dim: str) -> Named:
    return reduced(lambda v, axis: tf.argmax(v, axis[0], tf.int32), x, dim)


def argmin(x: Any, dim: str) -> Named:
    return argmax(plain(x) * -1.0, dim)


def top_1(x: Any, dim: str) -> tuple[Named, Named]:
    ids = argmax(x, dim)
    return einsum([_hot(ids, dim, x), x], ids.dims), ids


def nth_largest(x: Any, dim: str, n: int) -> Named:
    x = plain(x)
    return Named(
        tf.gather(sort(x, dim, True).value, n, axis=x.dims.index(dim)),
        [d for d in x.dims if d != dim],
    )


def nth_smallest(x: Any, dim: str, n: int) -> Named:
    return nth_largest(plain(x) * -1.0, dim, n) * -1.0


def top_k(x: Any, dim: str, k: str) -> tuple[Named, Named]:
    ids = slice(argsort(x, dim, True), dim, 0, sizes(k)[0])
    dims = [names(k)[0] if d == dim else d for d in ids.dims]
    return Named(take_along_axis(x, ids, dim).value, dims), Named(ids.value, dims)


def argsort(x: Any, dim: str, descending: bool = False) -> Named:
    way = "DESCENDING" if descending else "ASCENDING"
    return along(lambda v, axis: tf.argsort(v, axis, way, stable=True), x, dim)


def sort(x: Any, dim: str, descending: bool = False) -> Named:
    return take_along_axis(x, argsort(x, dim, descending), dim)


def take_along_axis(x: Any, ids: Any, dim: str) -> Named:
    x = plain(x)
    order = [*(d for d in x.dims if d != dim), dim]
    value = tf.gather(
        ordered(x, order), ordered(ids, order), axis=-1, batch_dims=len(order) - 1
    )
    return Named(ordered(Named(value, order), x.dims), x.dims)


def segment_sum(x: Any, ids: Any, dim: str) -> Named:
    """Returns sums of the entries of x that have the same index; ids have one
    dimension.
    """
    return _segments(tf.math.unsorted_segment_sum, x, ids, dim)


def segment_mean(x: Any, ids: Any, dim: str) -> Named:
    counts = reduce_sum(one_hot(ids, dim, plain(x).value.dtype.name), plain(ids).dims)
    return segment_sum(x, ids, dim) / maximum(counts, 1.0)


def segment_max(x: Any, ids: Any, dim: str) -> Named:
    return _segments(tf.math.unsorted_segment_max, x, ids, dim)


def segment_min(x: Any, ids: Any, dim: str) -> Named:
    return _segments(tf.math.unsorted_segment_min, x, ids, dim)


def _segments(fn: Any, x: Any, ids: Any, dim: str) -> Named:
    ids, rest = plain(ids), [d for d in plain(x).dims if d not in plain(ids).dims]
    return Named(
        fn(ordered(x, [*ids.dims, *rest]), ids.value, sizes(dim)[0]),
        [*names(dim), *rest],
    )


def _last(ids: Any, dim: str, size: int, dtype: str, update_dim: str) -> Named:
    """Returns [*batch, more, dim] with 1 where `more` is the last that has an index."""
    hot = ordered(one_hot(ids, f"{dim}:{size}", dtype), [*plain(ids).dims, dim])
    axis = plain(ids).dims.index(update_dim)
    later_count = tf.cumsum(hot, axis, exclusive=True, reverse=True)
    return Named(
        tf.where(later_count > 0, tf.zeros_like(hot), hot), [*plain(ids).dims, dim]
    )


def scatter(updates: Any, ids: Any, dim: str) -> Named:
    (update_dim,) = plain(ids).dims
    last = _last(
        ids, names(dim)[0], sizes(dim)[0], plain(updates).value.dtype.name, update_dim
    )
    return einsum(
        [last, updates],
        [*names(dim), *(d for d in plain(updates).dims if d != update_dim)],
    )


def scatter_add(x: Any, ids: Any, updates: Any, dim: str) -> Named:
    return plain(x) + einsum([_hot(ids, dim, x), updates], plain(x).dims)


def scatter_update(x: Any, ids: Any, updates: Any, dim: str) -> Named:
    x = plain(x)
    new = [d for d in plain(ids).dims if d not in x.dims]
    if new:
        last = _last(ids, dim, x.sizes[dim], x.value.dtype.name, new[0])
    else:
        last = _hot(ids, dim, x)
    is_updated = reduce_sum(last, new)
    return x * (is_updated * -1.0 + 1.0) + einsum([last, updates], x.dims)


def dynamic_slice(x: Any, dim: str, begin: Any, rows: str) -> Named:
    x, (size,) = plain(x), sizes(rows)
    first = tf.clip_by_value(plain(begin).value, 0, x.sizes[dim] - size)
    value = tf.gather(x.value, first + tf.range(size), axis=x.dims.index(dim))
    return Named(value, [names(rows)[0] if d == dim else d for d in x.dims])


def dynamic_update(x: Any, dim: str, begin: Any, rows: Any) -> Named:
    x = plain(x)
    rows = plain(rows)
    first = tf.clip_by_value(plain(begin).value, 0, x.sizes[dim] - rows.sizes[dim])
    indices = Named(first + tf.range(rows.sizes[dim]), [".places"])
    rows = Named(rows.value, [".places" if d == dim else d for d in rows.dims])
    return scatter_update(x, indices, rows, dim)


def dynamic_shift(x: Any, dim: str, by: Any, wrap: bool = False) -> Named:
    x = plain(x)
    sources = tf.range(x.sizes[dim]) - plain(by).value
    value = tf.gather(x.value, sources % x.sizes[dim], axis=x.dims.index(dim))
    is_inside = cast(
        Named((sources >= 0) & (sources < x.sizes[dim]), [dim]), x.value.dtype
    )
    moved = Named(value, x.dims)
    return moved if wrap else moved * is_inside


def range(mesh: Any, dim: str, dtype: str = "int32") -> Named:
    return Named(tf.range(sizes(dim)[0], dtype=dtype), names(dim))
