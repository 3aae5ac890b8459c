"""Broadcasting by names, and the pointwise ops that choose or convert: where, cast, clip.

Tensors meet by names, so [batch d] + [d] and [d batch] * [batch] both work. `align` turns a tensor's
axes so that TensorFlow's own broadcasting does the rest; where nothing must turn it adds no op:

    [d batch] with the output [batch d]                 a transposition
    [batch] with the output [batch d]                   a reshape to [batch, 1], which moves nothing
    [d] or [batch d] with the output [batch d]          nothing
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import At, Op, Sample, Spec, Tensor, apply
from meshtf.names import Shape, dtype_name, is_floating, is_integer


def align(x: Any, shape: Shape, out: Shape) -> Any:
  """Returns the TensorFlow tensor x[shape] with its axes where broadcasting to `out` finds them."""
  names, order = shape.names, out.names
  present = [n for n in order if n in shape]
  if tuple(present) != names:
    x = tf.transpose(x, [shape.index(n) for n in present])
  if tuple(present) == order[len(order) - len(present):]:
    return x
  return tf.reshape(x, [shape.get(n) for n in order[out.index(present[0]):]])


def join(*shapes: Shape) -> Shape:
  """Returns the shape that broadcasting by names gives. Raises ShapeError where sizes clash."""
  sizes: dict[str, int] = {}
  for shape in shapes:
    for d in shape:
      if sizes.setdefault(d.name, d.size) != d.size:
        raise ShapeError(explain_error(
            f"dimension {d.name!r} has the sizes {sizes[d.name]} and {d.size}.",
            way_out="Tensors meet by names: mtf.rename one of the dimensions if they are different "
                    "things."))
  return functools.reduce(Shape.union, shapes)


def onto(dy: Tensor | None, x: Tensor) -> Tensor | None:
  """Returns a broadcast cotangent summed over the names that x lacks, in x's order."""
  # Both modules' gradients use this one, so they are imported late.
  from meshtf.ops.reduce import reduce_sum
  from meshtf.ops.reshape import transpose
  if dy is None or dy.shape == x.shape:
    return dy
  extra = [n for n in dy.shape.names if n not in x.shape]
  if extra:
    dy = reduce_sum(dy, extra)
  return dy if dy.shape == x.shape else transpose(dy, list(x.shape.names))


def is_scalar(x: Any) -> bool:
  """Whether x is a plain number, which becomes an attribute of an op instead of a tensor."""
  return isinstance(x, (bool, int, float, np.generic)) or (isinstance(x, np.ndarray) and not x.ndim)


def plain(x: Any) -> bool | int | float:
  """Returns a number as a Python number, which is the same in every op that holds it."""
  return x.item() if isinstance(x, (np.generic, np.ndarray)) else x


def check_scalar(value: Any, dtype: str) -> None:
  """Raises DTypeError if `value` is no number of this type."""
  if isinstance(value, bool) and dtype != "bool":
    way_out = "Write 0 or 1 instead of a truth value."
  elif not isinstance(value, bool) and dtype == "bool":
    way_out = "Turn the tensor into numbers first, with mtf.cast(x, \"int32\")."
  elif isinstance(value, float) and is_integer(dtype):
    way_out = "Turn the tensor into floats first, with mtf.cast(x, \"float32\"), or write an integer."
  elif is_integer(dtype) and not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
    way_out = "Turn the tensor into a wider type first, with mtf.cast(x, \"int64\")."
  else:
    return
  raise DTypeError(explain_error(f"{value!r} is no value of the type {dtype}.", way_out=way_out))


def same_dtype(*xs: Spec) -> str:
  """Returns the common data type. Raises DTypeError if there is none."""
  for x in xs:
    if x.dtype != xs[0].dtype:
      raise DTypeError(explain_error(
          f"the data types {xs[0].dtype} and {x.dtype} do not mix.",
          way_out=f"Convert one of them, as in mtf.cast(x, {xs[0].dtype!r})."))
  return xs[0].dtype


@dataclasses.dataclass(frozen=True)
class Where(Op):
  """x where the condition holds, else y; a branch that is a number stands in `x` or `y`."""

  x: bool | int | float | None = None
  y: bool | int | float | None = None
  dtype: str = ""                       # of the result, where both branches are numbers

  samples = (Sample((), ("bool b:4;d:6", "b:4;d:6", "b:4;d:6")),
             Sample((), ("bool b:4", "b:4;d:6", "d:6;b:4")),
             Sample((), ("bool d:6;b:4", "b:4", "d:6")),
             Sample((None, 0.0), ("bool b:3;d:5", "b:3;d:5")),
             Sample((-1.5, None), ("bool d:6", "b:4;d:6")),
             Sample((1.0, 0.0, "float32"), ("bool b:4;d:6",), gradient=False),
             Sample((None, 7), ("bool b:4", "int d:6;b:4"), gradient=False))

  def out(self, condition: Spec, *branches: Spec) -> tuple[Spec, ...]:
    if condition.dtype != "bool":
      raise DTypeError(explain_error(
          f"the condition of where has the type {condition.dtype}, not bool.",
          way_out="Compare it with something, as in x != 0."))
    dtype = same_dtype(*branches) if branches else self.dtype
    for value in (self.x, self.y):
      if value is not None:
        check_scalar(value, dtype)
    return (Spec(join(condition.shape, *(b.shape for b in branches)), dtype),)

  def local(self, at: At, condition: Any, *branches: Any) -> tuple[Any, ...]:
    given = iter(align(b, s, at.outputs[0]) for b, s in zip(branches, at.inputs[1:], strict=True))
    dtype = branches[0].dtype if branches else self.dtype
    x, y = (next(given) if v is None else tf.constant(v, dtype) for v in (self.x, self.y))
    return (tf.where(align(condition, at.inputs[0], at.outputs[0]), x, y),)

  def gradient(self, dy: Any, y: Any, condition: Any, *branches: Any) -> list[Any]:
    # Chosen, never multiplied: a NaN in the branch that was not taken stays there.
    given = iter(branches)
    taken = [(Where(y=0.0), next(given))] if self.x is None else []
    taken += [(Where(x=0.0), next(given))] if self.y is None else []
    return [None, *(onto(apply(op, condition, dy), branch) for op, branch in taken)]


