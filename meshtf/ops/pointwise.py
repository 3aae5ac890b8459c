"""All functions that work element by element, from one place.

    arithmetic   two tensors that meet by names, or a tensor and a number
    unary        one tensor
    choosing     where, cast, clip
    broadcasting how axes are turned so that names meet
"""

from meshtf.ops.arithmetic import (
    add,
    divide,
    equal,
    floordiv,
    floormod,
    greater,
    greater_equal,
    less,
    less_equal,
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
from meshtf.ops.unary import (
    abs,
    cos,
    erf,
    exp,
    floor,
    gelu,
    is_finite,
    log,
    log1p,
    logical_not,
    negative,
    reciprocal,
    relu,
    round,
    rsqrt,
    sigmoid,
    sign,
    silu,
    sin,
    softplus,
    sqrt,
    square,
    tanh,
)

__all__ = [
    "abs", "add", "align", "cast", "clip", "cos", "divide", "equal", "erf", "exp", "floor",
    "floordiv", "floormod", "gelu", "greater", "greater_equal", "is_finite", "less", "less_equal",
    "log", "log1p", "logical_and", "logical_not", "logical_or", "logical_xor", "maximum", "minimum",
    "multiply", "negative", "not_equal", "onto", "pow", "reciprocal", "relu", "round", "rsqrt",
    "sigmoid", "sign", "silu", "sin", "softplus", "sqrt", "square", "squared_difference",
    "subtract", "tanh", "where"]
