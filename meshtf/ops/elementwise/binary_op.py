"""The op of two tensors that meet by names, behind meshtf.ops.elementwise.arithmetic, and its
gradients.

    x[batch d] + b[d] -> [batch d]        one TensorFlow op: trailing names broadcast by themselves
    x[batch d] < y[batch] -> bool

Rules of gradients turn a cotangent of zero into zero at singular points, too, where a
plain product would make 0 * inf = NaN of it: `scaled` and `over`, whose kernels cost
what a product costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, explain_error
from meshtf.graph import (
    OPERATORS,
    LocalContext,
    Op,
    Sample,
    Spec,
    Tensor,
    apply,
    apply_all,
)
from meshtf.names import has_gradient, is_complex
from meshtf.ops.common.broadcasting import align, broadcast_shape, sum_to_shape
from meshtf.ops.common.checks import same_dtype
from meshtf.ops.elementwise.complex import conj
from meshtf.ops.elementwise.fused_formulas import logaddexp_kernel

FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": tf.add,
    "subtract": tf.subtract,
    "multiply": tf.multiply,
    "divide": tf.divide,
    "floordiv": tf.math.floordiv,
    "floormod": tf.math.floormod,
    "pow": tf.pow,
    "maximum": tf.maximum,
    "minimum": tf.minimum,
    "squared_difference": tf.math.squared_difference,
    "atan2": tf.math.atan2,
    "logaddexp": logaddexp_kernel,
    "divide_no_nan": tf.math.divide_no_nan,
    # For gradients: x * y and x / y, but 0 where y and x are 0, whatever the other is.
    "multiply_no_nan": tf.math.multiply_no_nan,
    "xdivy": tf.math.xdivy,
    "less": tf.less,
    "less_equal": tf.less_equal,
    "greater": tf.greater,
    "greater_equal": tf.greater_equal,
    "equal": tf.equal,
    "not_equal": tf.not_equal,
    "logical_and": tf.logical_and,
    "logical_or": tf.logical_or,
    "logical_xor": lambda x, y: tf.not_equal(x, y),
}
COMPARE = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
LOGICAL = ("logical_and", "logical_or", "logical_xor")
_WITH_COMPLEX = (
    "add",
    "subtract",
    "multiply",
    "divide",
    "pow",
    "equal",
    "not_equal",
    "divide_no_nan",
    "multiply_no_nan",
    "xdivy",
)
_FLOATS = ("divide", "atan2", "logaddexp", "divide_no_nan")
STEPPED = ("floordiv", *COMPARE, *LOGICAL)  # no gradient: constant almost everywhere


def result_type(fn: str, dtype: str) -> str:
    """Returns the data type of the result. Raises DTypeError if fn does not take this
    type.
    """
    takes_bool = fn in LOGICAL or fn in ("equal", "not_equal")
    if fn in LOGICAL and dtype != "bool":
        way_out = "Make truth values of it first, as in x != 0."
    elif dtype == "bool" and not takes_bool:
        way_out = f"Make numbers of it first, as in mtf.cast(x, {'int32'!r})."
    elif is_complex(dtype) and fn not in _WITH_COMPLEX:
        way_out = "Take a part of it first: abs(x), mtf.real(x) or mtf.imag(x)."
    elif fn in _FLOATS and not has_gradient(dtype):
        way_out = (
            f"Use x // y, or make floats of it first, as in mtf.cast(x, {'float32'!r})."
        )
    else:
        return "bool" if fn in COMPARE else dtype
    raise DTypeError(
        explain_error(f"{fn} does not take the type {dtype}.", way_out=way_out)
    )


def _samples() -> tuple[Sample, ...]:
    found = []
    for fn in FUNCTIONS:
        kind = {
            "floordiv": "positive ",
            "floormod": "positive ",
            "pow": "positive ",
            "atan2": "",
            "divide": "positive ",
            "xdivy": "",
        }.get(fn, "bool " if fn in LOGICAL else "ties ")
        gradient = fn not in STEPPED
        # TensorFlow's tape gives the whole gradient of a tie to one of the two.
        kind = "" if fn in ("maximum", "minimum") else kind
        # How names meet is the same code for all: three functions with different
        # gradients try it.
        shapes = [("d:6;b:4", "b:4")]
        if fn in ("add", "multiply", "maximum"):
            shapes += [
                ("b:4;d:6", "b:4;d:6"),
                ("b:3;d:5", "d:5"),
                ("b:4", "d:6"),
                ("b:4;l:3;d:6", "d:6;b:4"),
                ("", "b:4;d:6"),
            ]
        found += [
            Sample((fn,), (kind + x, kind + y), gradient=gradient) for x, y in shapes
        ]
        if fn in ("add", "maximum", "less", "not_equal"):
            found.append(Sample((fn,), ("int b:4;d:6", "int d:6"), gradient=False))
        if fn in _WITH_COMPLEX:
            found.append(
                Sample(
                    (fn,),
                    ("complex b:4;d:6", "complex d:6"),
                    # TensorFlow's gradients of the two forget the conjugates.
                    gradient=fn not in (*STEPPED, "multiply_no_nan", "xdivy"),
                )
            )
    # Where TensorFlow's tape has NaN: 0 ** 0, and whole powers of 0 and of negative
    # numbers.
    return (*found, Sample(("pow",), ("ties b:4;d:6", "whole d:6"), gradient=False))


class Binary(Op):
    """A function of two tensors, broadcast by names."""

    fn: str

    samples = _samples()

    @property
    def display_name(self) -> str:
        return self.fn

    @property
    def linearity(self) -> Any:
        return {
            "add": "joint",
            "subtract": "joint",
            "multiply": "each",
            "multiply_no_nan": "each",
        }.get(self.fn)

    def output_specs(self, x: Spec, y: Spec) -> tuple[Spec, ...]:
        return (
            Spec(
                broadcast_shape(x.shape, y.shape),
                result_type(self.fn, same_dtype(x, y)),
            ),
        )

    def local(self, context: LocalContext, x: Any, y: Any) -> tuple[Any, ...]:
        if context.inputs[0] != context.inputs[1]:
            x, y = (
                align(v, s, context.outputs[0])
                for v, s in zip((x, y), context.inputs, strict=True)
            )
        return (FUNCTIONS[self.fn](x, y),)

    def gradient(self, dz: Any, z: Any, x: Any, y: Any) -> list[Any]:
        if self.fn in STEPPED:
            return [None, None]
        dx, dy = _GRADIENTS[self.fn](dz, conj(z), conj(x), conj(y))
        return [sum_to_shape(dx, x), sum_to_shape(dy, y)]


class BinaryGrad(Op):
    """The gradients of maximum, minimum, pow or logaddexp, with the names of dz, in one
    op.
    """

    fn: str

    samples = (
        *(
            Sample(
                (fn,), ("b:4;d:6", first + "b:4;d:6", second + "d:6"), gradient=False
            )
            for fn, first, second in (
                ("maximum", "ties ", "ties "),
                ("minimum", "ties ", "ties "),
                ("pow", "ties ", "whole "),
                ("logaddexp", "ties ", "ties "),
            )
        ),
        *(
            Sample((fn,), ("b:4;d:6", first + "b:4;d:6", second + "d:6"))
            for fn, first, second in (
                ("maximum", "", ""),
                ("pow", "positive ", ""),
                ("logaddexp", "", ""),
            )
        ),
    )

    @property
    def display_name(self) -> str:
        return self.fn + "_grad"

    def output_specs(self, dz: Spec, x: Spec, y: Spec) -> tuple[Spec, ...]:
        return (dz, dz)

    def local(self, context: LocalContext, dz: Any, x: Any, y: Any) -> tuple[Any, ...]:
        x, y = (
            align(v, s, context.outputs[0])
            for v, s in zip((x, y), context.inputs[1:], strict=True)
        )
        if self.fn == "pow":
            return _pow_gradients(dz, x, y)
        if self.fn == "logaddexp":
            share = tf.sigmoid(tf.where(tf.equal(x, y), tf.zeros([], dz.dtype), x - y))
            return dz * share, dz * (1 - share)
        zero, half = tf.zeros([], dz.dtype), dz * tf.constant(0.5, dz.dtype)
        first, second = (x > y, x < y) if self.fn == "maximum" else (x < y, x > y)
        return (
            tf.where(first, dz, tf.where(second, zero, half)),
            tf.where(second, dz, tf.where(first, zero, half)),
        )

    def gradient(self, dws: Any, ws: Any, dz: Any, x: Any, y: Any) -> list[Any]:
        if is_complex(dz.dtype):
            raise NotImplementedError
        shares = apply_all(
            self, OPERATORS["ones_like"](dz), x, y
        )  # of dz that x and y get
        parts = [
            dw * share for dw, share in zip(dws, shares, strict=True) if dw is not None
        ]
        dx, dy = _SECOND.get(self.fn, _constant_shares)(dws, dz, x, y, shares)
        return [sum(parts[1:], parts[0]), sum_to_shape(dx, x), sum_to_shape(dy, y)]


def _constant_shares(*_: Any) -> tuple[None, None]:
    """Maximum and minimum give all to one of them, wherever that is differentiable."""
    return None, None


def _logaddexp_second(
    dws: Any, dz: Any, x: Any, y: Any, shares: Any
) -> tuple[Any, Any]:
    """The shares are s and 1 - s with s = sigmoid(x - y), so ds/dx = s (1 - s) =
    -ds/dy.
    """
    first, second = dws
    change = -second if first is None else first if second is None else first - second
    dx = dz * change * shares[0] * shares[1]
    return dx, -dx


def _pow_second(dws: Any, dz: Any, x: Any, y: Any, shares: Any) -> tuple[Any, Any]:
    """The shares are y x**(y - 1) and, for x above zero, x**y log(x)."""
    gradients, less = BinaryGrad("pow"), y - 1.0
    power = apply(Binary("pow"), x, less)
    dx, dy = [], []
    for dw, of_base in zip(dws, (True, False), strict=True):
        if dw is None:
            continue
        by_base, by_exponent = apply_all(gradients, dz * dw * y, x, less)
        if of_base:
            dx.append(by_base)
            dy += [by_exponent, scaled(dz * dw, power)]
            continue
        ones = OPERATORS["ones_like"](dz)
        _, log = apply_all(gradients, ones, x, OPERATORS["zeros_like"](y))
        dx += [by_exponent, OPERATORS["where"](x > 0.0, scaled(dz * dw, power), 0.0)]
        dy.append(scaled(dz * dw * shares[1], log))
    return sum(dx[1:], dx[0]), sum(dy[1:], dy[0])


_SECOND = {"logaddexp": _logaddexp_second, "pow": _pow_second}


def _pow_gradients(dz: Any, x: Any, y: Any) -> tuple[Any, Any]:
    # x ** 0 is constant, and the logarithm of a base that is not above zero has no part
    # in the gradient: both are chosen, so that no NaN or infinity comes from the branch
    # not taken.
    zero, one = tf.zeros([], dz.dtype), tf.ones([], dz.dtype)
    slope = y * tf.pow(x, tf.where(tf.equal(y, 0), one, y - one))
    dx = tf.where(tf.equal(y, 0), zero, tf.math.multiply_no_nan(slope, dz))
    above = tf.not_equal(x, 0) if x.dtype.is_complex else tf.greater(x, 0)
    safe = tf.where(above, x, one)
    dy = tf.math.multiply_no_nan(tf.pow(safe, y) * tf.math.log(safe), dz)
    return dx, tf.where(above, dy, zero)


def over(dy: Any, by: Any) -> Tensor:
    """Returns dy / by, but 0 where dy is 0: for gradients at singular points."""
    return apply(Binary("xdivy"), dy, by)


def scaled(dy: Any, by: Any) -> Tensor:
    """Returns dy * by, but 0 where dy is 0: for gradients at singular points."""
    return apply(Binary("multiply_no_nan"), by, dy)


def _divide_gradients(dz: Any, z: Any, x: Any, y: Any) -> tuple[Any, Any]:
    dx = over(dz, y)
    return dx, -scaled(dx, z)


def _divide_no_nan_gradients(dz: Any, z: Any, x: Any, y: Any) -> tuple[Any, Any]:
    dx = apply(Binary("divide_no_nan"), dz, y)
    return dx, -(dx * z)


def _atan2_gradients(dz: Any, z: Any, y: Any, x: Any) -> tuple[Any, Any]:
    share = over(dz, x * x + y * y)
    return share * x, -(share * y)


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
    "divide_no_nan": _divide_no_nan_gradients,
    "multiply_no_nan": lambda dz, z, x, y: (dz * y, scaled(dz, x)),
    "xdivy": lambda dz, z, x, y: (over(dz, y), -over(dz * z, y)),
    "atan2": _atan2_gradients,
    "logaddexp": _fused("logaddexp"),
    "floormod": lambda dz, z, x, y: (dz, -(dz * (x // y))),
    "squared_difference": _squared_difference_gradients,
    "maximum": _fused("maximum"),
    "minimum": _fused("minimum"),
    "pow": _fused("pow"),
}
