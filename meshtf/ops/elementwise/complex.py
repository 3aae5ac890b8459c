"""Complex numbers: their real and imaginary parts, and conjugates.

    z = mtf.math.complex(re, im)          # complex64 of float32, complex128 of float64
    mtf.math.real(z), mtf.math.imag(z), mtf.math.conj(z), abs(z), mtf.math.angle(z)

Gradients follow TensorFlow's convention: the gradient dz of a real loss at z = x + iy is
dloss/dx + i dloss/dy, so that a step from z to z - rate * dz descends.

Let y = f(x) be a function with f(conj(x)) = conj(f(x)), such as exp. Its gradient rule for
real numbers, applied to conj(x) and conj(y), is its rule for complex numbers. So rules call
`conj`, which returns real numbers as they are, and need no other case.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

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
    register_operator,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import complex_dtype, is_complex, is_floating, real_dtype
from meshtf.ops.common.broadcasting import (
    align,
    broadcast_operands,
    broadcast_shape,
    is_scalar,
    python_scalar,
    sum_to_shape,
)
from meshtf.ops.common.checks import same_dtype
from meshtf.ops.common.local_reshape import broadcast_to
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.variables.fill import full


class Conj(Op):
    """The conjugates of complex numbers."""

    # op(a + b) = op(a) + op(b): partial sums of x give partial sums of y.
    linearity = "joint"
    # Inputs for the conformance suite: see `Sample`.
    conformance_samples = (Sample(inputs=("complex b:4;d:6",)),)

    def output_specs(self, x: Spec) -> Specs:
        return (x,)

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        return (tf.math.conj(x),)

    def gradient(self, dy: Any, y: Any, x: Any) -> Cotangents:
        return [conj(dy)]


class Complex(Op):
    """Complex numbers from real and imaginary parts, broadcast by names."""

    linearity = "joint"  # op(a + b, c + d) = op(a, c) + op(b, d)
    conformance_samples = (
        Sample(inputs=("b:4;d:6", "b:4;d:6")),
        Sample(inputs=("d:5;b:4", "b:4")),
    )

    def output_specs(self, re: Spec, im: Spec) -> Specs:
        dtype = same_dtype(re, im)
        if dtype not in ("float32", "float64"):
            raise DTypeError(
                explain_error(
                    f"complex numbers have no real part of the type {dtype}.",
                    way_out="Convert both to float32 or float64, as in mtf.cast(x, "
                    '"float32").',
                )
            )
        return (Spec(broadcast_shape(re.shape, im.shape), complex_dtype(dtype)),)

    def local(self, context: LocalContext, re: Any, im: Any) -> LocalTensors:
        re_shape, im_shape = context.inputs
        (output_shape,) = context.outputs
        re = align(re, re_shape, output_shape)
        im = align(im, im_shape, output_shape)
        if re.shape != im.shape:
            # tf.complex does not broadcast.
            re = broadcast_to(re, output_shape.sizes)
            im = broadcast_to(im, output_shape.sizes)
        return (tf.complex(re, im),)

    def gradient(self, dy: Any, y: Any, re: Any, im: Any) -> Cotangents:
        return [sum_to_shape(real(dy), re), sum_to_shape(imag(dy), im)]


class RealOrImag(Op):
    """The real or imaginary part of complex numbers.

    Attributes:
      imaginary: whether to return the imaginary part, and not the real part.
    """

    imaginary: bool

    linearity = "joint"  # op(a + b) = op(a) + op(b)
    # Each sample: the attribute `imaginary`, and the shape of x.
    conformance_samples = (
        Sample((False,), ("complex b:4;d:6",)),
        Sample((True,), ("complex d:5;b:3",)),
    )

    @property
    def display_name(self) -> str:
        return "imag" if self.imaginary else "real"

    def output_specs(self, x: Spec) -> Specs:
        if not is_complex(x.dtype):
            raise DTypeError(
                explain_error(
                    f"{self.display_name} takes complex numbers, not {x.dtype}.",
                    way_out="Create them first: mtf.math.complex(re, im), or mtf.cast(x, "
                    '"complex64").',
                )
            )
        return (Spec(x.shape, real_dtype(x.dtype)),)

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        if self.imaginary:
            return (tf.math.imag(x),)
        return (tf.math.real(x),)

    def gradient(self, dy: Any, y: Any, x: Any) -> Cotangents:
        dx = cast(dy, x.dtype)
        if self.imaginary:
            dx = dx * 1j
        return [dx]


def complex(re: Any, im: Any) -> Tensor:
    """Returns re + i im, broadcast by names; one of the two may be a number.

    Raises:
      DTypeError: re and im are neither both float32 nor both float64.
    """
    if is_scalar(re) and is_scalar(im):
        raise DTypeError("complex of two numbers: one of them must be a tensor.")
    re, im = as_tensors_of_one_dtype(re=re, im=im)
    return apply(Complex(), *broadcast_operands("complex", re, im))


def as_tensors_of_one_dtype(**operands: Any) -> list[Any]:
    """Returns two operands. If one is a tensor and the other a number, the number becomes a
    scalar tensor of the same data type. Two numbers stay numbers.
    """
    tensors = []
    for name, x in operands.items():
        tensors.append(python_scalar(x) if is_scalar(x) else as_tensor(name, x))
    like = next((x for x in tensors if isinstance(x, Tensor)), None)
    if like is None:
        return tensors
    return [
        x if isinstance(x, Tensor) else full(like.mesh, "", value=x, dtype=like.dtype)
        for x in tensors
    ]


def real(x: Any) -> Tensor:
    """Returns the real part, elementwise; floats are returned as they are."""
    if isinstance(x, Tensor) and is_floating(x.dtype):
        return x
    return apply(RealOrImag(imaginary=False), x)


def imag(x: Any) -> Tensor:
    """Returns the imaginary part of complex numbers, elementwise. Raises DTypeError for
    other types.
    """
    return apply(RealOrImag(imaginary=True), x)


def conj(x: Any) -> Any:
    """Returns the conjugate, elementwise; numbers that are not complex are returned as
    they are.
    """
    x = as_tensor("x", x)
    if is_complex(x.dtype):
        return apply(Conj(), x)
    return x


register_operator("real", real)
