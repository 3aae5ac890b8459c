"""Running sums along a dimension.

    x           [1 2 3 4]   on two devices: [1 2] [3 4]
    told         3   7      each slice tells its total
    cumsum(x)   [1 3] [6 10]   its own running sum, plus the totals of the slices before it
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError
from meshtf.graph import At, Op, Sample, Spec, Tensor, apply
from meshtf.ops.reshape import require_dim


@dataclasses.dataclass(frozen=True)
class Cumsum(Op):
  """Running sum along `dim`; exclusive: without the element itself; reverse: from the end."""

  dim: str
  exclusive: bool = False
  reverse: bool = False

  linear = "joint"
  samples = (Sample(("d",), ("b:4;d:6",)), Sample(("b", True), ("b:4;d:6",)),
             Sample(("d", False, True), ("c:2;d:4;b:3",)), Sample(("d", True, True), ("b:4;d:8",)),
             Sample(("d",), ("b:3;d:5",)), Sample(("d", True), ("int b:4;d:8",), gradient=False))

  def out(self, x: Spec) -> tuple[Spec, ...]:
    require_dim(x.shape, self.dim)
    if x.dtype == "bool":
      raise DTypeError('cumsum does not take bool: count with mtf.cast(x, "int32").')
    return (x,)

  def shared(self, factor: str) -> bool:
    return factor == self.dim

  def tells(self, x: Spec) -> tuple[Spec, ...]:
    return (Spec(x.shape.without(self.dim), x.dtype),)

  def share(self, at: At, x: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    axis = at.axis(0, self.dim)
    y = tf.cumsum(x, axis, exclusive=self.exclusive, reverse=self.reverse)
    last = [slice(None)] * axis + [slice(0, 1) if self.reverse else slice(-1, None)]
    total = y[last] + x[last] if self.exclusive else y[last]
    return (total,), (y,)

  def local(self, at: At, x: Any) -> tuple[Any, ...]:
    if at.told is None:
      return (tf.cumsum(x, at.axis(0, self.dim), exclusive=self.exclusive, reverse=self.reverse),)
    before = tf.cumsum(at.told[0], 0, exclusive=True, reverse=self.reverse)
    return (at.kept[0] + tf.gather(before, at.index(self.dim)),)

  def gradient(self, dy: Any, y: Any, x: Any) -> list[Any]:
    return [apply(Cumsum(self.dim, self.exclusive, not self.reverse), dy)]


def cumsum(x: Tensor, dim: str, exclusive: bool = False, reverse: bool = False) -> Tensor:
  """Returns the running sum along `dim`.

  Args:
    x: floats or integers.
    dim: the name to sum along.
    exclusive: whether each sum leaves out its own element.
    reverse: whether to sum from the end.

  Raises:
    ShapeError: x lacks `dim`.
    DTypeError: x is bool.
  """
  return apply(Cumsum(dim, exclusive, reverse), x)
