"""The ops behind meshtf.ops.elementwise.unary: functions of each element, in one table, and their
gradients.

Where a gradient has a kernel of few passes over memory, it is an op of its own:
`UnaryGrad`, with the formulas of ops/elementwise/fused_formulas.py. Else it is a rule in named ops:

    d tanh    apply(UnaryGrad("tanh"), dy, y)
    d cos     -(dy * sin(x))

A rule turns a zero cotangent into a zero at singular points, too, where a plain product
would make 0 * inf = NaN of it: `scaled(dy, by)` is dy * by, and `over(dy, by)` is dy /
by. Both kernels cost what a product costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.errors import DTypeError, explain_error
from meshtf.graph import LocalContext, Op, Sample, Spec, Tensor, apply
from meshtf.names import is_complex, is_integer, real_dtype
from meshtf.ops.elementwise.binary_op import Binary, over, scaled
from meshtf.ops.elementwise.complex import conj
from meshtf.ops.elementwise.fused_formulas import (
    FUSED_GRADIENTS,
    gelu_exact_kernel,
    gelu_kernel,
    silu_kernel,
    through_float32,
)
from meshtf.ops.elementwise.where_cast_clip import cast, where

_FLOAT, _ANALYTIC = ("float",), ("float", "complex")
_NUMBER, _ANY = ("float", "int"), ("float", "int", "complex")
Rule = Callable[[Any, Any, Any], Tensor]


class Function(NamedTuple):
    """A row of the table."""

    local: Callable[[Any], Any]
    # The gradient: a rule in named ops, or the names of what a fused one reads; None:
    # there is none.
    gradient: Rule | str | None = None
    takes: tuple[str, ...] = _FLOAT
    sample: str = ""
    gives: str = ""  # "bool", "real"; else the type that it takes


def call(fn: str, x: Any) -> Tensor:
    """Returns a function of the table of x."""
    return apply(Unary(fn), x)


def _abs_gradient(dy: Any, y: Any, x: Any) -> Tensor:
    if is_complex(x.dtype):
        return cast(apply(Binary("divide_no_nan"), dy, y), x.dtype) * x
    return dy * call("sign", x)


_TABLE: dict[str, Function] = {
    "exp": Function(tf.exp, lambda dy, y, x: scaled(dy, y), _ANALYTIC),
    "expm1": Function(tf.math.expm1, lambda dy, y, x: scaled(dy, y + 1.0)),
    "log": Function(tf.math.log, lambda dy, y, x: over(dy, x), _ANALYTIC, "positive "),
    "log1p": Function(
        tf.math.log1p, lambda dy, y, x: over(dy, x + 1.0), _FLOAT, "positive "
    ),
    "sqrt": Function(tf.sqrt, "y", _ANALYTIC, "positive "),
    "rsqrt": Function(tf.math.rsqrt, "y", _FLOAT, "positive "),
    "square": Function(tf.square, lambda dy, y, x: dy * (x * 2.0), _ANY),
    "reciprocal": Function(tf.math.reciprocal, "y", _ANALYTIC, "positive "),
    "negative": Function(tf.negative, lambda dy, y, x: -dy, _ANY),
    "abs": Function(tf.abs, _abs_gradient, _ANY, "ties ", "real"),
    "sign": Function(tf.sign, None, _NUMBER, "ties "),
    "sin": Function(tf.sin, lambda dy, y, x: dy * call("cos", x), _ANALYTIC),
    "cos": Function(tf.cos, lambda dy, y, x: -(dy * call("sin", x)), _ANALYTIC),
    "tan": Function(tf.tan, lambda dy, y, x: dy * (call("square", y) + 1.0)),
    "asin": Function(
        tf.asin,
        lambda dy, y, x: over(dy, call("sqrt", 1.0 - call("square", x))),
        _FLOAT,
        "unit ",
    ),
    "acos": Function(
        tf.acos,
        lambda dy, y, x: -over(dy, call("sqrt", 1.0 - call("square", x))),
        _FLOAT,
        "unit ",
    ),
    "atan": Function(tf.atan, lambda dy, y, x: dy / (call("square", x) + 1.0)),
    "sinh": Function(tf.sinh, lambda dy, y, x: scaled(dy, call("cosh", x))),
    "cosh": Function(tf.cosh, lambda dy, y, x: scaled(dy, call("sinh", x))),
    "tanh": Function(tf.tanh, "y", _ANALYTIC),
    "sigmoid": Function(tf.sigmoid, "y"),
    "relu": Function(tf.nn.relu, "y", _NUMBER, "ties "),
    "elu": Function(tf.nn.elu, "y"),
    "selu": Function(tf.nn.selu, "y"),
    "gelu": Function(gelu_kernel, "x"),
    "gelu_exact": Function(gelu_exact_kernel, "x"),
    "silu": Function(silu_kernel, "x"),
    "softplus": Function(tf.math.softplus, "x"),
    "erf": Function(
        tf.math.erf,
        lambda dy, y, x: (
            dy * call("exp", -call("square", x)) * (2 / math.sqrt(math.pi))
        ),
    ),
    "erfinv": Function(
        through_float32(tf.math.erfinv),
        lambda dy, y, x: scaled(
            dy * (math.sqrt(math.pi) / 2), call("exp", call("square", y))
        ),
        _FLOAT,
        "unit ",
    ),
    "lgamma": Function(
        through_float32(tf.math.lgamma),
        lambda dy, y, x: scaled(dy, call("digamma", x)),
        _FLOAT,
        "positive ",
    ),
    "digamma": Function(through_float32(tf.math.digamma), "x", _FLOAT, "positive "),
    "floor": Function(tf.floor, sample="ties "),
    "ceil": Function(tf.math.ceil, sample="ties "),
    "round": Function(tf.round, sample="ties "),
    "is_finite": Function(tf.math.is_finite, gives="bool"),
    "is_nan": Function(tf.math.is_nan, gives="bool"),
    "logical_not": Function(tf.logical_not, None, ("bool",), "bool "),
}


def _gelu_second(dz: Any, z: Any, dy: Any, x: Any) -> Tensor:
    # y = x s(u) has y'' = 2 s'u' + x (s''u'u' + s'u''), with s' = s (1 - s), s'' = s'
    # (1 - 2s).
    a, b = 2 * math.sqrt(2 / math.pi), 2 * math.sqrt(2 / math.pi) * 0.044715
    square = call("square", x)
    s, first = call("sigmoid", x * (square * b + a)), square * (3 * b) + a
    rest = (1.0 - s * 2.0) * call("square", first) + x * (6 * b)
    return dz * dy * s * (1.0 - s) * (first * 2.0 + x * rest)


def _gelu_exact_second(dz: Any, z: Any, dy: Any, x: Any) -> Tensor:
    square = call("square", x)
    return (
        dz * dy * call("exp", square * -0.5) * (2.0 - square) * math.sqrt(0.5 / math.pi)
    )


def _silu_second(dz: Any, z: Any, dy: Any, x: Any) -> Tensor:
    s = call("sigmoid", x)
    return dz * dy * s * (1.0 - s) * (2.0 + x * (1.0 - s * 2.0))


def _elu_second(dz: Any, z: Any, dy: Any, y: Any) -> Tensor:
    return where(y < 0, dz * dy, 0.0)


# What a fused gradient itself depends on besides dy, for gradients of gradients: (dz,
# z, dy, v).
_SECOND: dict[str, Callable[[Any, Any, Any, Any], Tensor | None]] = {
    "sqrt": lambda dz, z, dy, y: -over(dz * z, y),
    "rsqrt": lambda dz, z, dy, y: dz * z * 3.0 / y,
    "tanh": lambda dz, z, dy, y: dz * dy * y * -2.0,
    "sigmoid": lambda dz, z, dy, y: dz * dy * (1.0 - y * 2.0),
    "relu": lambda dz, z, dy, y: None,
    "elu": _elu_second,
    "selu": _elu_second,
    "gelu": _gelu_second,
    "gelu_exact": _gelu_exact_second,
    "silu": _silu_second,
    "softplus": lambda dz, z, dy, x: dz * z * call("sigmoid", -x),
    "reciprocal": lambda dz, z, dy, y: dz * dy * y * -2.0,
}


def _kind(dtype: str) -> str:
    if is_integer(dtype):
        return "int"
    return "complex" if is_complex(dtype) else "bool" if dtype == "bool" else "float"


def _samples() -> tuple[Sample, ...]:
    found = [
        Sample((fn,), (row.sample + dims,), gradient=row.gradient is not None)
        for fn, row in _TABLE.items()
        for dims in ("b:4;d:6", "d:5;b:3")
    ]
    for fn, row in _TABLE.items():
        if "int" in row.takes:
            found.append(Sample((fn,), ("int b:4;d:6",), gradient=False))
        if "complex" in row.takes:
            found.append(Sample((fn,), ("complex b:4;d:6",)))
    return tuple(found)


class Unary(Op):
    """A function of each element."""

    fn: str

    samples = _samples()

    @property
    def display_name(self) -> str:
        return self.fn

    @property
    def linearity(self) -> Any:
        return "joint" if self.fn == "negative" else None

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
        row, kind = _TABLE[self.fn], _kind(x.dtype)
        if kind in row.takes:
            real = real_dtype(x.dtype) if row.gives == "real" else x.dtype
            return (Spec(x.shape, "bool" if row.gives == "bool" else real),)
        way_out = 'Convert it first, as in mtf.cast(x, "float32").'
        if row.takes == ("bool",):
            way_out = "Make truth values of it first, as in x != 0."
        elif kind == "complex":
            way_out = "Take a part of it first: abs(x), mtf.real(x) or mtf.imag(x)."
        raise DTypeError(
            explain_error(
                f"{self.fn} does not take the type {x.dtype}.", way_out=way_out
            )
        )

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        return (_TABLE[self.fn].local(x),)

    def gradient(self, dy: Any, y: Any, x: Any) -> list[Any]:
        row = _TABLE[self.fn]
        rule = row.gradient
        if rule is None:
            return [None]
        if row.gives != "real":
            y, x = conj(y), conj(x)
        if isinstance(rule, str):
            return [apply(UnaryGrad(self.fn), dy, y if rule == "y" else x)]
        return [rule(dy, y, x)]


class UnaryGrad(Op):
    """The gradient of a function of each element, from dy and the function's input or
    output.
    """

    fn: str

    samples = tuple(
        Sample(
            (fn,),
            (kind + "b:4;d:6", (kind or _TABLE[fn].sample) + "b:4;d:6"),
            # TensorFlow's gradients of the kernels of the others forget the conjugates.
            gradient=fn in _SECOND and (not kind or fn == "tanh"),
        )
        for fn in FUSED_GRADIENTS
        for kind in ("", "complex ")
        if not kind or "complex" in _TABLE[fn].takes
    )

    @property
    def display_name(self) -> str:
        return self.fn + "_grad"

    def output_specs(self, dy: Spec, v: Spec) -> tuple[Spec, ...]:
        return (v,)

    def local(self, context: LocalContext, dy: Any, v: Any) -> tuple[Any, ...]:
        return (FUSED_GRADIENTS[self.fn](dy, v),)

    def gradient(self, dz: Any, z: Any, dy: Any, v: Any) -> list[Any]:
        if self.fn not in _SECOND:
            raise NotImplementedError
        z, dy, v = conj(z), conj(dy), conj(v)
        return [apply(self, dz, v), _SECOND[self.fn](dz, z, dy, v)]
