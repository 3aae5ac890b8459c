"""The op of a tensor and a number, behind meshtf.ops.elementwise.arithmetic, and its gradients.

Example:

    x * 2, 1 - x          the number is an attribute: one TensorFlow op, and no tensor of twos
    x ** 2, x ** -0.5     square, rsqrt
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, explain_error
from meshtf.graph import LocalContext, Op, Sample, Spec, Tensor, apply
from meshtf.names import is_complex, is_integer
from meshtf.ops.common.broadcasting import (
    broadcast_operands,
    check_scalar,
    is_scalar,
    python_scalar,
)
from meshtf.ops.common.trace_cache import constant
from meshtf.ops.elementwise.binary_op import (
    COMPARE,
    FUNCTIONS,
    LOGICAL,
    STEPPED,
    Binary,
    over,
    result_type,
    scaled,
)
from meshtf.ops.elementwise.complex import conj

# With a number these are faster as another function.
_POWERS: dict[Any, Callable[[Any], Any]] = {
    2: tf.square,
    3: lambda x: tf.square(x) * x,
    0.5: tf.sqrt,
    -0.5: tf.math.rsqrt,
    -1: tf.math.reciprocal,
    1: tf.identity,
}
# With a number: maximum and minimum are clip, and what is missing makes a tensor of it.
_SCALAR = (
    "add",
    "subtract",
    "multiply",
    "divide",
    "floordiv",
    "floormod",
    "pow",
    "squared_difference",
    *COMPARE,
    *LOGICAL,
)


def _scalar_samples() -> tuple[Sample, ...]:
    found = []
    for fn in _SCALAR:
        kind = (
            "bool "
            if fn in LOGICAL
            else "positive "
            if fn in ("divide", "floordiv", "floormod", "pow")
            else "ties "
        )
        value = True if fn in LOGICAL else 1.5
        found += [
            Sample(
                (fn, value, swapped), (kind + "b:4;d:6",), gradient=fn not in STEPPED
            )
            for swapped in (False, True)
        ]
        if fn not in LOGICAL and fn != "divide":
            found.append(Sample((fn, 3), ("int b:3;d:5",), gradient=False))
    found += [
        Sample(args, ("complex b:4;d:6",))
        for args in (
            ("multiply", 1 - 2j),
            ("divide", 1 + 1j, True),
            ("subtract", 2.0, True),
            ("pow", 3),
        )
    ]
    return (
        *found,
        *(Sample(("pow", n), ("positive b:4",)) for n in (*_POWERS, 0, -2.5)),
        Sample(("pow", 2), ("b:4;d:6",)),
        Sample(("pow", 4), ("b:4;d:6",)),
    )


class Scalar(Op):
    """A function of a tensor and a number: fn(x, value), or fn(value, x) if swapped."""

    fn: str
    value: bool | int | float | complex
    swapped: bool = False

    samples = _scalar_samples()

    @property
    def display_name(self) -> str:
        return self.fn

    @property
    def linearity(self) -> Any:
        """Unfinished sums may be scaled; a number added to each of them would be added
        many times.
        """
        scales = self.fn == "multiply" or (self.fn == "divide" and not self.swapped)
        return "joint" if scales else None

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
        check_scalar(self.value, x.dtype)
        if (
            self.fn == "pow"
            and not self.swapped
            and is_integer(x.dtype)
            and not isinstance(self.value, complex)
            and self.value < 0
        ):
            raise DTypeError(
                explain_error(
                    f"an integer to the power {self.value} is no integer.",
                    way_out="Make floats of it first, as in mtf.cast(x, 'float32').",
                )
            )
        return (Spec(x.shape, result_type(self.fn, x.dtype)),)

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        if self.fn == "pow" and not self.swapped and self.value in _POWERS:
            return (_POWERS[self.value](x),)
        value = constant(self.value, x.dtype)
        return (FUNCTIONS[self.fn](*((value, x) if self.swapped else (x, value))),)

    def gradient(self, dz: Any, z: Any, x: Any) -> list[Any]:
        if self.fn in STEPPED:
            return [None]
        rule = (_SWAPPED if self.swapped else _SCALED)[self.fn]
        return [rule(dz, conj(z), conj(x), self.value.conjugate())]


def _power_gradient(dz: Any, z: Any, x: Any, c: Any) -> Tensor:
    return dz * 0.0 if c == 0 else scaled(dz, x ** (c - 1) * c)


def _base_gradient(dz: Any, z: Any, x: Any, c: Any) -> Tensor:
    if is_complex(x.dtype):
        return scaled(dz, z * cmath.log(c)) if c else dz * 0.0
    return scaled(dz, z * (math.log(c) if c > 0 else 0.0))


_SCALED: dict[str, Callable[..., Any]] = {
    "add": lambda dz, z, x, c: dz,
    "subtract": lambda dz, z, x, c: dz,
    "multiply": lambda dz, z, x, c: dz * c,
    "divide": lambda dz, z, x, c: dz / c,
    "floormod": lambda dz, z, x, c: dz,
    "pow": _power_gradient,
    "squared_difference": lambda dz, z, x, c: (x - c) * 2.0 * dz,
}
_SWAPPED: dict[str, Callable[..., Any]] = _SCALED | {
    "subtract": lambda dz, z, x, c: -dz,
    "divide": lambda dz, z, x, c: -scaled(over(dz, x), z),
    "floormod": lambda dz, z, x, c: -(dz * (c // x)),
    "pow": _base_gradient,
}


def combine(fn: str, x: Any, y: Any) -> Tensor:
    """Returns fn(x, y), where one of the two may be a number."""
    if is_scalar(x) and is_scalar(y):
        raise DTypeError(f"{fn} of two numbers: one of them must be a tensor.")
    if is_scalar(x) or is_scalar(y):
        return (
            apply(Scalar(fn, python_scalar(x), True), y)
            if is_scalar(x)
            else apply(Scalar(fn, python_scalar(y)), x)
        )
    return apply(Binary(fn), *broadcast_operands(fn, x, y))
