"""Rows at a place that a tensor says: dynamic_slice, dynamic_update, dynamic_shift.

    part = mtf.dynamic_slice(x, "length", begin, "window:4")   # rows begin .. begin + 4
    cache = mtf.dynamic_update(cache, "length", step, row)     # row[batch d] goes there
    y = mtf.dynamic_shift(x, "length", by)                     # y[i] = x[i - by]

The place is an integer tensor: a scalar, or one number for each row of dimensions that
x has, as [batch]. Where the dimension is cut, each slice compares it to the numbers of
its own rows: an update moves nothing but the new rows, and what is read is added up
from the slices that have it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import LocalContext, Op, Role, Sample, Spec, Tensor, apply
from meshtf.graph.arguments import as_tensor
from meshtf.names import Dimension, ShapeLike, is_integer
from meshtf.names.arguments import as_bool
from meshtf.ops.common.broadcasting import align
from meshtf.ops.common.checks import require_dim, same_dtype, single_dim, tensor_along
from meshtf.ops.elementwise.arithmetic import add, floormod, less, outer, subtract
from meshtf.ops.elementwise.where_cast_clip import cast, clip, where
from meshtf.ops.indexing.gather import gather_with_bounds
from meshtf.ops.indexing.gather import range as rows_of
from meshtf.ops.indexing.index_bounds import Outside
from meshtf.ops.shapes.reshape import rename, reshape, transpose
from meshtf.ops.variables.fill import zeros_like


class DynamicUpdate(Op):
    """x[*outer, dim, *inner] with another's [*outer, rows, *inner] from row
    begin[*outer] on.

    `begin` may lack dimensions; all rows lie within x. Where one number says where they
    go, and x is used no more, as in a loop, nothing but the rows is written.
    """

    dim: str
    rows: str
    samples = (
        Sample(("n", "r"), ("a:2;n:8", "int a:2", "a:2;r:2")),
        Sample(("n", "r"), ("n:8;d:4", "int ", "r:3;d:4"), 6),
        Sample(("n", "r"), ("b:2;a:4;n:4", "int a:4", "b:2;a:4;r:1"), 4),
        Sample(("n", "r"), ("int n:8", "int ", "int r:1"), 8),
    )

    def output_specs(self, x: Spec, begin: Spec, rows: Spec) -> tuple[Spec, ...]:
        return (Spec(x.shape, same_dtype(x, rows)),)

    def role(self, factor: str) -> Role:
        return Role.WHOLE if factor == self.rows else Role.MAP

    def local(
        self, context: LocalContext, x: Any, begin: Any, rows: Any
    ) -> tuple[Any, ...]:
        outer = context.inputs[0].only(
            context.inputs[0].names[: context.axis(0, self.dim)]
        )
        n, size, cut = (
            context.local_size(self.dim),
            context.local_size(self.rows),
            context.num_shards(self.dim) > 1,
        )
        begin = begin - context.shard_offset(self.dim) if cut else begin
        x_rows, rows = (
            tf.reshape(y, [outer.size, k, -1]) for y, k in ((x, n), (rows, size))
        )
        if context.compiled or context.inputs[1].names or cut and size > 1:
            begin = tf.broadcast_to(align(begin, context.inputs[1], outer), outer.sizes)
            y = _scattered(x_rows, tf.reshape(begin, [-1, 1, 1]), rows)
        else:
            if cut:  # the row itself goes where another slice's is meant
                mine, begin = (begin >= 0) & (begin < n), begin % n
                rows = tf.where(mine, rows, tf.gather(x_rows, begin, axis=1)[:, None])
            y = _written(x_rows, begin, rows)
        return (tf.reshape(y, x.shape),)

    def gradient(
        self, dy: Tensor, y: Tensor, x: Tensor, begin: Tensor, rows: Tensor
    ) -> list[Tensor | None]:
        dx = apply(self, dy, begin, zeros_like(rows))
        numbers = add(begin, rows_of(x.mesh, rows.shape.dim(self.rows)))
        inside = where(less(numbers, x.shape[self.dim]), numbers, -1)
        drows = gather_with_bounds(dy, inside, self.dim, "zeros")
        return [dx, None, transpose(drows, rows.shape.names)]


def _written(x: Any, begin: Any, rows: Any) -> Any:
    """Returns x[groups, n, inner] with rows[groups, size, inner] from row begin[] on,
    all within.

    Of the kernels that update a tensor this one does so in place, where x is used no
    more. XLA would take `begin` for a constant.
    """
    (groups, _, inner), size = x.shape, rows.shape[1]
    return tf.raw_ops.TensorStridedSliceUpdate(
        input=x,
        begin=tf.stack([0, begin, 0]),
        end=tf.stack([groups, begin + size, inner]),
        strides=[1, 1, 1],
        value=rows,
    )


def _scattered(x: Any, begin: Any, rows: Any) -> Any:
    """Returns the same with places of their own, begin[groups, 1, 1], some of them
    outside of x.
    """
    groups, size = rows.shape[:2]
    places = np.stack(
        np.meshgrid(range(groups), range(size), indexing="ij"), -1
    ).astype("int32")
    return tf.raw_ops.TensorScatterUpdate(
        tensor=x,
        indices=places + begin * np.array([0, 1], "int32"),
        updates=rows,
        bad_indices_policy="IGNORE",
    )


def dynamic_slice(x: Tensor, dim: str, begin: Tensor, rows: int | ShapeLike) -> Tensor:
    """Returns some rows of one dimension, from row `begin` on: x with `rows` instead of
    `dim`.

    As XLA has it, `begin` is brought into range, so that all rows are there.

    Args:
      x: any tensor.
      dim: the name of the rows.
      begin: an integer tensor, scalar or with names of x.
      rows: how many; or with a new name, such as "window:4", which a layout of `dim`
        does not cut.

    Raises:
      ShapeError: x lacks `dim` or a name of `begin`, or has fewer rows.
      DTypeError: `begin` is no integer.
    """
    x, dim = tensor_along(x, dim)
    new = Dimension(dim, rows) if isinstance(rows, int) else single_dim(rows)
    begin = _in_range(x, dim, begin, new.size)
    return _gathered(
        x,
        dim,
        outer(begin, rows_of(x.mesh, Dimension("." + dim, new.size)), add),
        new.name,
    )


def dynamic_update(x: Tensor, dim: str, begin: Tensor, rows: Tensor) -> Tensor:
    """Returns x with its rows of one dimension from `begin` on replaced.

    As XLA has it, `begin` is brought into range, so that all rows find place.

    Args:
      x: any tensor.
      dim: the name of the rows.
      begin: an integer tensor, scalar or with names of x.
      rows: a tensor like x, which has instead of `dim` another size of it, or any other
        name, or none: then it is one row. Dimensions may be in any order.

    Raises:
      ShapeError: x lacks `dim` or a name of `begin`, or `rows` do not fit.
      DTypeError: `begin` is no integer, or data types differ.
    """
    x, dim = tensor_along(x, dim)
    rows = as_tensor("rows", rows)
    rest = x.shape.without(dim)
    new = [d for d in rows.shape if d not in set(rest)]
    if len(new) > 1 or not set(rest) <= set(rows.shape):
        raise ShapeError(
            explain_error(
                f'the new rows differ from the tensor in more than "{dim}".',
                tensor=repr(x.shape),
                rows=repr(rows.shape),
            )
        )
    size = new[0].size if new else 1
    begin = _in_range(x, dim, begin, size)
    places, order = "." + dim, list(x.shape.names)
    if any(order.index(n) > order.index(dim) for n in begin.shape.names):
        order = [*begin.shape.names, *(n for n in order if n not in begin.shape)]
    rows = rename(rows, {new[0].name: places}) if new else rows
    rows = transpose(
        rows, [places if n == dim else n for n in order if new or n != dim]
    )
    if not new:
        rows = reshape(
            rows,
            [Dimension(places, 1) if n == dim else rows.shape.dim(n) for n in order],
        )
    return transpose(
        apply(DynamicUpdate(dim, places), transpose(x, order), begin, rows), x.shape
    )


def dynamic_shift(x: Tensor, dim: str, by: Tensor, wrap: bool = False) -> Tensor:
    """Returns x moved along one dimension: row i is row i - by of x.

    Where `dim` is cut, every slice may need any row, so that this moves as much as all
    of x; `shift` and `roll`, which know how far, move what is lacking.

    Args:
      x: any tensor of numbers.
      dim: the name along which rows move.
      by: an integer tensor, scalar or with names of x.
      wrap: whether rows that leave at one end come in at the other; else zeros come in.

    Raises:
      ShapeError: x lacks `dim` or a name of `by`.
      DTypeError: `by` is no integer.
    """
    x, dim = tensor_along(x, dim)
    as_bool("wrap", wrap)
    by, size = _place(x, dim, by), x.shape[dim]
    rows = outer(rows_of(x.mesh, Dimension("." + dim, size)), by, subtract)
    if wrap:
        return _gathered(x, dim, floormod(rows, size), dim)
    return _gathered(x, dim, rows, dim, "zeros")


def _gathered(
    x: Tensor, dim: str, rows: Tensor, new: str, outside: Outside = "trusted"
) -> Tensor:
    y = rename(gather_with_bounds(x, rows, dim, outside), {"." + dim: new})
    return transpose(y, [new if n == dim else n for n in x.shape.names])


def _in_range(x: Tensor, dim: str, begin: Tensor, size: int) -> Tensor:
    begin = _place(x, dim, begin)
    if not 0 < size <= x.shape[dim]:
        raise ShapeError(
            explain_error(
                f"{x.shape.dim(dim)!r} has no {size} rows.", tensor=repr(x.shape)
            )
        )
    return clip(begin, 0, x.shape[dim] - size)


def _place(x: Tensor, dim: str, place: Tensor) -> Tensor:
    place = as_tensor("begin", place)
    require_dim(x.shape, dim)
    if not is_integer(place.dtype):
        raise DTypeError(
            explain_error(
                f"a row's number is an integer, not {place.dtype}.",
                way_out='Convert it: mtf.cast(begin, "int32").',
            )
        )
    if dim in place.shape or not set(place.shape) <= set(x.shape):
        raise ShapeError(
            explain_error(
                f'there is one place in "{dim}" for each row of other dimensions of '
                "the tensor, or one for all.",
                tensor=repr(x.shape),
                place=repr(place.shape),
            )
        )
    return cast(place, "int32")
