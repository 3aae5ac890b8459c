"""All functions that work element by element, from one place.

    arithmetic   two tensors that meet by names, or a tensor and a number
    unary        one tensor
    activations  one tensor, in networks
    complex      complex numbers and their parts
    choosing     where, cast, clip
    broadcasting how axes are turned so that names meet
"""

from meshtf.ops.activations import (
  elu,
  gelu,
  leaky_relu,
  relu,
  selu,
  silu,
  squared_relu,
)
from meshtf.ops.arithmetic import (
  add,
  atan2,
  divide,
  divide_no_nan,
  equal,
  floordiv,
  floormod,
  greater,
  greater_equal,
  less,
  less_equal,
  logaddexp,
  logical_and,
  logical_or,
  logical_xor,
  maximum,
  minimum,
  multiply,
  not_equal,
  pow,
  squared_difference,
  subtract,
)
from meshtf.ops.broadcasting import align, onto
from meshtf.ops.choosing import cast, clip, where
from meshtf.ops.complex import complex, conj, imag, real
from meshtf.ops.unary import (
  abs,
  acos,
  angle,
  asin,
  atan,
  ceil,
  cos,
  cosh,
  digamma,
  erf,
  erfinv,
  exp,
  expm1,
  floor,
  is_finite,
  is_nan,
  lgamma,
  log,
  log1p,
  logical_not,
  negative,
  reciprocal,
  round,
  rsqrt,
  sigmoid,
  sign,
  sin,
  sinh,
  softplus,
  sqrt,
  square,
  tan,
  tanh,
)

__all__ = [
    "abs", "acos", "add", "align", "angle", "asin", "atan", "atan2", "cast", "ceil", "clip",
    "complex", "conj", "cos", "cosh", "digamma", "divide", "divide_no_nan", "elu", "equal",
    "erf", "erfinv", "exp", "expm1", "floor", "floordiv", "floormod", "gelu", "greater",
    "greater_equal", "imag", "is_finite", "is_nan", "leaky_relu", "less", "less_equal",
    "lgamma", "log", "log1p", "logaddexp", "logical_and", "logical_not", "logical_or",
    "logical_xor", "maximum", "minimum", "multiply", "negative", "not_equal", "onto", "pow",
    "real", "reciprocal", "relu", "round", "rsqrt", "selu", "sigmoid", "sign", "silu", "sin",
    "sinh", "softplus", "sqrt", "square", "squared_difference", "squared_relu", "subtract",
    "tan", "tanh", "where"]
