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
from typing import Any, NamedTuple

from meshtf.errors import DTypeError, explain_error
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
from meshtf.names import is_complex, is_integer, real_dtype
from meshtf.ops.common.tensorflow_functions import tf_function
from meshtf.ops.elementwise.binary_op import (
    Binary,
    zero_safe_divide,
    zero_safe_multiply,
)
from meshtf.ops.elementwise.complex import conj
from meshtf.ops.elementwise.fused_formulas import (
    FUSED_GRADIENTS,
    erf_kernel,
    gelu_exact_kernel,
    gelu_kernel,
    silu_kernel,
    through_float32,
)
from meshtf.ops.elementwise.where_cast_clip import cast, where

# The kinds of data types that functions take.
_FLOAT = ("float",)
_ANALYTIC = ("float", "complex")
_REAL = ("float", "int")
_NUMERIC = ("float", "int", "complex")
# The gradient rule of a function y = f(x): (dy, y, x) -> dx.
Rule = Callable[[Any, Any, Any], Tensor]


class UnaryFunction(NamedTuple):
    """An entry of the table.

    Attributes:
      kernel: the function of a TensorFlow tensor, or the public name of TensorFlow's.
      gradient: a rule (dy, y, x) -> dx; or, for a fused gradient, "x" or "y", the tensor
        that it reads in addition to dy; or None if there is no gradient.
      kinds: the kinds of data types that the function takes.
      sample_values: the prefix that says how x of samples is drawn, such as "positive ":
        see `Sample`.
      result: the data type of the result: "bool", "real" for the real type of the input, or
        "" for that of the input.
    """

    kernel: Callable[[Any], Any] | str
    gradient: Rule | str | None = None
    kinds: tuple[str, ...] = _FLOAT
    sample_values: str = ""
    result: str = ""


def apply_unary(fn: str, x: Any) -> Tensor:
    """Returns fn(x), elementwise, for a function `fn` of the table."""
    return apply(Unary(fn), x)


def _abs_gradient(dy: Any, y: Any, x: Any) -> Tensor:
    """Returns the gradient of abs, dy * x / |x|; 0 where x is 0."""
    if is_complex(x.dtype):
        return cast(apply(Binary("divide_no_nan"), dy, y), x.dtype) * x
    return dy * apply_unary("sign", x)


