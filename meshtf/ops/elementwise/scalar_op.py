"""The op of a tensor and a number, behind meshtf.ops.elementwise.arithmetic, and its gradients.

x * 2, 1 - x          # the number is an attribute of the op `Scalar`, not a tensor
x ** 2, x ** -0.5     # computed as square and rsqrt
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, explain_error
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    PaddingValue,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply,
)
from meshtf.graph.op_kinds import ElementwiseOp
from meshtf.names import is_complex, is_integer
from meshtf.ops.common.broadcasting import (
    broadcast_operands,
    check_scalar,
    is_scalar,
    python_scalar,
)
from meshtf.ops.common.tensorflow_functions import tf_function
from meshtf.ops.common.trace_cache import constant
from meshtf.ops.elementwise.binary_op import (
    FUNCTIONS,
    WAY_OUTS,
    Binary,
    zero_safe_divide,
    zero_safe_multiply,
)
from meshtf.ops.elementwise.complex import conj
from meshtf.ops.elementwise.function_table import BOOL, Function

# Functions that compute x ** c faster than pow, by c.
_POWERS: dict[Any, Callable[[Any], Any]] = {
    2: tf_function("square"),
    3: lambda x: tf.square(x) * x,
    0.5: tf_function("sqrt"),
    -0.5: tf_function("math.rsqrt"),
    -1: tf_function("math.reciprocal"),
    1: tf_function("identity"),
}
# The functions that `Scalar` does not compute. If one argument is a number, `clip` computes
# maximum and minimum; for the others the number becomes a scalar tensor.
_NOT_OF_NUMBERS = (
    "maximum minimum atan2 divide_no_nan multiply_no_nan xdivy logaddexp".split()
)


def _samples_of(function: Function) -> list[Sample]:
    """Returns the samples of one function, for the conformance suite."""
    fn = function.name
    value = True if function.kinds == BOOL else 1.5
    x = function.sample_values + "b:4;d:6"
    gradient = function.gradient is not None
    samples = [
        Sample((fn, value, False), (x,), gradient=gradient),
        Sample((fn, value, True), (x,), gradient=gradient),
    ]
    if "int" in function.kinds:
        samples.append(Sample((fn, 3), ("int b:3;d:5",), gradient=False))
    if function.refuses_integers:
        samples.append(Sample((fn, 3, True), ("natural b:3;d:5",), gradient=False))
    return samples


def _samples() -> tuple[Sample, ...]:
    """Returns the samples of all functions: the attributes (fn, value, swapped) of `Scalar`,
    and the shape of x.
    """
    samples = []
    for fn, function in FUNCTIONS.items():
        if fn not in _NOT_OF_NUMBERS:
            samples += _samples_of(function)
    samples += [
        Sample(("multiply", 1 - 2j), ("complex b:4;d:6",)),
        Sample(("divide", 1 + 1j, True), ("complex b:4;d:6",)),
        Sample(("subtract", 2.0, True), ("complex b:4;d:6",)),
        Sample(("pow", 3), ("complex b:4;d:6",)),
    ]
    for exponent in (*_POWERS, 0, -2.5):
        samples.append(Sample(("pow", exponent), ("positive b:4",)))
    for exponent in (2, 4):
        samples.append(Sample(("pow", exponent), ("b:4;d:6",)))
    return tuple(samples)


class Scalar(ElementwiseOp):
    """A function of a tensor and a number.

    Attributes:
      fn: the name of the function in `FUNCTIONS`.
      value: the number.
      swapped: whether the op computes fn(value, x), and not fn(x, value).
    """

    fn: str
    value: bool | int | float | complex
    swapped: bool = False

    conformance_samples = _samples()

    @property
    def display_name(self) -> str:
        return self.fn

    @property
    def linearity(self) -> Any:
        is_scaling = self.fn == "multiply" or (self.fn == "divide" and not self.swapped)
        if is_scaling:
            return "joint"  # partial sums of x give partial sums of the result
        # A number that is added to each partial sum would be added several times.
        return None

    def output_specs(self, x: Spec) -> Specs:
        check_scalar(self.value, x.dtype)
        is_power = self.fn == "pow" and not self.swapped  # x ** value
        is_negative = not isinstance(self.value, complex) and self.value < 0
        if is_power and is_negative and is_integer(x.dtype):
            raise DTypeError(
                explain_error(
                    f"an integer to the power {self.value} is no integer.",
                    way_out="Convert it to floats first, as in mtf.cast(x, 'float32').",
                )
            )
        dtype = FUNCTIONS[self.fn].result_dtype(x.dtype, WAY_OUTS)
        return (Spec(x.shape, dtype),)

    def padding_value(self, input_index: int, factor: str) -> PaddingValue:
        is_refused = self.swapped and FUNCTIONS[self.fn].refuses_integers
        return 1.0 if is_refused else None

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        if self.fn == "pow" and not self.swapped and self.value in _POWERS:
            return (_POWERS[self.value](x),)
        value = constant(self.value, x.dtype)
        function = FUNCTIONS[self.fn].run
        if self.swapped:
            return (function(value, x),)
        return (function(x, value),)

    def gradient(self, dz: Any, z: Any, x: Any) -> Cotangents:
        if FUNCTIONS[self.fn].gradient is None:
            return [None]
        rules = _SWAPPED_GRADIENTS if self.swapped else _GRADIENTS
        rule = rules[self.fn]
        # Of real numbers and tensors, the conjugates are the same.
        return [rule(dz, conj(z), conj(x), self.value.conjugate())]


def _power_gradient(dz: Any, z: Any, x: Any, c: Any) -> Tensor:
    """Returns the gradient of x ** c in x."""
    if c == 0:
        return dz * 0.0
    return zero_safe_multiply(dz, x ** (c - 1) * c)


def _exponential_gradient(dz: Any, z: Any, x: Any, c: Any) -> Tensor:
    """Returns the gradient of c ** x in x: dz * z * log(c); 0 if c has no logarithm."""
    if is_complex(x.dtype):
        if c:
            return zero_safe_multiply(dz, z * cmath.log(c))
        return dz * 0.0
    log_c = math.log(c) if c > 0 else 0.0
    return zero_safe_multiply(dz, z * log_c)


# Gradient rules (dz, z, x, c) -> dx of z = fn(x, c), where c is the number.
_GRADIENTS: dict[str, Callable[..., Any]] = {
    "add": lambda dz, z, x, c: dz,
    "subtract": lambda dz, z, x, c: dz,
    "multiply": lambda dz, z, x, c: dz * c,
    "divide": lambda dz, z, x, c: dz / c,
    "floormod": lambda dz, z, x, c: dz,
    "pow": _power_gradient,
    "squared_difference": lambda dz, z, x, c: (x - c) * 2.0 * dz,
}
# Gradient rules (dz, z, x, c) -> dx of z = fn(c, x).
_SWAPPED_GRADIENTS: dict[str, Callable[..., Any]] = _GRADIENTS | {
    "subtract": lambda dz, z, x, c: -dz,
    "divide": lambda dz, z, x, c: -zero_safe_multiply(zero_safe_divide(dz, x), z),
    "floormod": lambda dz, z, x, c: -(dz * (c // x)),
    "pow": _exponential_gradient,
}


def apply_binary(fn: str, x: Any, y: Any) -> Tensor:
    """Returns fn(x, y), broadcast by names; x or y may be a number.

    Raises:
      DTypeError: both are numbers.
    """
    if is_scalar(x) and is_scalar(y):
        raise DTypeError(f"{fn} of two numbers: one of them must be a tensor.")
    if is_scalar(x):
        return apply(Scalar(fn, value=python_scalar(x), swapped=True), y)
    if is_scalar(y):
        return apply(Scalar(fn, value=python_scalar(y)), x)
    return apply(Binary(fn), *broadcast_operands(fn, x, y))
