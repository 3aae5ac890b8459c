"""Functions of one tensor, element by element, and their gradients.

Where a gradient has a kernel of few passes over memory, it is an op of its own: `UnaryGrad`, with
the formulas of ops/kernels.py. Else it is a rule in named ops:

    d tanh    apply(UnaryGrad("tanh"), dy, y)
    d exp     dy * y
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.errors import DTypeError, explain_error
from meshtf.graph import OPERATORS, At, Op, Sample, Spec, Tensor, apply
from meshtf.names import is_floating
from meshtf.ops.kernels import FUSED_GRADIENTS, gelu_exact_kernel, gelu_kernel, silu_kernel


class Function(NamedTuple):
  """A row of the table."""

  local: Callable[[Any], Any]
  # The gradient: a rule in named ops, or the names of what a fused one reads; None: there is none.
  gradient: Callable[[Any, Any, Any], Tensor] | str | None = None
  sample: str = ""
  takes: str = "float"            # "float", "number" or "bool"


_TABLE: dict[str, Function] = {
    "exp": Function(tf.exp, lambda dy, y, x: dy * y),
    "log": Function(tf.math.log, lambda dy, y, x: dy / x, "positive "),
    "log1p": Function(tf.math.log1p, lambda dy, y, x: dy / (x + 1.0), "positive "),
    "sqrt": Function(tf.sqrt, "y", "positive "),
    "rsqrt": Function(tf.math.rsqrt, "y", "positive "),
    "square": Function(tf.square, lambda dy, y, x: dy * (x * 2.0), takes="number"),
    "tanh": Function(tf.tanh, "y"),
    "sigmoid": Function(tf.sigmoid, "y"),
    "relu": Function(tf.nn.relu, "y", takes="number"),
    "gelu": Function(gelu_kernel, "x"),
    "gelu_exact": Function(gelu_exact_kernel, "x"),
    "silu": Function(silu_kernel, "x"),
    "softplus": Function(tf.math.softplus, "x"),
    "erf": Function(tf.math.erf,
                    lambda dy, y, x: dy * exp(negative(square(x))) * (2 / math.sqrt(math.pi))),
    "sin": Function(tf.sin, lambda dy, y, x: dy * cos(x)),
    "cos": Function(tf.cos, lambda dy, y, x: -(dy * sin(x))),
    "abs": Function(tf.abs, lambda dy, y, x: dy * sign(x), takes="number"),
    "negative": Function(tf.negative, lambda dy, y, x: -dy, takes="number"),
    "sign": Function(tf.sign, takes="number"),
    "reciprocal": Function(tf.math.reciprocal, "y", "positive "),
    "floor": Function(tf.floor),
    "round": Function(tf.round),
    "is_finite": Function(tf.math.is_finite),
    "logical_not": Function(tf.logical_not, sample="bool ", takes="bool"),
}
# What a fused gradient itself depends on besides dy, for gradients of gradients: (dz, z, dy, v).
_SECOND: dict[str, Callable[[Any, Any, Any, Any], Tensor | None]] = {
    "sqrt": lambda dz, z, dy, y: -(dz * z / y),
    "rsqrt": lambda dz, z, dy, y: dz * z * 3.0 / y,
    "tanh": lambda dz, z, dy, y: dz * dy * y * -2.0,
    "sigmoid": lambda dz, z, dy, y: dz * dy * (1.0 - y * 2.0),
    "relu": lambda dz, z, dy, y: None,
    "softplus": lambda dz, z, dy, x: dz * z * sigmoid(-x),
    "reciprocal": lambda dz, z, dy, y: dz * dy * y * -2.0,
}


@dataclasses.dataclass(frozen=True)
class Unary(Op):
  """A function of each element."""

  fn: str

  samples = tuple(
      Sample((fn,), (f"{row.sample}{dims}",), gradient=row.gradient is not None)
      for fn, row in _TABLE.items() for dims in ("b:4;d:6", "d:5;b:3")) + tuple(
          Sample((fn,), ("int b:4;d:6",), gradient=False)
          for fn, row in _TABLE.items() if row.takes == "number")

  @property
  def title(self) -> str:
    return self.fn

  @property
  def linear(self) -> Any:
    return "joint" if self.fn == "negative" else None

  def out(self, x: Spec) -> tuple[Spec, ...]:
    takes = _TABLE[self.fn].takes
    if takes == "bool" and x.dtype != "bool":
      way_out = "Make truth values of it first, as in x != 0."
    elif takes == "float" and not is_floating(x.dtype) or takes == "number" and x.dtype == "bool":
      way_out = "Convert it first, as in mtf.cast(x, \"float32\")."
    else:
      return (Spec(x.shape, "bool" if self.fn == "is_finite" else x.dtype),)
    raise DTypeError(explain_error(f"{self.fn} does not take the type {x.dtype}.", way_out=way_out))

  def local(self, at: At, x: Any) -> tuple[Any, ...]:
    return (_TABLE[self.fn].local(x),)

  def gradient(self, dy: Any, y: Any, x: Any) -> list[Any]:
    rule = _TABLE[self.fn].gradient
    if rule is None:
      return [None]
    if isinstance(rule, str):
      return [apply(UnaryGrad(self.fn), dy, y if rule == "y" else x)]
    return [rule(dy, y, x)]


@dataclasses.dataclass(frozen=True)
class UnaryGrad(Op):
  """The gradient of a function of each element, from dy and the function's input or output."""

  fn: str

  samples = tuple(Sample((fn,), ("b:4;d:6", f"{_TABLE[fn].sample}b:4;d:6"), gradient=fn in _SECOND)
                  for fn in FUSED_GRADIENTS)

  @property
  def title(self) -> str:
    return self.fn + "_grad"

  def out(self, dy: Spec, v: Spec) -> tuple[Spec, ...]:
    return (v,)

  def local(self, at: At, dy: Any, v: Any) -> tuple[Any, ...]:
    return (FUSED_GRADIENTS[self.fn](dy, v),)

  def gradient(self, dz: Any, z: Any, dy: Any, v: Any) -> list[Any]:
    if self.fn not in _SECOND:
      raise NotImplementedError
    return [apply(self, dz, v), _SECOND[self.fn](dz, z, dy, v)]


