"""Rows at a place that a tensor says: dynamic_slice, dynamic_update, dynamic_shift.

    part = mtf.dynamic_slice(x, "length", begin, "window:4")   # rows begin .. begin + 4
    cache = mtf.dynamic_update(cache, "length", step, row)     # row[batch d] goes there
    y = mtf.dynamic_shift(x, "length", by)                     # y[i] = x[i - by]

The place is an integer tensor: a scalar, or one number for each row of dimensions that x has, as
[batch]. Where the dimension is cut, each slice compares it to the numbers of its own rows: an
update moves nothing but the new rows, and what is read is added up from the slices that have it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import At, Op, Role, Sample, Spec, Tensor, apply
from meshtf.names import Dimension, ShapeLike, is_integer
from meshtf.ops.arithmetic import add, floormod, less, subtract
from meshtf.ops.broadcasting import align, same_dtype
from meshtf.ops.choosing import cast, clip, where
from meshtf.ops.indexing import gather
from meshtf.ops.indexing import range as rows_of
from meshtf.ops.reshape import rename, require_dim, reshape, single_dim, transpose
from meshtf.ops.state import zeros_like


@dataclasses.dataclass(frozen=True)
class UpdateRows(Op):
  """x[*outer, dim, *inner] with another's [*outer, rows, *inner] from row begin[*outer] on.

  `begin` may lack dimensions. Rows that would lie outside are left out. Where x is used no more, as
  in a loop, nothing but the rows is written.
  """

  dim: str
  rows: str
  samples = (Sample(("n", "r"), ("a:2;n:8", "int a:2", "a:2;r:2")),
             Sample(("n", "r"), ("n:8;d:4", "int ", "r:3;d:4"), 6),
             Sample(("n", "r"), ("b:2;a:4;n:4", "int a:4", "b:2;a:4;r:1"), 4),
             Sample(("n", "r"), ("int n:8", "int ", "int r:1"), 9))

  def out(self, x: Spec, begin: Spec, rows: Spec) -> tuple[Spec, ...]:
    return (Spec(x.shape, same_dtype(x, rows)),)

  def role(self, factor: str) -> Role:
    return Role.WHOLE if factor == self.rows else Role.MAP

  def local(self, at: At, x: Any, begin: Any, rows: Any) -> tuple[Any, ...]:
    outer = at.inputs[0].only(at.inputs[0].names[:at.axis(0, self.dim)])
    groups, size = outer.size, at.size(self.rows)
    if at.parts(self.dim) > 1:
      begin -= at.offset(self.dim)
    if at.inputs[1].names:
      begin = tf.broadcast_to(align(begin, at.inputs[1], outer), outer.sizes)
      begin = tf.reshape(begin, [groups, 1, 1])
    # [groups, size, 2]: which group, and which of its rows; those that are not there are left out.
    places = np.stack(np.meshgrid(range(groups), range(size), indexing="ij"), -1).astype("int32")
    y = tf.raw_ops.TensorScatterUpdate(
        tensor=tf.reshape(x, [groups, at.size(self.dim), -1]),
        indices=places + begin * np.array([0, 1], "int32"),
        updates=tf.reshape(rows, [groups, size, -1]), bad_indices_policy="IGNORE")
    return (tf.reshape(y, x.shape),)

  def gradient(self, dy: Tensor, y: Tensor, x: Tensor, begin: Tensor, rows: Tensor
               ) -> list[Tensor | None]:
    dx = apply(self, dy, begin, zeros_like(rows))
    numbers = add(begin, rows_of(x.mesh, rows.shape.dim(self.rows)))
    inside = where(less(numbers, x.shape[self.dim]), numbers, -1)
    drows = gather(dy, inside, self.dim, zero_negative=True)
    return [dx, None, transpose(drows, rows.shape.names)]


def dynamic_slice(x: Tensor, dim: str, begin: Tensor, rows: int | ShapeLike) -> Tensor:
  """Returns some rows of one dimension, from row `begin` on: x with `rows` instead of `dim`.

  As XLA has it, `begin` is brought into range, so that all rows are there.

  Args:
    x: any tensor.
    dim: the name of the rows.
    begin: an integer tensor, scalar or with names of x.
    rows: how many; or with a new name, such as "window:4", which a layout of `dim` does not cut.

  Raises:
    ShapeError: x lacks `dim` or a name of `begin`, or has fewer rows.
    DTypeError: `begin` is no integer.
  """
  new = Dimension(dim, rows) if isinstance(rows, int) else single_dim(rows)
  begin = _in_range(x, dim, begin, new.size)
  return _gathered(x, dim, add(begin, rows_of(x.mesh, Dimension("." + dim, new.size))), new.name)


def dynamic_update(x: Tensor, dim: str, begin: Tensor, rows: Tensor) -> Tensor:
  """Returns x with its rows of one dimension from `begin` on replaced.

  As XLA has it, `begin` is brought into range, so that all rows find place.

  Args:
    x: any tensor.
    dim: the name of the rows.
    begin: an integer tensor, scalar or with names of x.
    rows: a tensor like x, which has instead of `dim` another size of it, or any other name, or
      none: then it is one row. Dimensions may be in any order.

  Raises:
    ShapeError: x lacks `dim` or a name of `begin`, or `rows` do not fit.
    DTypeError: `begin` is no integer, or data types differ.
  """
  require_dim(x.shape, dim)
  rest = x.shape.without(dim)
  new = [d for d in rows.shape if d not in set(rest)]
  if len(new) > 1 or not set(rest) <= set(rows.shape):
    raise ShapeError(explain_error(
        f'the new rows differ from the tensor in more than "{dim}".',
        tensor=repr(x.shape), rows=repr(rows.shape)))
  size = new[0].size if new else 1
  begin = _in_range(x, dim, begin, size)
  places, order = "." + dim, list(x.shape.names)
  if any(order.index(n) > order.index(dim) for n in begin.shape.names):
    order = [*begin.shape.names, *(n for n in order if n not in begin.shape)]
  rows = rename(rows, {new[0].name: places}) if new else rows
  rows = transpose(rows, [places if n == dim else n for n in order if new or n != dim])
  if not new:
    rows = reshape(rows, [Dimension(places, 1) if n == dim else rows.shape.dim(n) for n in order])
  return transpose(apply(UpdateRows(dim, places), transpose(x, order), begin, rows), x.shape)


def dynamic_shift(x: Tensor, dim: str, by: Tensor, wrap: bool = False) -> Tensor:
  """Returns x moved along one dimension: row i is row i - by of x.

  Where `dim` is cut, every slice may need any row, so that this moves as much as all of x;
  `shift` and `roll`, which know how far, move what is lacking.

  Args:
    x: any tensor of numbers.
    dim: the name along which rows move.
    by: an integer tensor, scalar or with names of x.
    wrap: whether rows that leave at one end come in at the other; else zeros come in.

  Raises:
    ShapeError: x lacks `dim` or a name of `by`.
    DTypeError: `by` is no integer.
  """
  by, size = _place(x, dim, by), x.shape[dim]
  rows = subtract(rows_of(x.mesh, Dimension("." + dim, size)), by)
  if wrap:
    return _gathered(x, dim, floormod(rows, size), dim)
  return _gathered(x, dim, where(less(rows, size), rows, -1), dim, zero_negative=True)


def _gathered(x: Tensor, dim: str, rows: Tensor, new: str, **how: Any) -> Tensor:
  y = rename(gather(x, rows, dim, **how), {"." + dim: new})
  return transpose(y, [new if n == dim else n for n in x.shape.names])


def _in_range(x: Tensor, dim: str, begin: Tensor, size: int) -> Tensor:
  begin = _place(x, dim, begin)
  if not 0 < size <= x.shape[dim]:
    raise ShapeError(explain_error(f"{x.shape.dim(dim)!r} has no {size} rows.",
                                   tensor=repr(x.shape)))
  return clip(begin, 0, x.shape[dim] - size)


def _place(x: Tensor, dim: str, place: Tensor) -> Tensor:
  require_dim(x.shape, dim)
  if not is_integer(place.dtype):
    raise DTypeError(explain_error(f"a row's number is an integer, not {place.dtype}.",
                                   way_out='Convert it: mtf.cast(begin, "int32").'))
  if dim in place.shape or not set(place.shape) <= set(x.shape):
    raise ShapeError(explain_error(
        f'there is one place in "{dim}" for each row of other dimensions of the tensor, or one for '
        f"all.", tensor=repr(x.shape), place=repr(place.shape)))
  return cast(place, "int32")
