"""Rows put where numbers say: segment_max, _min and _mean, scatter, scatter_add,
scatter_update.

    best = mtf.segment_max(scores, ids, "bins:16")           # [batch], [batch] -> [bins]
    y = mtf.scatter(rows, ids, "slots:8")                    # [batch d], [batch] -> [slots d]
    cache = mtf.scatter_update(cache, ids, rows, "slots")    # y's rows there, else those of cache

Negative numbers put a row nowhere; one that is not below the number of rows is refused
under every layout, as by gather, but under XLA goes nowhere. Of rows that go to one
place scatter and scatter_update take the last, under every layout. Where the rows are
cut, each device fills its own; where what is put there is cut, the devices' results
meet as maxima or sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import LocalContext, Op, Role, Sample, Spec, Tensor, apply
from meshtf.graph.arguments import as_tensor
from meshtf.names import Dimension, Names, Shape, ShapeLike, wide
from meshtf.ops.common.checks import require_dim
from meshtf.ops.elementwise.arithmetic import add, divide, equal, greater_equal, maximum
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.indexing.gather import (
    SegmentSum,
    check_segments,
    gather_with_bounds,
    segment_sum,
    segments_like,
)
from meshtf.ops.indexing.gather import range as rows_of
from meshtf.ops.indexing.index_bounds import reduce_segments
from meshtf.ops.reductions.broadcast import broadcast
from meshtf.ops.shapes.reshape import merge, reshape, transpose
from meshtf.ops.variables.fill import ones

_KERNELS = {"max": tf.math.unsorted_segment_max, "min": tf.math.unsorted_segment_min}


class SegmentExtreme(Op):
    """Max or min: x [*batch, *places, *rest], ids [*batch, *places] -> like [*batch,
    dim, *rest].
    """

    kind: str
    dim: str
    like: Shape
    samples = (
        Sample(("max", "v", Shape("v:8;d:4")), ("ties b:4;d:4", "int b:4")),
        Sample(("min", "v", Shape("d:2;v:8")), ("d:2;b:4;c:2", "int c:2;b:4")),
        Sample(("max", "v", Shape("g:4;v:4")), ("ties c:4;g:4", "int g:4;c:4"), 4),
        Sample(("min", "v", Shape("v:5")), ("int b:6", "int b:6"), 5),
    )

    def output_specs(self, x: Spec, ids: Spec) -> tuple[Spec, ...]:
        check_segments(f"segment_{self.kind}", self.dim, self.like, x, ids)
        return (Spec(self.like, x.dtype),)

    def role(self, factor: str) -> Role:
        return Role.MAP if factor in self.like else Role(self.kind)

    def local(self, context: LocalContext, x: Any, ids: Any) -> tuple[Any, ...]:
        y = reduce_segments(_KERNELS[self.kind], context, self.dim, x, ids, "negative")
        if (
            y.dtype.is_floating
        ):  # of nothing, and of infinities, the kernels give a finite number
            end, least = (
                (-np.inf, y <= y.dtype.min)
                if self.kind == "max"
                else (np.inf, y >= y.dtype.max)
            )
            y = tf.where(least, tf.constant(end, y.dtype), y)
        return (y,)

    def gradient(
        self, dy: Tensor, y: Tensor, x: Tensor, ids: Tensor
    ) -> list[Tensor | None]:
        def back(rows: Tensor) -> Tensor:
            return transpose(gather_with_bounds(rows, ids, self.dim, "zeros"), x.shape)

        chosen = equal(x, back(y))  # all that are equal share, as in TensorFlow
        number = apply(
            SegmentSum(self.dim, self.like, "zeros"), cast(chosen, x.dtype), ids
        )
        return [where(chosen, back(divide(dy, maximum(number, 1.0))), 0.0), None]

    def flops(self, x: Spec, ids: Spec) -> int:
        return x.shape.size


def segment_max(x: Tensor, ids: Tensor, dim: ShapeLike, batch: Names = ()) -> Tensor:
    """Returns maxima by number: row i of the new `dim` is the largest where ids are i.

    Rows without any are -inf, or the least integer. Equal ones share the gradient.
    Shapes, arguments and errors are those of `segment_sum`.
    """
    return apply(SegmentExtreme("max", *segments_like(x, ids, dim, batch)), x, ids)


def segment_min(x: Tensor, ids: Tensor, dim: ShapeLike, batch: Names = ()) -> Tensor:
    """Returns minima by number, inf or the greatest integer where there are none:
    `segment_max`.
    """
    return apply(SegmentExtreme("min", *segments_like(x, ids, dim, batch)), x, ids)


def segment_mean(x: Tensor, ids: Tensor, dim: ShapeLike, batch: Names = ()) -> Tensor:
    """Returns means of floats by number, 0 where there are none: see `segment_sum`."""
    x, ids = as_tensor("x", x), as_tensor("ids", ids)
    dtype = wide(x.dtype)  # half floats count to 256 only
    number = segment_sum(ones(ids.mesh, ids.shape, dtype), ids, dim, batch)
    mean = divide(segment_sum(cast(x, dtype), ids, dim, batch), maximum(number, 1.0))
    return cast(mean, x.dtype)


def scatter(updates: Tensor, ids: Tensor, dim: ShapeLike, batch: Names = ()) -> Tensor:
    """Returns rows put where numbers say: row i of the new `dim` is the last whose
    number is i, or 0.

    Shapes and arguments are those of `segment_sum`, which adds where this takes the
    last.

    Raises:
      ShapeError: updates lack a name of ids, or have `dim`.
      DTypeError: ids are no integers.
    """
    updates, ids = as_tensor("updates", updates), as_tensor("ids", ids)
    return _scattered(updates, ids, *segments_like(updates, ids, dim, batch))[0]


def scatter_add(x: Tensor, ids: Tensor, updates: Tensor, dim: str) -> Tensor:
    """Returns x with updates added to the rows of `dim` that ids number; several to one
    are summed.

    Args:
      x: [*batch, dim, *rest], any order.
      ids: integers [*batch, *places]; names that x has too are batch dimensions.
      updates: [*batch, *places, *rest], any order.
      dim: the name of the numbered rows.

    Raises:
      ShapeError: the shapes do not fit.
      DTypeError: ids are no integers, or the types of x and updates differ.
    """
    x, ids, updates = (
        as_tensor("x", x),
        as_tensor("ids", ids),
        as_tensor("updates", updates),
    )
    _check_updates(x, ids, updates, dim)
    return add(x, apply(SegmentSum(dim, x.shape), updates, ids))


def scatter_update(x: Tensor, ids: Tensor, updates: Tensor, dim: str) -> Tensor:
    """Returns x with the rows of `dim` that ids number replaced, by the last where
    there are several.

    Arguments and errors are those of `scatter_add`.
    """
    x, ids, updates = (
        as_tensor("x", x),
        as_tensor("ids", ids),
        as_tensor("updates", updates),
    )
    _check_updates(x, ids, updates, dim)
    rows, winner = _scattered(updates, ids, dim, x.shape)
    return transpose(where(greater_equal(winner, 0), rows, x), x.shape)


def _scattered(
    updates: Tensor, ids: Tensor, dim: str, like: Shape
) -> tuple[Tensor, Tensor]:
    """Returns `like` with the last update of each row, and its number [*batch, dim], or
    negative.
    """
    places = [n for n in ids.shape.names if n not in like]
    ids, updates = (_with_one_place(t, places) for t in (ids, updates))
    (place,) = (d for d in ids.shape if d.name not in like)
    numbers = broadcast(rows_of(ids.mesh, place), ids.shape)
    batch = like.only(ids.shape.names)
    winner = apply(SegmentExtreme("max", dim, batch + like.dim(dim)), numbers, ids)
    return transpose(
        gather_with_bounds(updates, winner, place.name, "zeros"), like
    ), winner


_PLACES = ".places"


def _with_one_place(x: Tensor, places: list[str]) -> Tensor:
    if not places:
        return reshape(x, [Dimension(_PLACES, 1), *x.shape])
    return x if len(places) == 1 else merge(x, places, _PLACES)


def _check_updates(x: Tensor, ids: Tensor, updates: Tensor, dim: str) -> None:
    require_dim(x.shape, dim)
    wanted = ids.shape + x.shape.without(dim, *ids.shape.names)
    if dim in ids.shape or set(wanted) != set(updates.shape):
        raise ShapeError(
            explain_error(
                f'the updates of rows of "{dim}" have the dimensions of ids and the '
                "others of x.",
                x=repr(x.shape),
                ids=repr(ids.shape),
                updates=repr(updates.shape),
                way_out=f"Bring them to {wanted!r}, in any order.",
            )
        )
