"""The op of two tensors that broadcast by names, behind meshtf.ops.elementwise.arithmetic,
and its gradients.

    x[batch d] + b[d] -> [batch d]        Binary("add"): one TensorFlow op
    x[batch d] < y[batch] -> bool         Binary("less")

At singular points, where a plain multiplication would give 0 * inf = NaN, gradient rules keep
a cotangent of zero at zero. For this they use `zero_safe_multiply` and `zero_safe_divide`,
whose kernels cost as much as a multiplication.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    Op,
    PaddingValue,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply,
    apply_all,
)
from meshtf.graph.op_kinds import ElementwiseOp
from meshtf.names import is_complex
from meshtf.ops.common.broadcasting import (
    broadcast_call,
    broadcast_shape,
    sum_to_shape,
)
from meshtf.ops.common.checks import same_dtype
from meshtf.ops.common.tensorflow_functions import tf_function
from meshtf.ops.elementwise.complex import conj
from meshtf.ops.elementwise.function_table import (
    ANALYTIC,
    ANY,
    BOOL,
    NUMERIC,
    REAL,
    Function,
    table_of,
)
from meshtf.ops.elementwise.fused_formulas import FUSED_GRADIENTS, logaddexp_kernel
from meshtf.ops.elementwise.where_cast_clip import where
from meshtf.ops.variables.fill import ones_like, zeros_like


def zero_safe_divide(dy: Any, divisor: Any) -> Tensor:
    """Returns dy / divisor, broadcast by names; 0 where dy is 0, even if the divisor is 0."""
    return apply(Binary("xdivy"), dy, divisor)


def zero_safe_multiply(dy: Any, factor: Any) -> Tensor:
    """Returns dy * factor, broadcast by names; 0 where dy is 0, whatever the factor."""
    return apply(Binary("multiply_no_nan"), factor, dy)


def _divide_gradients(dz: Any, z: Any, x: Any, y: Any) -> tuple[Any, Any]:
    dx = zero_safe_divide(dz, y)
    return dx, -zero_safe_multiply(dx, z)


def _divide_no_nan_gradients(dz: Any, z: Any, x: Any, y: Any) -> tuple[Any, Any]:
    dx = apply(Binary("divide_no_nan"), dz, y)
    return dx, -(dx * z)


def _atan2_gradients(dz: Any, z: Any, y: Any, x: Any) -> tuple[Any, Any]:
    squared_radius = x * x + y * y
    scaled = zero_safe_divide(dz, squared_radius)
    dy = scaled * x
    dx = -(scaled * y)
    return dy, dx


def _floormod_gradients(dz: Any, z: Any, x: Any, y: Any) -> tuple[Any, Any]:
    return dz, -(dz * (x // y))


def _squared_difference_gradients(dz: Any, z: Any, x: Any, y: Any) -> tuple[Any, Any]:
    dx = dz * 2.0 * (x - y)
    return dx, -dx


def _xdivy_gradients(dz: Any, z: Any, x: Any, y: Any) -> tuple[Any, Any]:
    return zero_safe_divide(dz, y), -zero_safe_divide(dz * z, y)


# Each function: name, gradient, kinds of data types, values of samples, result. Gradients are
# both of the shape of dz. Other gradients use multiply_no_nan, which is x * y, but 0 where y is
# 0; and xdivy, which is x / y, but 0 where x is 0. "ties " is not for maximum and minimum, since
# TensorFlow's tape gives the complete gradient of equal elements to one of the two.
FUNCTIONS = table_of(
    Function("add", lambda dz, z, x, y: (dz, dz), NUMERIC, "ties ", linearity="joint"),
    Function(
        "subtract", lambda dz, z, x, y: (dz, -dz), NUMERIC, "ties ", linearity="joint"
    ),
    Function(
        "multiply",
        lambda dz, z, x, y: (dz * y, dz * x),
        NUMERIC,
        "ties ",
        linearity="each",
    ),
    Function("divide", _divide_gradients, ANALYTIC, "positive "),
    Function("floordiv", None, REAL, "positive ", refuses_integers=True),
    Function("floormod", _floormod_gradients, REAL, "positive ", refuses_integers=True),
    Function("pow", "xy", NUMERIC, "positive ", refuses_integers=True),
    Function("maximum", gradient="xy", kinds=REAL),
    Function("minimum", gradient="xy", kinds=REAL),
    Function("squared_difference", _squared_difference_gradients, REAL, "ties "),
    Function("atan2", _atan2_gradients),
    Function("divide_no_nan", _divide_no_nan_gradients, ANALYTIC, "ties "),
    Function("less", None, REAL, "ties ", "bool"),
    Function("less_equal", None, REAL, "ties ", "bool"),
    Function("greater", None, REAL, "ties ", "bool"),
    Function("greater_equal", None, REAL, "ties ", "bool"),
    Function("equal", None, ANY, "ties ", "bool"),
    Function("not_equal", None, ANY, "ties ", "bool"),
    Function("logical_and", None, BOOL, "bool "),
    Function("logical_or", None, BOOL, "bool "),
    Function(
        "multiply_no_nan",
        lambda dz, z, x, y: (dz * y, zero_safe_multiply(dz, x)),
        NUMERIC,
        "ties ",
        linearity="each",
    ),
    Function("xdivy", _xdivy_gradients, NUMERIC),
    Function(
        "logaddexp", gradient="xy", sample_values="ties ", kernel=logaddexp_kernel
    ),
    Function("logical_xor", None, BOOL, "bool ", kernel=tf_function("not_equal")),
)
# What errors tell users to do with data types that a function does not take.
WAY_OUTS = {
    "bool": "Convert it to numbers first, as in mtf.cast(x, 'int32').",
    "int": "Use x // y, or convert it to floats first, as in mtf.cast(x, 'float32').",
}


def _samples_of(function: Function) -> list[Sample]:
    """Returns the samples of one function."""
    fn = function.name
    values = function.sample_values
    gradient = function.gradient is not None
    shapes = [("d:6;b:4", "b:4")]
    # Broadcasting is the same code for all functions, so only three functions with
    # different gradients have samples of all cases.
    if fn in ("add", "multiply", "maximum"):
        shapes += [("b:4;d:6", "b:4;d:6"), ("b:3;d:5", "d:5"), ("b:4", "d:6")]
        shapes += [("b:4;l:3;d:6", "d:6;b:4"), ("", "b:4;d:6")]
    samples = [
        Sample((fn,), (values + x, values + y), gradient=gradient) for x, y in shapes
    ]
    if fn in ("add", "maximum", "less", "not_equal"):
        samples.append(Sample((fn,), ("int b:4;d:6", "int d:6"), gradient=False))
    if function.refuses_integers:
        inputs = ("int b:3;d:5", "natural d:5")
        samples.append(Sample((fn,), inputs, gradient=False))
    if "complex" in function.kinds:
        # TensorFlow's gradients of these two lack the conjugates of complex gradients.
        gradient = gradient and fn not in ("multiply_no_nan", "xdivy")
        inputs = ("complex b:4;d:6", "complex d:6")
        samples.append(Sample((fn,), inputs, gradient=gradient))
    return samples


def _samples() -> tuple[Sample, ...]:
    """Returns the samples of all functions."""
    samples = [sample for fn in FUNCTIONS.values() for sample in _samples_of(fn)]
    # Values at which TensorFlow's tape gives NaN: 0 ** 0, and integer powers of zero and of
    # negative numbers.
    samples.append(Sample(("pow",), ("ties b:4;d:6", "whole d:6"), gradient=False))
    return tuple(samples)


class Binary(ElementwiseOp):
    """A function of two tensors, which broadcast by names.

    Attributes:
      fn: the name of the function in `FUNCTIONS`.
    """

    fn: str

    conformance_samples = _samples()

    @property
    def display_name(self) -> str:
        return self.fn

    @property
    def linearity(self) -> Any:
        return FUNCTIONS[self.fn].linearity

    def output_specs(self, x: Spec, y: Spec) -> Specs:
        dtype = FUNCTIONS[self.fn].result_dtype(same_dtype(x, y), WAY_OUTS)
        return (Spec(broadcast_shape(x.shape, y.shape), dtype),)

    def padding_value(self, input_index: int, factor: str) -> PaddingValue:
        is_refused = input_index == 1 and FUNCTIONS[self.fn].refuses_integers
        return 1.0 if is_refused else None

    def local(self, context: LocalContext, x: Any, y: Any) -> LocalTensors:
        function = FUNCTIONS[self.fn].run
        x_shape, y_shape = context.inputs
        if x_shape == y_shape:
            return (function(x, y),)
        return (broadcast_call(function, [x, y], context.inputs, context.outputs[0]),)

    def gradient(self, dz: Any, z: Any, x: Any, y: Any) -> Cotangents:
        rule = FUNCTIONS[self.fn].gradient
        if rule is None:
            return [None, None]
        conjugates = [conj(z), conj(x), conj(y)]
        if isinstance(rule, str):
            dx, dy = apply_all(BinaryGrad(self.fn), dz, *conjugates[1:])
        else:
            dx, dy = rule(dz, *conjugates)
        return [sum_to_shape(dx, x), sum_to_shape(dy, y)]


def _grad_sample(fn: str, x: str, y: str, gradient: bool) -> Sample:
    """Returns a sample of the gradient op; x and y say how their values are drawn."""
    inputs = ("b:4;d:6", f"{x}b:4;d:6", f"{y}d:6")
    return Sample((fn,), inputs, gradient=gradient)


class BinaryGrad(Op):
    """The gradients of maximum, minimum, pow or logaddexp in one op: dz, x, y -> dx and
    dy, both of the shape of dz.

    Attributes:
      fn: the name of the function.
    """

    fn: str

    conformance_samples = (
        _grad_sample("maximum", x="ties ", y="ties ", gradient=False),
        _grad_sample("minimum", x="ties ", y="ties ", gradient=False),
        _grad_sample("pow", x="ties ", y="whole ", gradient=False),
        _grad_sample("logaddexp", x="ties ", y="ties ", gradient=False),
        _grad_sample("maximum", x="", y="", gradient=True),
        _grad_sample("pow", x="positive ", y="", gradient=True),
        _grad_sample("logaddexp", x="", y="", gradient=True),
    )

    @property
    def display_name(self) -> str:
        return self.fn + "_grad"

    def output_specs(self, dz: Spec, x: Spec, y: Spec) -> Specs:
        return (dz, dz)

    def local(self, context: LocalContext, dz: Any, x: Any, y: Any) -> LocalTensors:
        function = FUSED_GRADIENTS[self.fn]
        return broadcast_call(function, [dz, x, y], context.inputs, context.outputs[0])

    def gradient(self, dws: Any, ws: Any, dz: Any, x: Any, y: Any) -> Cotangents:
        if is_complex(dz.dtype):
            raise NotImplementedError
        # The outputs w are linear in dz: they are dz times the partial derivatives of fn in
        # x and in y, which are the outputs for dz = 1.
        partials = apply_all(self, ones_like(dz), x, y)
        dz_terms = []
        for dw, partial in zip(dws, partials, strict=True):
            if dw is not None:
                dz_terms.append(dw * partial)
        second_gradients = _SECOND_GRADIENTS.get(self.fn, _no_second_gradients)
        dx, dy = second_gradients(dws, dz, x, y, partials)
        return [_sum(dz_terms), sum_to_shape(dx, x), sum_to_shape(dy, y)]


def _sum(terms: Sequence[Tensor]) -> Tensor:
    """Returns the sum of one or more tensors."""
    return functools.reduce(operator.add, terms)


def _no_second_gradients(*_: Any) -> tuple[None, None]:
    """Returns None twice: the partial derivatives of maximum and minimum are constant."""
    return None, None


def _logaddexp_second_gradients(
    dws: Any, dz: Any, x: Any, y: Any, partials: Any
) -> tuple[Any, Any]:
    """Returns the gradients of `BinaryGrad("logaddexp")` in x and y.

    The partial derivatives are s and 1 - s, where s = sigmoid(x - y). So
    ds/dx = s (1 - s) = -ds/dy.
    """
    s, one_minus_s = partials
    dw_x, dw_y = dws
    if dw_x is None:
        ds = -dw_y
    elif dw_y is None:
        ds = dw_x
    else:
        ds = dw_x - dw_y
    dx = dz * ds * s * one_minus_s
    return dx, -dx


def _pow_second_gradients(
    dws: Any, dz: Any, x: Any, y: Any, partials: Any
) -> tuple[Any, Any]:
    """Returns the gradients of `BinaryGrad("pow")` in x and y.

    The partial derivatives are y x**(y - 1) and, for x above zero, x**y log(x).
    """
    _, power_times_log = partials
    dw_x, dw_y = dws
    pow_grad = BinaryGrad("pow")
    y_less_1 = y - 1.0
    power = apply(Binary("pow"), x, y_less_1)  # x**(y - 1)
    dx_terms = []
    dy_terms = []
    if dw_x is not None:
        # The product rule for the factors y and x**(y - 1).
        by_base, by_exponent = apply_all(pow_grad, dz * dw_x * y, x, y_less_1)
        dx_terms.append(by_base)
        dy_terms += [by_exponent, zero_safe_multiply(dz * dw_x, power)]
    if dw_y is not None:
        # In x: y x**(y - 1) log(x) + x**(y - 1). In y: x**y log(x) log(x).
        _, by_exponent = apply_all(pow_grad, dz * dw_y * y, x, y_less_1)
        ones = ones_like(dz)
        # The derivative of x**y in y at y = 0 is log(x); the op returns 0 for x <= 0.
        _, log_x = apply_all(pow_grad, ones, x, zeros_like(y))
        slope = zero_safe_multiply(dz * dw_y, power)
        dx_terms += [by_exponent, where(x > 0.0, slope, 0.0)]
        dy_terms.append(zero_safe_multiply(dz * dw_y * power_times_log, log_x))
    return _sum(dx_terms), _sum(dy_terms)


# Rules (dws, dz, x, y, partials) -> (dx, dy): dws are the cotangents of both outputs, or None;
# partials are the partial derivatives of fn in x and in y.
_SECOND_GRADIENTS = {
    "logaddexp": _logaddexp_second_gradients,
    "pow": _pow_second_gradients,
}
