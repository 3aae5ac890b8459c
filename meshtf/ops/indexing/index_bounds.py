"""Numbers of elements of a dimension, on one device: which are its own, and which are
none at all.

    "error"      a number outside of [0, size) is refused, by the op and its line
    "negative"   a negative number means nothing; one that is too large is refused
    "zeros"      a number outside means nothing
    "trusted"    no number lies outside: an op has made them

What is refused does not depend on the layout. TensorFlow's kernels on CPUs refuse
numbers that are too large by themselves; where they do not, since the dimension is
sharded, there is a group before it, or a GPU computes, this is one comparison, one
reduction and an assertion. Under XLA nothing can be refused: `gather` gives NaN there
(the least integer, of integers), a cross entropy NaN, and sums by number leave out what
lies outside; under every layout alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import tensorflow as tf

from meshtf.graph import LocalContext
from meshtf.names import Shape
from meshtf.ops.shapes.reshape import arrange

Outside: TypeAlias = Literal["error", "negative", "zeros", "trusted"]


def refusals(context: LocalContext, dim: str, ids: Any, outside: Outside) -> list[Any]:
    """Returns what must run before numbers of `dim` are used: an assertion, or nothing.

    Raises:
      InvalidArgumentError: a number lies outside, where values are known already.
    """
    if context.compiled or outside in ("zeros", "trusted"):
        return []
    size = context.global_size(dim)
    inside = _below(ids, size)
    if outside == "error":
        inside = inside & (ids >= 0)
    right = tf.reduce_all(inside)
    where = f'[0, {size}) of "{dim.lstrip(".")}"'
    if not tf.executing_eagerly():
        return [
            tf.raw_ops.Assert(
                condition=right, data=[tf.constant(f"a number is not in {where}")]
            )
        ]
    if not right:
        number = ids.numpy()[~inside.numpy()].ravel()[0]
        raise tf.errors.InvalidArgumentError(
            None, None, f"the number {number} is not in {where}"
        )
    return []


def refusing(context: LocalContext, dim: str, ids: Any, outside: Outside) -> Any:
    """Returns numbers of `dim`, none of which lies outside: see `refusals`."""
    return after(refusals(context, dim, ids, outside), ids)


def after(before: list[Any], x: Any) -> Any:
    """Returns x, which is not there before these have run."""
    if not before:
        return x
    with tf.control_dependencies(before):
        return tf.identity(x)


def own(context: LocalContext, dim: str, ids: Any) -> tuple[Any, Any]:
    """Returns ids counted from this slice's first element, and which of them are of
    this slice.
    """
    # In int64: TensorFlow computes int32 on the host, even for a GPU.
    ids = tf.cast(ids, tf.int64)
    if context.num_shards(dim) > 1:
        ids -= tf.cast(context.shard_offset(dim), tf.int64)
    return ids, (ids >= 0) & (ids < context.local_size(dim))


def indices(ids: Any) -> Any:
    """Returns ids in a type that TensorFlow's kernels take as indices."""
    return ids if ids.dtype in (tf.int32, tf.int64) else tf.cast(ids, tf.int64)


def marked(context: LocalContext, dim: str, y: Any, ids: Any, outside: Outside) -> Any:
    """Returns y[*ids, ...], under XLA with NaN or the least integer where ids lie
    outside of `dim`.

    One slice says it, since those of all slices are added up.
    """
    if not context.compiled or outside in ("zeros", "trusted"):
        return y
    right = _below(ids, context.global_size(dim))
    if outside == "error":
        right = right & (ids >= 0)
    if context.num_shards(dim) > 1:
        right = right | tf.not_equal(context.shard_index(dim), 0)
    least = math.nan if y.dtype.is_floating or y.dtype.is_complex else y.dtype.min
    right = tf.reshape(right, [*ids.shape, *[1] * (len(y.shape) - len(ids.shape))])
    return tf.where(right, y, tf.constant(least, y.dtype))


def reduce_segments(
    kernel: Callable[..., Any],
    context: LocalContext,
    dim: str,
    x: Any,
    ids: Any,
    outside: Outside,
) -> Any:
    """Returns what an unsorted segment kernel makes of x[*batch, *places, *rest] and
    its numbers ids[*batch, *places], for the elements of `dim` of this slice; negatives
    go nowhere."""
    (have, places), out = context.inputs, context.outputs[0]
    batch = [n for n in places.names if n in out]
    others = [n for n in places.names if n not in out]
    rest = [n for n in out.names if n not in batch and n != dim]
    rows = context.local_size(dim)
    order = batch + others
    if (
        outside == "error"
        or batch
        or context.num_shards(dim) > 1
        or not context.kernels_refuse
    ):
        ids = refusing(context, dim, ids, outside)
    ids = arrange(ids, places.names, order)
    groups = math.prod(out[n] for n in batch)
    if batch or context.num_shards(dim) > 1 or outside == "zeros":
        ids, mine = own(context, dim, ids)
        if batch:  # element i of group g is segment g * rows + i
            ids += _firsts(batch, order, places, groups * rows, rows)
        ids = tf.where(mine, ids, -1)
    y = kernel(arrange(x, have.names, order + rest), indices(ids), groups * rows)
    if batch:
        y = tf.reshape(y, [*[out[n] for n in batch], rows, *[out[n] for n in rest]])
    return arrange(y, [*batch, dim, *rest], out.names)


def _firsts(
    batch: list[str], order: list[str], places: Shape, end: int, rows: int
) -> Any:
    """Returns the number of the first segment of each group, for broadcasting."""
    first = tf.range(0, end, rows, dtype=tf.int64)
    return tf.reshape(first, [places[n] if n in batch else 1 for n in order])


def _below(ids: Any, size: int) -> Any:
    """Returns whether ids are below a size, which may be more than their type has
    numbers for.
    """
    if size > ids.dtype.max:
        return tf.ones_like(ids, tf.bool)
    return ids < tf.constant(size, ids.dtype)
