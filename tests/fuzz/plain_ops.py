"""The ops of drawn programs in plain TensorFlow: see `tests.fuzz.plain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tests.fuzz.plain import (
  Named,
  along,
  binary,
  names,
  next_draw,
  ordered,
  plain,
  reduced,
  rows,
  sizes,
  stacked,
)


def _each(fn: Any) -> Any:
  return lambda x: Named(fn(plain(x).value), plain(x).dims)


tanh, sin, sigmoid, softplus = map(_each, (tf.tanh, tf.sin, tf.sigmoid, tf.math.softplus))
relu, erf, square = map(_each, (tf.nn.relu, tf.math.erf, tf.square))
stop_gradient = _each(tf.stop_gradient)


def maximum(a: Any, b: Any) -> Named:
  return binary(tf.maximum, a, b)


def einsum(xs: Sequence[Any], order: Any) -> Named:
  tensors, out = [plain(x) for x in xs], names(order)
  letters = {d: chr(97 + i) for i, d in enumerate({d: 0 for x in tensors for d in x.dims})}
  spelled = ["".join(letters[d] for d in dims) for dims in (*(x.dims for x in tensors), out)]
  return Named(tf.einsum(f"{','.join(spelled[:-1])}->{spelled[-1]}", *(x.value for x in tensors)),
               out)


def reduce_sum(x: Any, dims: Any = None) -> Named:
  return reduced(tf.reduce_sum, x, dims)


def reduce_mean(x: Any, dims: Any = None) -> Named:
  return reduced(tf.reduce_mean, x, dims)


def reduce_max(x: Any, dims: Any = None) -> Named:
  return reduced(tf.reduce_max, x, dims)


def reduce_logsumexp(x: Any, dims: Any = None) -> Named:
  return reduced(tf.reduce_logsumexp, x, dims)


def softmax(x: Any, dim: str) -> Named:
  return along(tf.nn.softmax, x, dim)


def log_softmax(x: Any, dim: str) -> Named:
  return along(tf.nn.log_softmax, x, dim)


def cumsum(x: Any, dim: str, reverse: bool = False, exclusive: bool = False) -> Named:
  return along(lambda v, axis: tf.cumsum(v, axis, exclusive, reverse), x, dim)


def roll(x: Any, dim: str, by: int) -> Named:
  return along(lambda v, axis: tf.roll(v, by, axis), x, dim)


def shift(x: Any, dim: str, by: int) -> Named:
  x = plain(x)
  fill = pad(slice(x, dim, 0, x.sizes[dim] - by), dim, by, 0)
  return Named(fill.value, x.dims)


def sort(x: Any, dim: str) -> Named:
  return along(tf.sort, x, dim)


def linear_recurrence(a: Any, b: Any, dim: str) -> Named:
  h, made = None, []
  for decay, x in zip(rows(a, dim), rows(b, dim)):
    h = x if h is None else decay * h + x
    made.append(h)
  return stacked(made, dim)


def normalize_layer(x: Any, dim: str) -> Named:
  x = plain(x)
  axis = x.dims.index(dim)
  mean, variance = tf.nn.moments(x.value, [axis], keepdims=True)
  return Named((x.value - mean) * tf.math.rsqrt(variance + 1e-6), x.dims)


def transpose(x: Any, order: Any) -> Named:
  return Named(ordered(x, names(order)), names(order))


def rename(x: Any, old: str, new: str) -> Named:
  x = plain(x)
  return Named(x.value, [new if d == old else d for d in x.dims])


def broadcast(x: Any, shape: str) -> Named:
  return Named(tf.broadcast_to(ordered(x, names(shape)), sizes(shape)), names(shape))


def merge(x: Any, dims: str, new: str) -> Named:
  x, gone = plain(x), names(dims)
  order = [*gone, *(d for d in x.dims if d not in gone)]
  value = ordered(x, order)
  return Named(tf.reshape(value, [-1, *value.shape[len(gone):]]), [new, *order[len(gone):]])


def split_dim(x: Any, dim: str, shape: str) -> Named:
  x = plain(x)
  order = [dim, *(d for d in x.dims if d != dim)]
  value = ordered(x, order)
  return Named(tf.reshape(value, [*sizes(shape), *value.shape[1:]]), [*names(shape), *order[1:]])


def slice(x: Any, dim: str, begin: int, size: int) -> Named:
  return along(lambda v, axis: tf.gather(v, tf.range(begin, begin + size), axis=axis), x, dim)


def pad(x: Any, dim: str, before: int, after: int) -> Named:
  return along(lambda v, axis: tf.pad(v, [[before, after] if i == axis else [0, 0]
                                          for i in range(len(v.shape))]), x, dim)


def concat(xs: Sequence[Any], dim: str) -> Named:
  first = plain(xs[0])
  return Named(tf.concat([ordered(x, first.dims) for x in xs], first.dims.index(dim)), first.dims)


def stack(xs: Sequence[Any], dim: str) -> Named:
  return stacked(xs, dim)


def unstack(x: Any, dim: str) -> tuple[Named, ...]:
  return tuple(rows(x, dim))


def add_n(xs: Sequence[Any]) -> Named:
  total = plain(xs[0])
  for x in xs[1:]:
    total = total + x
  return total


def one_hot(ids: Any, dim: str, dtype: str = "float32") -> Named:
  ids = plain(ids)
  return Named(tf.one_hot(ids.value, sizes(dim)[0], dtype=dtype), [*ids.dims, *names(dim)])


def gather(table: Any, ids: Any, dim: str) -> Named:
  table = plain(table)
  hot = one_hot(ids, f"{dim}:{table.sizes[dim]}", table.value.dtype.name)
  rest = [d for d in table.dims if d != dim and d not in plain(ids).dims]
  return einsum([hot, table], [*plain(ids).dims, *rest])


def top_1(x: Any, dim: str) -> tuple[Named, Named]:
  ids = reduced(lambda v, axis: tf.argmax(v, axis[0], tf.int32), x, dim)
  x = plain(x)
  return einsum([one_hot(ids, f"{dim}:{x.sizes[dim]}", x.value.dtype.name), x], ids.dims), ids


def cross_entropy(logits: Any, labels: Any, dim: str) -> Named:
  return gather_negative(log_softmax(logits, dim), labels, dim)


def gather_negative(x: Any, ids: Any, dim: str) -> Named:
  hot = one_hot(ids, f"{dim}:{plain(x).sizes[dim]}", plain(x).value.dtype.name)
  return reduce_sum(hot * x * -1.0, dim)


def where(condition: Any, x: Any, y: Any) -> Named:
  dims = plain(x).dims
  return Named(tf.where(ordered(condition, dims), ordered(x, dims), ordered(y, dims)), dims)


def cast(x: Any, dtype: str) -> Named:
  return Named(tf.cast(plain(x).value, dtype), plain(x).dims)


def shard(x: Any, layout: Any) -> Named:
  return plain(x)


def split(x: Any, dim: str, axis: str) -> Named:
  return plain(x)


def replicate(x: Any) -> Named:
  return plain(x)


def slicewise(fn: Any, xs: Sequence[Any], cut: str) -> Named:
  return Named(fn(plain(xs[0]).value), plain(xs[0]).dims)


def dropout(x: Any, rate: float, name: str) -> Named:
  return plain(x) * next_draw()


def random_uniform(mesh: Any, shape: str, low: float, high: float, dtype: str, name: str) -> Named:
  return next_draw()