def exp(x: Any) -> Tensor:
  """Returns e to the power x."""
  return apply(Unary("exp"), x)


def log(x: Any) -> Tensor:
  """Returns the natural logarithm."""
  return apply(Unary("log"), x)


def log1p(x: Any) -> Tensor:
  """Returns log(1 + x), exact for small x."""
  return apply(Unary("log1p"), x)


def sqrt(x: Any) -> Tensor:
  """Returns the square root."""
  return apply(Unary("sqrt"), x)


def rsqrt(x: Any) -> Tensor:
  """Returns 1 / sqrt(x)."""
  return apply(Unary("rsqrt"), x)


def square(x: Any) -> Tensor:
  """Returns x * x."""
  return apply(Unary("square"), x)


def tanh(x: Any) -> Tensor:
  """Returns the hyperbolic tangent."""
  return apply(Unary("tanh"), x)


def sigmoid(x: Any) -> Tensor:
  """Returns 1 / (1 + exp(-x))."""
  return apply(Unary("sigmoid"), x)


def relu(x: Any) -> Tensor:
  """Returns x where it is positive, else 0."""
  return apply(Unary("relu"), x)


def gelu(x: Any, approximate: bool = True) -> Tensor:
  """Returns x times the normal distribution function of x, by tanh or exactly."""
  return apply(Unary("gelu" if approximate else "gelu_exact"), x)


def silu(x: Any) -> Tensor:
  """Returns x * sigmoid(x)."""
  return apply(Unary("silu"), x)


def softplus(x: Any) -> Tensor:
  """Returns log(1 + exp(x))."""
  return apply(Unary("softplus"), x)


def erf(x: Any) -> Tensor:
  """Returns the error function."""
  return apply(Unary("erf"), x)


def sin(x: Any) -> Tensor:
  """Returns the sine."""
  return apply(Unary("sin"), x)


def cos(x: Any) -> Tensor:
  """Returns the cosine."""
  return apply(Unary("cos"), x)


def abs(x: Any) -> Tensor:
  """Returns the absolute value."""
  return apply(Unary("abs"), x)


def negative(x: Any) -> Tensor:
  """Returns -x."""
  return apply(Unary("negative"), x)


def sign(x: Any) -> Tensor:
  """Returns -1, 0 or 1; it has no gradient."""
  return apply(Unary("sign"), x)


def reciprocal(x: Any) -> Tensor:
  """Returns 1 / x."""
  return apply(Unary("reciprocal"), x)


def floor(x: Any) -> Tensor:
  """Returns x rounded down; it has no gradient."""
  return apply(Unary("floor"), x)


def round(x: Any) -> Tensor:
  """Returns x rounded to the nearest integer, halves to the even one; it has no gradient."""
  return apply(Unary("round"), x)


def is_finite(x: Any) -> Tensor:
  """Returns whether x is neither infinite nor NaN."""
  return apply(Unary("is_finite"), x)


def logical_not(x: Any) -> Tensor:
  """Returns whether x is False."""
  return apply(Unary("logical_not"), x)


for _function in (abs, negative, logical_not):
  OPERATORS[_function.__name__] = _function
