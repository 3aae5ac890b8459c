"""Complex numbers: made of two parts, taken apart, conjugated.

    z = mtf.complex(re, im)          # complex64 of float32, complex128 of float64
    mtf.real(z), mtf.imag(z), mtf.conj(z), abs(z), mtf.angle(z)

Gradients follow TensorFlow: that of a real loss at z = x + iy is dloss/dx + i dloss/dy,
so that z - rate * dz descends. Rules are written for real numbers; where f(conj(z)) =
conj(f(z)), the same rule at conjugates is the one for complex numbers, so the engine of
a rule only needs `conj`, which does nothing to real numbers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, explain_error
from meshtf.graph import OPERATORS, LocalContext, Op, Sample, Spec, Tensor, apply
from meshtf.graph.arguments import as_tensor
from meshtf.names import complex_dtype, is_complex, is_floating, real_dtype
from meshtf.ops.common.broadcasting import (
    align,
    broadcast_operands,
    broadcast_shape,
    is_scalar,
    sum_to_shape,
)
from meshtf.ops.common.checks import same_dtype
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.variables.fill import full


class Conj(Op):
    """The conjugates of complex numbers."""

    linearity = "joint"
    samples = (Sample((), ("complex b:4;d:6",)),)

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
        return (x,)

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        return (tf.math.conj(x),)

    def gradient(self, dy: Any, y: Any, x: Any) -> list[Any]:
        return [conj(dy)]


class Complex(Op):
    """Complex numbers of their real and their imaginary parts, broadcast by names."""

    linearity = "joint"
    samples = (Sample((), ("b:4;d:6", "b:4;d:6")), Sample((), ("d:5;b:4", "b:4")))

    def output_specs(self, re: Spec, im: Spec) -> tuple[Spec, ...]:
        dtype = same_dtype(re, im)
        if dtype not in ("float32", "float64"):
            raise DTypeError(
                explain_error(
                    f"complex numbers have no parts of the type {dtype}.",
                    way_out="Make float32 or float64 of both, as in mtf.cast(x, "
                    '"float32").',
                )
            )
        return (Spec(broadcast_shape(re.shape, im.shape), complex_dtype(dtype)),)

    def local(self, context: LocalContext, re: Any, im: Any) -> tuple[Any, ...]:
        re, im = (
            align(v, s, context.outputs[0])
            for v, s in zip((re, im), context.inputs, strict=True)
        )
        if re.shape != im.shape:
            re, im = (tf.broadcast_to(v, context.outputs[0].sizes) for v in (re, im))
        return (tf.complex(re, im),)

    def gradient(self, dy: Any, y: Any, re: Any, im: Any) -> list[Any]:
        return [sum_to_shape(real(dy), re), sum_to_shape(imag(dy), im)]


@dataclasses.dataclass(frozen=True)
class Part(Op):
    """The real or the imaginary part."""

    imaginary: bool

    linearity = "joint"
    samples = (
        Sample((False,), ("complex b:4;d:6",)),
        Sample((True,), ("complex d:5;b:3",)),
    )

    @property
    def display_name(self) -> str:
        return "imag" if self.imaginary else "real"

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
        if not is_complex(x.dtype):
            raise DTypeError(
                explain_error(
                    f"{self.display_name} takes complex numbers, not {x.dtype}.",
                    way_out="Make them first: mtf.complex(re, im), or mtf.cast(x, "
                    '"complex64").',
                )
            )
        return (Spec(x.shape, real_dtype(x.dtype)),)

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        return (tf.math.imag(x) if self.imaginary else tf.math.real(x),)

    def gradient(self, dy: Any, y: Any, x: Any) -> list[Any]:
        dx = cast(dy, x.dtype)
        return [dx * 1j if self.imaginary else dx]


def complex(re: Any, im: Any) -> Tensor:
    """Returns re + i im, broadcast by names; one of the two may be a number.

    Raises:
      DTypeError: the parts are neither both float32 nor both float64.
    """
    re, im = (
        v if is_scalar(v) else as_tensor(name, v)
        for name, v in (("re", re), ("im", im))
    )
    if is_scalar(re) and is_scalar(im):
        raise DTypeError("complex of two numbers: one of them must be a tensor.")
    if is_scalar(re) or is_scalar(im):
        given = im if is_scalar(re) else re
        re, im = (
            full(given.mesh, "", v, given.dtype) if is_scalar(v) else v
            for v in (re, im)
        )
    return apply(Complex(), *broadcast_operands("complex", re, im))


def real(x: Any) -> Tensor:
    """Returns the real part; floats are their own."""
    return (
        x if isinstance(x, Tensor) and is_floating(x.dtype) else apply(Part(False), x)
    )


def imag(x: Any) -> Tensor:
    """Returns the imaginary part of complex numbers. Raises DTypeError for others."""
    return apply(Part(True), x)


def conj(x: Any) -> Any:
    """Returns the conjugate; numbers that are not complex are their own."""
    x = as_tensor("x", x)
    return apply(Conj(), x) if is_complex(x.dtype) else x


OPERATORS["real"] = real
