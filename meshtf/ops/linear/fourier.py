"""Fourier transforms along named dimensions, of complex and of real numbers.

    z = mtf.math.fft(x, "width")                  # x, z complex
    z = mtf.math.rfft(x, "height;width")          # x real: z has the size width // 2 + 1 of `width`
    x = mtf.math.irfft(z, "height;width", size=width)

A transform needs all elements of its dimension on one device. Where the layout shards it,
the planner shards another dimension in the meantime if it can, with one all_to_all before
and one after, as in the pencil decomposition of parallel FFT codes. Several dimensions are
transformed one after the other, so that only sharded ones are resharded.

Values and their order are those of numpy.fft: forward exp(-2 pi i jk/n), inverse divided
by n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    Op,
    Role,
    Sample,
    Source,
    Spec,
    Specs,
    Tensor,
    apply,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import Names, Shape, complex_dtype, is_complex, names_of, real_dtype
from meshtf.ops.common.checks import require_dim
from meshtf.ops.common.local_reshape import transpose
from meshtf.ops.elementwise.arithmetic import equal, logical_or, multiply
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.indexing.one_hot_and_range import range as index_range


class _Transform(Op):
    """Base of the transforms: `dim` must not be sharded, and is moved to the last axis
    for TensorFlow.
    """

    dim: str

    def role(self, factor: str) -> Role:
        if factor == self.dim:
            return Role.UNSHARDED
        return Role.MAP

    def flops(self, *xs: Spec) -> int:
        x = xs[0]
        (y,) = self.output_specs(*xs)
        n = max(2, x.shape[self.dim], y.shape[self.dim])
        flops_of_one = round(5 * n * math.log2(n))
        num_transforms = x.shape.without(self.dim).size
        return flops_of_one * num_transforms

    def _apply_kernel(
        self, context: LocalContext, kernel: Callable[[Any], Any], x: Any
    ) -> tuple[Any, ...]:
        """Returns the output of a kernel that transforms the last axis."""
        order = list(range(len(x.shape)))
        order.append(order.pop(context.axis(0, self.dim)))
        y = kernel(transpose(x, order))
        inverse_order = [order.index(i) for i in range(len(order))]
        return (transpose(y, inverse_order),)


class FFT(_Transform):
    """The transform of complex numbers along `dim`; inverse: divided by its size."""

    dim: str
    inverse: bool = False

    linearity = "joint"
    samples = (
        Sample(("d",), ("complex b:4;d:6",)),
        Sample(("d", True), ("complex d:5;b:4",)),
        Sample(("b",), ("complex c:2;b:4;d:2",)),
    )

    @property
    def display_name(self) -> str:
        return "ifft" if self.inverse else "fft"

    def output_specs(self, x: Spec) -> Specs:
        require_dim(x.shape, self.dim)
        if not is_complex(x.dtype):
            raise DTypeError(
                explain_error(
                    f"{self.display_name} takes complex numbers, not {x.dtype}.",
                    way_out='Use mtf.math.rfft for real ones, or mtf.cast(x, "complex64").',
                )
            )
        return (x,)

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        kernel = tf.signal.fft
        if self.inverse:
            kernel = tf.signal.ifft
        return self._apply_kernel(context, kernel, x)

    def gradient(self, dy: Any, y: Any, x: Any) -> Cotangents:
        n = x.shape[self.dim]
        dx = apply(FFT(self.dim, not self.inverse), dy)
        return [multiply(dx, 1 / n if self.inverse else n)]


class RFFT(_Transform):
    """The transform of n real numbers along `dim`: the coefficients 0 to n // 2, whose
    conjugates are the others.
    """

    dim: str

    linearity = "joint"
    samples = (Sample(("d",), ("b:4;d:6",)), Sample(("d",), ("d:5;b:4",)))

    def output_specs(self, x: Spec) -> Specs:
        require_dim(x.shape, self.dim)
        if x.dtype not in ("float32", "float64"):
            if is_complex(x.dtype):
                way_out = "Use mtf.math.fft for complex numbers."
            else:
                way_out = 'Convert it first: mtf.cast(x, "float32").'
            message = f"rfft takes float32 or float64, not {x.dtype}."
            raise DTypeError(explain_error(message, way_out=way_out))
        shape = x.shape.resize(self.dim, x.shape[self.dim] // 2 + 1)
        return (Spec(shape, complex_dtype(x.dtype)),)

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        return self._apply_kernel(context, tf.signal.rfft, x)

    def gradient(self, dy: Any, y: Any, x: Any) -> Cotangents:
        n = x.shape[self.dim]
        halved = _scale_paired_coefficients(dy, self.dim, n, 0.5)
        return [multiply(apply(IRFFT(self.dim, n), halved), n)]


class IRFFT(_Transform):
    """The inverse of RFFT, to `size` real numbers."""

    dim: str
    size: int

    linearity = "joint"
    samples = (
        Sample(("d", 6), ("complex b:4;d:4",)),
        Sample(("d", 5), ("complex d:3;b:4",)),
    )

    def output_specs(self, x: Spec) -> Specs:
        require_dim(x.shape, self.dim)
        if not is_complex(x.dtype):
            raise DTypeError(
                explain_error(
                    f"irfft takes complex numbers, not {x.dtype}.",
                    way_out='Convert it first: mtf.cast(x, "complex64").',
                )
            )
        if x.shape[self.dim] != self.size // 2 + 1:
            raise ShapeError(
                explain_error(
                    f"irfft computes {self.size} numbers from {self.size // 2 + 1} "
                    f"coefficients, not from {x.shape[self.dim]}.",
                    way_out="Pass size=2 * coefficients - 2, or 2 * coefficients - 1 "
                    "where the size was odd.",
                )
            )
        return (Spec(x.shape.resize(self.dim, self.size), real_dtype(x.dtype)),)

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        return self._apply_kernel(context, lambda v: tf.signal.irfft(v, [self.size]), x)

    def gradient(self, dy: Any, y: Any, x: Any) -> Cotangents:
        spectrum = multiply(apply(RFFT(self.dim), dy), 1 / self.size)
        dx = _scale_paired_coefficients(spectrum, self.dim, self.size, 2.0)
        return [dx]


def _scale_paired_coefficients(z: Tensor, dim: str, size: int, scale: float) -> Tensor:
    """Returns z with a scale on the coefficients that have a conjugate: all but the
    first, and the middle one where `size` is even.
    """
    k = index_range(z.mesh, z.shape.dim(dim))
    is_middle = equal(multiply(k, 2), size)
    is_unpaired = logical_or(equal(k, 0), is_middle)
    scales = where(is_unpaired, 1.0, scale)
    return multiply(z, cast(scales, z.dtype))


def fft(x: Tensor, dims: Names) -> Tensor:
    """Returns the Fourier transform of complex numbers along one or more dimensions:
    the shape of x.

    Raises:
      ShapeError: x lacks one of them.
      DTypeError: x is not of complex numbers.
    """
    x = as_tensor("x", x)
    for dim in names_of(dims, x.shape):
        x = apply(FFT(dim), x)
    return x


def ifft(x: Tensor, dims: Names) -> Tensor:
    """Returns the inverse of `fft`: the shape of x. Raises what it does."""
    x = as_tensor("x", x)
    for dim in names_of(dims, x.shape):
        x = apply(FFT(dim, True), x)
    return x


def rfft(x: Tensor, dims: Names) -> Tensor:
    """Returns the Fourier transform of real numbers along one or more dimensions:
    x [..., n] -> complex [..., n // 2 + 1].

    Of the last dimension, of size n, the result has the coefficients 0 to n // 2, under the
    same name; the others are their conjugates. A layout that shards this name must be able
    to shard n // 2 + 1 elements; if it cannot, rename the dimension first.

    Raises:
      ShapeError: x lacks one of them.
      DTypeError: x is not of float32 or float64.
      LayoutError: the layout cannot shard n // 2 + 1 elements.
    """
    x = as_tensor("x", x)
    *rest, last = _require_names(dims, x.shape)
    return fft(apply(RFFT(last), x), rest)


def irfft(x: Tensor, dims: Names, size: int | None = None) -> Tensor:
    """Returns the inverse of `rfft`: x [..., n // 2 + 1] -> floats [..., n].

    Args:
      x: complex numbers.
      dims: as for `rfft`.
      size: the size of the last dimension of the result, by default the even one.

    Raises:
      ShapeError: x lacks one of the dimensions, or the size does not fit.
      DTypeError: x is not of complex numbers.
    """
    x = as_tensor("x", x)
    *rest, last = _require_names(dims, x.shape)
    require_dim(x.shape, last)
    x = ifft(x, rest)
    if size is None:
        size = 2 * x.shape[last] - 2
    return apply(IRFFT(last, size), x)


def _require_names(dims: Names, shape: Shape) -> tuple[str, ...]:
    """Returns the names in `dims`. Raises ShapeError where there are none."""
    names = names_of(dims, shape)
    if not names:
        raise ShapeError(
            explain_error(
                "a Fourier transform of real numbers is along one dimension at least.",
                **{"from": Source.of_caller()},
                way_out='Name it, as in mtf.math.rfft(x, "length").',
            )
        )
    return names