_TABLE: dict[str, UnaryFunction] = {
    "exp": UnaryFunction(
        "exp", lambda dy, y, x: zero_safe_multiply(dy, y), kinds=_ANALYTIC
    ),
    "expm1": UnaryFunction(
        "math.expm1", lambda dy, y, x: zero_safe_multiply(dy, y + 1.0)
    ),
    "log": UnaryFunction(
        "math.log",
        lambda dy, y, x: zero_safe_divide(dy, x),
        kinds=_ANALYTIC,
        sample_values="positive ",
    ),
    "log1p": UnaryFunction(
        "math.log1p",
        lambda dy, y, x: zero_safe_divide(dy, x + 1.0),
        sample_values="positive ",
    ),
    "sqrt": UnaryFunction(
        "sqrt", gradient="y", kinds=_ANALYTIC, sample_values="positive "
    ),
    "rsqrt": UnaryFunction("math.rsqrt", gradient="y", sample_values="positive "),
    "square": UnaryFunction("square", lambda dy, y, x: dy * (x * 2.0), kinds=_NUMERIC),
    "reciprocal": UnaryFunction(
        "math.reciprocal", gradient="y", kinds=_ANALYTIC, sample_values="positive "
    ),
    "negative": UnaryFunction("negative", lambda dy, y, x: -dy, kinds=_NUMERIC),
    "abs": UnaryFunction(
        "abs", _abs_gradient, kinds=_NUMERIC, sample_values="ties ", result="real"
    ),
    "sign": UnaryFunction("sign", kinds=_REAL, sample_values="ties "),
    "sin": UnaryFunction(
        "sin", lambda dy, y, x: dy * apply_unary("cos", x), kinds=_ANALYTIC
    ),
    "cos": UnaryFunction(
        "cos", lambda dy, y, x: -(dy * apply_unary("sin", x)), kinds=_ANALYTIC
    ),
    "tan": UnaryFunction("tan", lambda dy, y, x: dy * (apply_unary("square", y) + 1.0)),
    "asin": UnaryFunction(
        "asin",
        lambda dy, y, x: zero_safe_divide(
            dy, apply_unary("sqrt", 1.0 - apply_unary("square", x))
        ),
        sample_values="unit ",
    ),
    "acos": UnaryFunction(
        "acos",
        lambda dy, y, x: (
            -zero_safe_divide(dy, apply_unary("sqrt", 1.0 - apply_unary("square", x)))
        ),
        sample_values="unit ",
    ),
    "atan": UnaryFunction(
        "atan", lambda dy, y, x: dy / (apply_unary("square", x) + 1.0)
    ),
    "sinh": UnaryFunction(
        "sinh", lambda dy, y, x: zero_safe_multiply(dy, apply_unary("cosh", x))
    ),
    "cosh": UnaryFunction(
        "cosh", lambda dy, y, x: zero_safe_multiply(dy, apply_unary("sinh", x))
    ),
    "tanh": UnaryFunction("tanh", gradient="y", kinds=_ANALYTIC),
    "sigmoid": UnaryFunction("sigmoid", gradient="y"),
    "relu": UnaryFunction("nn.relu", gradient="y", kinds=_REAL, sample_values="ties "),
    "elu": UnaryFunction("nn.elu", gradient="y"),
    "selu": UnaryFunction("nn.selu", gradient="y"),
    "gelu": UnaryFunction(gelu_kernel, gradient="x"),
    "gelu_exact": UnaryFunction(gelu_exact_kernel, gradient="x"),
    "silu": UnaryFunction(silu_kernel, gradient="x"),
    "softplus": UnaryFunction("math.softplus", gradient="x"),
    "erf": UnaryFunction(
        erf_kernel,
        lambda dy, y, x: (
            dy
            * apply_unary("exp", -apply_unary("square", x))
            * (2 / math.sqrt(math.pi))
        ),
    ),
    "erfinv": UnaryFunction(
        through_float32(tf_function("math.erfinv")),
        lambda dy, y, x: zero_safe_multiply(
            dy * (math.sqrt(math.pi) / 2), apply_unary("exp", apply_unary("square", y))
        ),
        sample_values="unit ",
    ),
    "lgamma": UnaryFunction(
        through_float32(tf_function("math.lgamma")),
        lambda dy, y, x: zero_safe_multiply(dy, apply_unary("digamma", x)),
        sample_values="positive ",
    ),
    "digamma": UnaryFunction(
        through_float32(tf_function("math.digamma")),
        gradient="x",
        sample_values="positive ",
    ),
    "floor": UnaryFunction("floor", sample_values="ties "),
    "ceil": UnaryFunction("math.ceil", sample_values="ties "),
    "round": UnaryFunction("round", sample_values="ties "),
    "is_finite": UnaryFunction("math.is_finite", result="bool"),
    "is_nan": UnaryFunction("math.is_nan", result="bool"),
    "logical_not": UnaryFunction("logical_not", kinds=("bool",), sample_values="bool "),
}


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


def _kind(dtype: str) -> str:
    """Returns the kind of a data type: "int", "complex", "bool" or "float"."""
    if is_integer(dtype):
        return "int"
    if is_complex(dtype):
        return "complex"
    if dtype == "bool":
        return "bool"
    return "float"


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


class Unary(Op):
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
        if self.fn == "negative":
            return "joint"  # -(a + b) = -a + -b: partial sums stay partial sums
        return None

    def output_specs(self, x: Spec) -> Specs:
        function = _TABLE[self.fn]
        kind = _kind(x.dtype)
        if kind in function.kinds:
            if function.result == "real":
                dtype = real_dtype(x.dtype)
            else:
                dtype = function.result or x.dtype
            return (Spec(x.shape, dtype),)
        way_out = 'Convert it first, as in mtf.cast(x, "float32").'
        if function.kinds == ("bool",):
            way_out = "Convert it to booleans first, as in x != 0."
        elif kind == "complex":
            way_out = (
                "Convert it to real numbers first: abs(x), mtf.math.real(x) or "
                "mtf.math.imag(x)."
            )
        raise DTypeError(
            explain_error(
                f"{self.fn} does not take the type {x.dtype}.", way_out=way_out
            )
        )

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        kernel = _TABLE[self.fn].kernel
        return ((tf_function(kernel) if isinstance(kernel, str) else kernel)(x),)

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
    for fn in FUSED_GRADIENTS:
        function = _TABLE[fn]
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
