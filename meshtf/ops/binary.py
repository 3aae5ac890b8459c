"""The ops behind meshtf.ops.arithmetic: two tensors that meet by names, or a tensor and a number.

    x[batch d] + b[d] -> [batch d]        one TensorFlow op: trailing names broadcast by themselves
    x * 2, 1 - x                          the number is an attribute: one TensorFlow op
    x[batch d] < y[batch] -> bool
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, explain_error
from meshtf.graph import At, Op, Sample, Spec, Tensor, apply, apply_all
from meshtf.names import is_floating, is_integer
from meshtf.ops.broadcasting import align, check_scalar, is_scalar, join, onto, plain, same_dtype

_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": tf.add, "subtract": tf.subtract, "multiply": tf.multiply, "divide": tf.divide,
    "floordiv": tf.math.floordiv, "floormod": tf.math.floormod, "pow": tf.pow,
    "maximum": tf.maximum, "minimum": tf.minimum,
    "squared_difference": tf.math.squared_difference,
    "less": tf.less, "less_equal": tf.less_equal, "greater": tf.greater,
    "greater_equal": tf.greater_equal, "equal": tf.equal, "not_equal": tf.not_equal,
    "logical_and": tf.logical_and, "logical_or": tf.logical_or,
    "logical_xor": lambda x, y: tf.not_equal(x, y)}
_COMPARE = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
_LOGICAL = ("logical_and", "logical_or", "logical_xor")
_STEPPED = ("floordiv", *_COMPARE, *_LOGICAL)        # no gradient: constant almost everywhere
# With a number these are faster as another function.
_POWERS = {2: tf.square, 3: lambda x: tf.square(x) * x, 0.5: tf.sqrt, -0.5: tf.math.rsqrt,
           -1: tf.math.reciprocal, 1: tf.identity}


def _result(fn: str, dtype: str) -> str:
  """Returns the data type of the result. Raises DTypeError if fn does not take this type."""
  takes_bool = fn in _LOGICAL or fn in ("equal", "not_equal")
  if fn in _LOGICAL and dtype != "bool":
    way_out = "Make truth values of it first, as in x != 0."
  elif dtype == "bool" and not takes_bool:
    way_out = f"Make numbers of it first, as in mtf.cast(x, {'int32'!r})."
  elif fn == "divide" and not is_floating(dtype):
    way_out = f"Use x // y, or make floats of it first, as in mtf.cast(x, {'float32'!r})."
  else:
    return "bool" if fn in _COMPARE else dtype
  raise DTypeError(explain_error(f"{fn} does not take the type {dtype}.", way_out=way_out))


def _samples() -> tuple[Sample, ...]:
  found = []
  for fn in _FUNCTIONS:
    kind = {"floordiv": "positive ", "floormod": "positive ", "pow": "positive ",
            "divide": "positive "}.get(fn, "bool " if fn in _LOGICAL else "ties ")
    gradient = fn not in _STEPPED
    # TensorFlow's tape gives the whole gradient of a tie to one of the two.
    kind = "" if fn in ("maximum", "minimum") else kind
    # How names meet is the same code for all: three functions with different gradients try it.
    shapes = [("d:6;b:4", "b:4")]
    if fn in ("add", "multiply", "maximum"):
      shapes += [("b:4;d:6", "b:4;d:6"), ("b:3;d:5", "d:5"), ("b:4", "d:6"),
                 ("b:4;l:3;d:6", "d:6;b:4"), ("", "b:4;d:6")]
    found += [Sample((fn,), (kind + x, kind + y), gradient=gradient) for x, y in shapes]
    if fn in ("add", "maximum", "less", "not_equal"):
      found.append(Sample((fn,), ("int b:4;d:6", "int d:6"), gradient=False))
  return tuple(found)


@dataclasses.dataclass(frozen=True)
class Binary(Op):
  """A function of two tensors, broadcast by names."""

  fn: str

  samples = _samples()

  @property
  def title(self) -> str:
    return self.fn

  @property
  def linear(self) -> Any:
    return {"add": "joint", "subtract": "joint", "multiply": "each"}.get(self.fn)

  def out(self, x: Spec, y: Spec) -> tuple[Spec, ...]:
    return (Spec(join(x.shape, y.shape), _result(self.fn, same_dtype(x, y))),)

  def local(self, at: At, x: Any, y: Any) -> tuple[Any, ...]:
    if at.inputs[0] != at.inputs[1]:
      x, y = (align(v, s, at.outputs[0]) for v, s in zip((x, y), at.inputs, strict=True))
    return (_FUNCTIONS[self.fn](x, y),)

  def gradient(self, dz: Any, z: Any, x: Any, y: Any) -> list[Any]:
    if self.fn in _STEPPED:
      return [None, None]
    dx, dy = _GRADIENTS[self.fn](dz, z, x, y)
    return [onto(dx, x), onto(dy, y)]


@dataclasses.dataclass(frozen=True)
class BinaryGrad(Op):
  """The two gradients of maximum, minimum or pow, both with the names of dz, in one op."""

  fn: str

  samples = tuple(
      Sample((fn,), ("b:4;d:6", kind + "b:4;d:6", kind + "d:6"), gradient=False)
      for fn, kind in (("maximum", "ties "), ("minimum", "ties "), ("pow", "positive ")))

  @property
  def title(self) -> str:
    return self.fn + "_grad"

  def out(self, dz: Spec, x: Spec, y: Spec) -> tuple[Spec, ...]:
    return (dz, dz)

  def local(self, at: At, dz: Any, x: Any, y: Any) -> tuple[Any, ...]:
    x, y = (align(v, s, at.outputs[0]) for v, s in zip((x, y), at.inputs[1:], strict=True))
    if self.fn == "pow":
      return _pow_gradients(dz, x, y)
    zero, half = tf.zeros([], dz.dtype), dz * tf.constant(0.5, dz.dtype)
    first, second = (x > y, x < y) if self.fn == "maximum" else (x < y, x > y)
    return (tf.where(first, dz, tf.where(second, zero, half)),
            tf.where(second, dz, tf.where(first, zero, half)))


def _pow_gradients(dz: Any, x: Any, y: Any) -> tuple[Any, Any]:
  # x ** 0 is constant, and the logarithm of a base that is not above zero has no part in the
  # gradient: both are chosen, so that no NaN or infinity comes from the branch not taken.
  zero, one = tf.zeros([], dz.dtype), tf.ones([], dz.dtype)
  dx = tf.where(tf.equal(y, 0), zero, dz * y * tf.pow(x, tf.where(tf.equal(y, 0), one, y - one)))
  above = tf.greater(x, 0)
  safe = tf.where(above, x, one)
  return dx, tf.where(above, dz * tf.pow(safe, y) * tf.math.log(safe), zero)


def _divide_gradients(dz: Any, z: Any, x: Any, y: Any) -> tuple[Any, Any]:
  dx = dz / y
  return dx, -(dx * z)


def _squared_difference_gradients(dz: Any, z: Any, x: Any, y: Any) -> tuple[Any, Any]:
  dx = dz * 2.0 * (x - y)
  return dx, -dx


def _fused(fn: str) -> Callable[..., Any]:
  def gradients(dz: Any, z: Any, x: Any, y: Any) -> Any:
    return apply_all(BinaryGrad(fn), dz, x, y)
  return gradients


_GRADIENTS: dict[str, Callable[..., Any]] = {
    "add": lambda dz, z, x, y: (dz, dz),
    "subtract": lambda dz, z, x, y: (dz, -dz),
    "multiply": lambda dz, z, x, y: (dz * y, dz * x),
    "divide": _divide_gradients,
    "floormod": lambda dz, z, x, y: (dz, -(dz * (x // y))),
    "squared_difference": _squared_difference_gradients,
    "maximum": _fused("maximum"), "minimum": _fused("minimum"), "pow": _fused("pow")}


def _scalar_samples() -> tuple[Sample, ...]:
  found = []
  for fn in _FUNCTIONS:
    if fn in ("maximum", "minimum"):      # these are clip
      continue
    kind = "bool " if fn in _LOGICAL else "positive " if fn in ("divide", "floordiv", "floormod",
                                                              "pow") else "ties "
    value = True if fn in _LOGICAL else 1.5
    found += [Sample((fn, value, swapped), (kind + "b:4;d:6",), gradient=fn not in _STEPPED)
              for swapped in (False, True)]
    if fn not in _LOGICAL and fn != "divide":
      found.append(Sample((fn, 3), ("int b:3;d:5",), gradient=False))
  return (*found, *(Sample(("pow", n), ("positive b:4",)) for n in (*_POWERS, 0, -2.5)),
          Sample(("pow", 2), ("b:4;d:6",)), Sample(("pow", 4), ("b:4;d:6",)))


@dataclasses.dataclass(frozen=True)
class Scalar(Op):
  """A function of a tensor and a number: fn(x, value), or fn(value, x) if swapped."""

  fn: str
  value: bool | int | float
  swapped: bool = False

  samples = _scalar_samples()

  @property
  def title(self) -> str:
    return self.fn

  @property
  def linear(self) -> Any:
    """Unfinished sums may be scaled; a number added to each of them would be added many times."""
    scales = self.fn == "multiply" or (self.fn == "divide" and not self.swapped)
    return "joint" if scales else None

  def out(self, x: Spec) -> tuple[Spec, ...]:
    check_scalar(self.value, x.dtype)
    if self.fn == "pow" and is_integer(x.dtype) and self.value < 0 and not self.swapped:
      raise DTypeError(explain_error(
          f"an integer to the power {self.value} is no integer.",
          way_out="Make floats of it first, as in mtf.cast(x, 'float32')."))
    return (Spec(x.shape, _result(self.fn, x.dtype)),)

  def local(self, at: At, x: Any) -> tuple[Any, ...]:
    if self.fn == "pow" and not self.swapped and self.value in _POWERS:
      return (_POWERS[self.value](x),)
    value = tf.constant(self.value, x.dtype)
    return (_FUNCTIONS[self.fn](*((value, x) if self.swapped else (x, value))),)

  def gradient(self, dz: Any, z: Any, x: Any) -> list[Any]:
    if self.fn in _STEPPED:
      return [None]
    return [(_SWAPPED if self.swapped else _SCALED)[self.fn](dz, z, x, self.value)]


def _power_gradient(dz: Any, z: Any, x: Any, c: Any) -> Tensor:
  return dz * 0.0 if c == 0 else dz * (x ** (c - 1) * c)


def _base_gradient(dz: Any, z: Any, x: Any, c: Any) -> Tensor:
  return dz * z * (math.log(c) if c > 0 else 0.0)


_SCALED: dict[str, Callable[..., Any]] = {
    "add": lambda dz, z, x, c: dz,
    "subtract": lambda dz, z, x, c: dz,
    "multiply": lambda dz, z, x, c: dz * c,
    "divide": lambda dz, z, x, c: dz / c,
    "floormod": lambda dz, z, x, c: dz,
    "pow": _power_gradient,
    "squared_difference": lambda dz, z, x, c: (x - c) * 2.0 * dz}
_SWAPPED: dict[str, Callable[..., Any]] = _SCALED | {
    "subtract": lambda dz, z, x, c: -dz,
    "divide": lambda dz, z, x, c: -(dz * z / x),
    "floormod": lambda dz, z, x, c: -(dz * (c // x)),
    "pow": _base_gradient}


def combine(fn: str, x: Any, y: Any) -> Tensor:
  """Returns fn(x, y), where one of the two may be a number."""
  if is_scalar(x) and is_scalar(y):
    raise DTypeError(f"{fn} of two numbers: one of them must be a tensor.")
  if is_scalar(x) or is_scalar(y):
    return apply(Scalar(fn, plain(x), True), y) if is_scalar(x) else apply(Scalar(fn, plain(y)), x)
  return apply(Binary(fn), x, y)
