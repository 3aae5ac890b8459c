"""The ops behind meshtf.ops.elementwise.unary: a table of elementwise functions, and their
gradients.

If TensorFlow has a kernel for a gradient with few passes over memory, the gradient is one op,
`UnaryGrad`, with the formulas of `fused_formulas`: a *fused* gradient. Other gradients are
rules, made of the named functions of this library:

    dx of y = tanh(x)    apply(UnaryGrad("tanh"), dy, y)
    dx of y = cos(x)     -(dy * sin(x))

At singular points, where a plain multiplication would give 0 * inf = NaN, rules keep a
cotangent of zero at zero. For this, `zero_safe_multiply(dy, factor)` is dy * factor, but 0
where dy is 0; `zero_safe_divide(dy, divisor)` likewise is dy / divisor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    Op,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply,
)
from meshtf.graph.op_kinds import ElementwiseOp
from meshtf.names import is_complex
from meshtf.ops.common.tensorflow_functions import tf_function
from meshtf.ops.elementwise.binary_op import (
    Binary,
    zero_safe_divide,
    zero_safe_multiply,
)
from meshtf.ops.elementwise.complex import conj
from meshtf.ops.elementwise.function_table import (
    ANALYTIC,
    BOOL,
    FLOAT,
    NUMERIC,
    REAL,
    Function,
    table_of,
)
from meshtf.ops.elementwise.fused_formulas import (
    FUSED_GRADIENTS,
    digamma_kernel,
    erf_kernel,
    erfinv_kernel,
    gelu_exact_kernel,
    gelu_kernel,
    lgamma_kernel,
    silu_kernel,
)
from meshtf.ops.elementwise.where_cast_clip import cast, where


def apply_unary(fn: str, x: Any) -> Tensor:
    """Returns fn(x), elementwise, for a function `fn` of the table."""
    return apply(Unary(fn), x)


def _abs_gradient(dy: Any, y: Any, x: Any) -> Tensor:
    """Returns the gradient of abs, dy * x / |x|; 0 where x is 0."""
    if is_complex(x.dtype):
        return cast(apply(Binary("divide_no_nan"), dy, y), x.dtype) * x
    return dy * apply_unary("sign", x)


def _asin_gradient(dy: Any, y: Any, x: Any) -> Tensor:
    """Returns dy / sqrt(1 - x**2)."""
    return zero_safe_divide(dy, apply_unary("sqrt", 1.0 - apply_unary("square", x)))


def _erf_gradient(dy: Any, y: Any, x: Any) -> Tensor:
    """Returns dy * exp(-x**2) * 2 / sqrt(pi)."""
    return dy * apply_unary("exp", -apply_unary("square", x)) * (2 / math.sqrt(math.pi))


def _erfinv_gradient(dy: Any, y: Any, x: Any) -> Tensor:
    """Returns dy * exp(y**2) * sqrt(pi) / 2."""
    scaled = dy * (math.sqrt(math.pi) / 2)
    return zero_safe_multiply(scaled, apply_unary("exp", apply_unary("square", y)))


def _lgamma_gradient(dy: Any, y: Any, x: Any) -> Tensor:
    """Returns dy * digamma(x)."""
    return zero_safe_multiply(dy, apply_unary("digamma", x))


# Each function: name, gradient, kinds of data types, values of samples, result, kernel.
_TABLE = table_of(
    Function("exp", lambda dy, y, x: zero_safe_multiply(dy, y), ANALYTIC),
    Function("expm1", lambda dy, y, x: zero_safe_multiply(dy, y + 1.0)),
    Function("log", lambda dy, y, x: zero_safe_divide(dy, x), ANALYTIC, "positive "),
    Function(
        "log1p", lambda dy, y, x: zero_safe_divide(dy, x + 1.0), FLOAT, "positive "
    ),
    Function("sqrt", gradient="y", kinds=ANALYTIC, sample_values="positive "),
    Function("rsqrt", gradient="y", sample_values="positive "),
    Function("square", lambda dy, y, x: dy * (x * 2.0), NUMERIC),
    Function("reciprocal", gradient="y", kinds=ANALYTIC, sample_values="positive "),
    Function("negative", lambda dy, y, x: -dy, NUMERIC, linearity="joint"),
    Function("abs", _abs_gradient, NUMERIC, "ties ", result="real"),
    Function("sign", None, REAL, "ties "),
    Function("sin", lambda dy, y, x: dy * apply_unary("cos", x), ANALYTIC),
    Function("cos", lambda dy, y, x: -(dy * apply_unary("sin", x)), ANALYTIC),
    Function("tan", lambda dy, y, x: dy * (apply_unary("square", y) + 1.0)),
    Function("asin", _asin_gradient, sample_values="unit "),
    Function("acos", lambda dy, y, x: -_asin_gradient(dy, y, x), sample_values="unit "),
    Function("atan", lambda dy, y, x: dy / (apply_unary("square", x) + 1.0)),
    Function("sinh", lambda dy, y, x: zero_safe_multiply(dy, apply_unary("cosh", x))),
    Function("cosh", lambda dy, y, x: zero_safe_multiply(dy, apply_unary("sinh", x))),
    Function("tanh", gradient="y", kinds=ANALYTIC),
    Function("sigmoid", gradient="y"),
    Function("relu", "y", REAL, "ties ", kernel=tf_function("nn.relu")),
    Function("elu", gradient="y", kernel=tf_function("nn.elu")),
    Function("selu", gradient="y", kernel=tf_function("nn.selu")),
    Function("gelu", gradient="x", kernel=gelu_kernel),
    Function("gelu_exact", gradient="x", kernel=gelu_exact_kernel),
    Function("silu", gradient="x", kernel=silu_kernel),
    Function("softplus", gradient="x"),
    Function("erf", _erf_gradient, kernel=erf_kernel),
    Function("erfinv", _erfinv_gradient, FLOAT, "unit ", kernel=erfinv_kernel),
    Function("lgamma", _lgamma_gradient, FLOAT, "positive ", kernel=lgamma_kernel),
    Function("digamma", "x", FLOAT, "positive ", kernel=digamma_kernel),
    Function("floor", sample_values="ties "),
    Function("ceil", sample_values="ties "),
    Function("round", sample_values="ties "),
    Function("is_finite", result="bool"),
    Function("is_nan", result="bool"),
    Function("logical_not", kinds=BOOL, sample_values="bool "),
)
# What errors tell users to do with data types that a function does not take.
_WAY_OUT = 'Convert it first, as in mtf.cast(x, "float32").'
_WAY_OUTS = {"bool": _WAY_OUT, "int": _WAY_OUT}


def _gelu_second_gradient(dz: Any, z: Any, dy: Any, x: Any) -> Tensor:
    """Returns dz * dy times the second derivative of the tanh approximation of gelu.

    gelu(x) = x s(u), where s is the sigmoid and u = x (a + b x**2). Its second derivative is
    2 s'u' + x (s''u'u' + s'u''), with s' = s (1 - s) and s'' = s' (1 - 2s).
    """
    # The constants of `gelu_kernel`.
    a = 2 * math.sqrt(2 / math.pi)
    b = a * 0.044715
    x_squared = apply_unary("square", x)
    s = apply_unary("sigmoid", x * (x_squared * b + a))
    du = x_squared * (3 * b) + a  # u'
    ddu = x * (6 * b)  # u''
    # (s''u'u' + s'u'') / s'
    curvature = (1.0 - s * 2.0) * apply_unary("square", du) + ddu
    return dz * dy * s * (1.0 - s) * (du * 2.0 + x * curvature)


def _gelu_exact_second_gradient(dz: Any, z: Any, dy: Any, x: Any) -> Tensor:
    """Returns dz * dy times the second derivative of x Phi(x): (2 - x**2) phi(x), where Phi
    is the distribution function of the normal distribution and phi its density.
    """
    square = apply_unary("square", x)
    return (
        dz
        * dy
        * apply_unary("exp", square * -0.5)
        * (2.0 - square)
        * math.sqrt(0.5 / math.pi)
    )


def _silu_second_gradient(dz: Any, z: Any, dy: Any, x: Any) -> Tensor:
    """Returns dz * dy times the second derivative of x s(x): s (1 - s) (2 + x (1 - 2s)),
    where s is the sigmoid.
    """
    s = apply_unary("sigmoid", x)
    factor = 2.0 + x * (1.0 - s * 2.0)
    return dz * dy * s * (1.0 - s) * factor


def _elu_second_gradient(dz: Any, z: Any, dy: Any, y: Any) -> Tensor:
    """Returns the gradient of EluGrad or SeluGrad in y, which is linear in y below 0."""
    return where(y < 0, dz * dy, 0.0)


# The gradient of a fused gradient z = UnaryGrad(dy, v) in v: (dz, z, dy, v) -> dv, where v is
# the input x or the output y of the function.
_SECOND_GRADIENTS: dict[str, Callable[[Any, Any, Any, Any], Tensor | None]] = {
    "sqrt": lambda dz, z, dy, y: -zero_safe_divide(dz * z, y),
    "rsqrt": lambda dz, z, dy, y: dz * z * 3.0 / y,
    "tanh": lambda dz, z, dy, y: dz * dy * y * -2.0,
    "sigmoid": lambda dz, z, dy, y: dz * dy * (1.0 - y * 2.0),
    "relu": lambda dz, z, dy, y: None,
    "elu": _elu_second_gradient,
    "selu": _elu_second_gradient,
    "gelu": _gelu_second_gradient,
    "gelu_exact": _gelu_exact_second_gradient,
    "silu": _silu_second_gradient,
    "softplus": lambda dz, z, dy, x: dz * z * apply_unary("sigmoid", -x),
    "reciprocal": lambda dz, z, dy, y: dz * dy * y * -2.0,
}


def _samples() -> tuple[Sample, ...]:
    """Returns samples for the conformance suite: all functions, each kind of data type."""
    samples = []
    for fn, function in _TABLE.items():
        has_gradient = function.gradient is not None
        for dims in ("b:4;d:6", "d:5;b:3"):
            inputs = (function.sample_values + dims,)
            samples.append(Sample((fn,), inputs, gradient=has_gradient))
    for fn, function in _TABLE.items():
        if "int" in function.kinds:
            samples.append(Sample((fn,), ("int b:4;d:6",), gradient=False))
        if "complex" in function.kinds:
            samples.append(Sample((fn,), ("complex b:4;d:6",)))
    return tuple(samples)


class Unary(ElementwiseOp):
    """An elementwise function of x.

    Attributes:
      fn: the name of the function in the table.
    """

    fn: str

    conformance_samples = _samples()

    @property
    def display_name(self) -> str:
        return self.fn

    @property
    def linearity(self) -> Any:
        return _TABLE[self.fn].linearity

    def output_specs(self, x: Spec) -> Specs:
        return (Spec(x.shape, _TABLE[self.fn].result_dtype(x.dtype, _WAY_OUTS)),)

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        return (_TABLE[self.fn].run(x),)

    def gradient(self, dy: Any, y: Any, x: Any) -> Cotangents:
        function = _TABLE[self.fn]
        rule = function.gradient
        if rule is None:
            return [None]
        # The rule for complex numbers is the rule for real numbers of the conjugates, except
        # for abs, whose rule covers both: see `complex.py`.
        if function.result != "real":
            y = conj(y)
            x = conj(x)
        if isinstance(rule, str):
            v = {"x": x, "y": y}[rule]
            return [apply(UnaryGrad(self.fn), dy, v)]
        return [rule(dy, y, x)]


def _grad_samples() -> tuple[Sample, ...]:
    """Returns samples of all fused gradients."""
    samples = []
    for fn, function in _TABLE.items():
        if not isinstance(function.gradient, str):
            continue
        inputs = ("b:4;d:6", function.sample_values + "b:4;d:6")
        samples.append(Sample((fn,), inputs, gradient=fn in _SECOND_GRADIENTS))
        if "complex" in function.kinds:
            # TensorFlow's gradients of the other kernels lack the conjugates of complex
            # gradients.
            inputs = ("complex b:4;d:6", "complex b:4;d:6")
            samples.append(Sample((fn,), inputs, gradient=fn == "tanh"))
    return tuple(samples)


class UnaryGrad(Op):
    """The fused gradient of an elementwise function; the inputs are dy and v.

    v is the input or the output of the function, as its entry in the table says.

    Attributes:
      fn: the name of the function in the table.
    """

    fn: str

    conformance_samples = _grad_samples()

    @property
    def display_name(self) -> str:
        return self.fn + "_grad"

    def output_specs(self, dy: Spec, v: Spec) -> Specs:
        return (v,)

    def local(self, context: LocalContext, dy: Any, v: Any) -> LocalTensors:
        return (FUSED_GRADIENTS[self.fn](dy, v),)

    def gradient(self, dz: Any, z: Any, dy: Any, v: Any) -> Cotangents:
        if self.fn not in _SECOND_GRADIENTS:
            raise NotImplementedError
        v = conj(v)
        dv = _SECOND_GRADIENTS[self.fn](dz, conj(z), conj(dy), v)
        # The op is linear in dy, so its gradient in dy is the same op of dz.
        return [apply(self, dz, v), dv]