@dataclasses.dataclass(frozen=True)
class Cast(Op):
  """Another data type. Attributes: the old one and the new one."""

  old: str
  new: str

  samples = (Sample(("float32", "float64"), ("b:4;d:6",)),
             Sample(("float32", "int32"), ("ties b:3;d:5",), gradient=False),
             Sample(("int32", "float32"), ("int b:4",), gradient=False),
             Sample(("bool", "float32"), ("bool b:4;d:6",), gradient=False))

  @property
  def linear(self) -> Any:
    """Unfinished sums may become wider, which loses nothing; to round each one would lose."""
    wider = [("bfloat16", "float32"), ("float16", "float32"), ("float32", "float64"),
             ("bfloat16", "float64"), ("float16", "float64")]
    return "joint" if (self.old, self.new) in wider else None

  def out(self, x: Spec) -> tuple[Spec, ...]:
    return (Spec(x.shape, self.new),)

  def local(self, at: At, x: Any) -> tuple[Any, ...]:
    return (tf.cast(x, self.new),)

  def gradient(self, dy: Any, y: Any, x: Any) -> list[Any]:
    return [cast(dy, self.old) if is_floating(self.old) and is_floating(self.new) else None]


@dataclasses.dataclass(frozen=True)
class Clip(Op):
  """x, but not below `low` and not above `high`."""

  low: int | float | None = None
  high: int | float | None = None

  samples = (Sample((-0.5, 0.75), ("b:4;d:6",)), Sample((0.25, None), ("b:3;d:5",)),
             Sample((None, 0.25), ("d:5",)), Sample((2, 5), ("int b:4",), gradient=False))

  def out(self, x: Spec) -> tuple[Spec, ...]:
    for bound in (self.low, self.high):
      if bound is not None:
        check_scalar(bound, x.dtype)
    return (x,)

  def local(self, at: At, x: Any) -> tuple[Any, ...]:
    low, high = (None if v is None else tf.constant(v, x.dtype) for v in (self.low, self.high))
    if low is None or high is None:
      return (tf.minimum(x, high) if low is None else tf.maximum(x, low),)
    return (tf.raw_ops.ClipByValue(t=x, clip_value_min=low, clip_value_max=high),)  # one pass

  def gradient(self, dy: Any, y: Any, x: Any) -> list[Any]:
    return [apply(ClipGrad(self.low, self.high), dy, x)]


@dataclasses.dataclass(frozen=True)
class ClipGrad(Op):
  """dy where x lies within the bounds (on them, too), else 0."""

  low: int | float | None = None
  high: int | float | None = None

  samples = (Sample((-0.5, 0.75), ("b:4;d:6", "b:4;d:6")),)

  def out(self, dy: Spec, x: Spec) -> tuple[Spec, ...]:
    return (dy,)

  def local(self, at: At, dy: Any, x: Any) -> tuple[Any, ...]:
    low = -math.inf if self.low is None else self.low
    high = math.inf if self.high is None else self.high
    inside = tf.equal(x, tf.raw_ops.ClipByValue(
        t=x, clip_value_min=tf.constant(low, x.dtype), clip_value_max=tf.constant(high, x.dtype)))
    return (tf.where(inside, dy, tf.zeros([], dy.dtype)),)

  def gradient(self, dz: Any, z: Any, dy: Any, x: Any) -> list[Any]:
    return [apply(self, dz, x), None]


def where(condition: Any, x: Any, y: Any) -> Tensor:
  """Returns x where the condition holds and y elsewhere; x and y may be numbers."""
  branches = [b for b in (x, y) if not is_scalar(b)]
  numbers = [plain(b) if is_scalar(b) else None for b in (x, y)]
  # Two numbers: the type is the wider one's.
  dtype = "" if branches else dtype_name(max(map(type, numbers), key=[bool, int, float].index))
  return apply(Where(*numbers, dtype), condition, *branches)


def cast(x: Any, dtype: Any) -> Tensor:
  """Returns x as another data type."""
  new = dtype_name(dtype)
  return x if isinstance(x, Tensor) and x.dtype == new else apply(Cast(x.dtype, new), x)


def clip(x: Any, low: float | None = None, high: float | None = None) -> Tensor:
  """Returns x, but not below `low` and not above `high`; None is no bound."""
  low, high = (None if v is None else plain(v) for v in (low, high))
  return apply(Clip(low, high), x)
