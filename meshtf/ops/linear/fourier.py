"""Fourier transforms along named dimensions, of complex and of real numbers.

    z = mtf.math.fft(x, "width")                  # x, z complex
    z = mtf.math.rfft(x, "height;width")          # x real: z has the size width // 2 + 1 of `width`
    x = mtf.math.irfft(z, "height;width", size=width)

A transform needs all elements of its dimension on one device. If the layout shards this
dimension, the planner shards another one during the transform, if it can: with one all_to_all
before and one after it, as in the pencil decomposition of parallel FFT codes. Several
dimensions are transformed one after the other, so that only sharded ones are resharded.

Coefficients and their order are those of numpy.fft: the forward transform has the factors
exp(-2 pi i jk/n), and the inverse is divided by n.

The gradient of a linear transform y = A x is dx = A^H dy, where a cotangent of complex numbers
is dL/dRe + i dL/dIm. Since A^H of `fft` is n times the inverse transform, each gradient here is
another transform with a factor.
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
from meshtf.ops.common.checks import require_dim, require_dim_of_caller
from meshtf.ops.common.local_reshape import transpose
from meshtf.ops.elementwise.arithmetic import equal, logical_or, multiply
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.indexing.one_hot_and_range import range as index_range


class _Transform(Op):
    """The base of the transforms.

    Attributes:
      dim: the dimension that is transformed. It must not be sharded.
    """

    dim: str

    def role(self, factor: str) -> Role:
        # What sharding `factor`, a dimension of x, does: with MAP, y is sharded too.
        if factor == self.dim:
            return Role.UNSHARDED
        return Role.MAP

    def flops(self, *xs: Spec) -> int:
        (x,) = xs
        (y,) = self.output_specs(x)
        # 5 n log2(n) is the usual count for n complex numbers. For a real transform, n is
        # the count of real numbers, the larger size. At least 2, since log2(1) is 0.
        n = max(2, x.shape[self.dim], y.shape[self.dim])
        flops_per_transform = round(5 * n * math.log2(n))
        num_transforms = x.shape.without(self.dim).size
        return flops_per_transform * num_transforms

    def _apply_kernel(
        self, context: LocalContext, kernel: Callable[[Any], Any], x: Any
    ) -> tuple[Any, ...]:
        """Returns the output of the op, by a kernel that transforms the last axis."""
        # The order in which the axis of `dim` is the last one.
        axis = context.axis(0, self.dim)  # in input 0, which is x
        order = [i for i in range(len(x.shape)) if i != axis]
        order.append(axis)
        y = kernel(transpose(x, order))
        inverse_order = [order.index(i) for i in range(len(order))]
        return (transpose(y, inverse_order),)


class FFT(_Transform):
    """The Fourier transform of complex numbers along `dim`.

    Attributes:
      dim: the dimension.
      inverse: whether it is the inverse transform.
    """

    dim: str
    inverse: bool = False

    # A partial sum consists of one addend on each device. If all inputs are partial sums, so
    # is the output.
    linearity = "joint"
    # Test inputs: the attributes (dim, inverse), then the input's kind of values and shape.
    conformance_samples = (
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
        kernel = tf.signal.ifft if self.inverse else tf.signal.fft
        return self._apply_kernel(context, kernel, x)

    def gradient(self, dy: Any, y: Any, x: Any) -> Cotangents:
        n = x.shape[self.dim]
        dx = apply(FFT(self.dim, inverse=not self.inverse), dy)
        scale = 1 / n if self.inverse else n
        return [multiply(dx, scale)]


class RFFT(_Transform):
    """The Fourier transform of n real numbers along `dim`: its coefficients 0 to n // 2. The
    other coefficients are the conjugates of these.
    """

    dim: str

    linearity = "joint"  # if all inputs are partial sums, so is the output
    conformance_samples = (Sample(("d",), ("b:4;d:6",)), Sample(("d",), ("d:5;b:4",)))

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
        # dx is n * Re(ifft(dy, padded with zeros)). IRFFT adds to each paired coefficient its
        # conjugate, which counts the real part twice; so paired coefficients are halved first.
        n = x.shape[self.dim]
        scaled_dy = _scale_paired_coefficients(dy, self.dim, size=n, scale=0.5)
        return [multiply(apply(IRFFT(self.dim, size=n), scaled_dy), n)]


class IRFFT(_Transform):
    """The inverse of RFFT.

    Attributes:
      dim: the dimension.
      size: the number of real numbers of the output along `dim`.
    """

    dim: str
    size: int

    linearity = "joint"  # if all inputs are partial sums, so is the output
    # Attributes: (dim, size).
    conformance_samples = (
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
        # y contains each paired coefficient twice: itself and its conjugate.
        spectrum = multiply(apply(RFFT(self.dim), dy), 1 / self.size)
        dx = _scale_paired_coefficients(spectrum, self.dim, size=self.size, scale=2.0)
        return [dx]


def _scale_paired_coefficients(z: Tensor, dim: str, size: int, scale: float) -> Tensor:
    """Returns coefficients with the paired ones multiplied by `scale`.

    Coefficient k is paired if the whole spectrum also has its conjugate, as coefficient
    size - k: for all k but 0 and, if `size` is even, size / 2.

    Args:
      z: the coefficients, [..., dim:size // 2 + 1, ...].
      dim: the dimension of the coefficients.
      size: the number of real numbers that were transformed.
      scale: the multiplier.
    """
    k = index_range(z.mesh, z.shape.dim(dim))
    is_middle = equal(multiply(k, 2), size)  # of an even size
    is_unpaired = logical_or(equal(k, 0), is_middle)
    scales = where(is_unpaired, 1.0, scale)
    return multiply(z, cast(scales, z.dtype))


def fft(x: Tensor, dims: Names) -> Tensor:
    """Returns the Fourier transform of complex numbers along one or more dimensions, in the
    shape of x.

    Raises:
      ShapeError: x lacks one of the dimensions.
      DTypeError: x is not of complex numbers.
    """
    x = as_tensor("x", x)
    for dim in names_of(dims, x.shape):
        x = apply(FFT(dim), x)
    return x


def ifft(x: Tensor, dims: Names) -> Tensor:
    """Returns the inverse of `fft`, in the shape of x. Errors are those of `fft`."""
    x = as_tensor("x", x)
    for dim in names_of(dims, x.shape):
        x = apply(FFT(dim, inverse=True), x)
    return x


def rfft(x: Tensor, dims: Names) -> Tensor:
    """Returns the Fourier transform of real numbers along one or more dimensions:
    x [..., n] -> complex [..., n // 2 + 1].

    Along the last of `dims`, of size n, the result has the coefficients 0 to n // 2, under
    the same name; the other coefficients are conjugates of these. If the layout shards this
    name, it must be able to shard n // 2 + 1 elements; if not, rename the dimension first.

    Raises:
      ShapeError: x lacks one of the dimensions.
      DTypeError: x is not of float32 or float64.
      LayoutError: the layout cannot shard n // 2 + 1 elements.
    """
    x = as_tensor("x", x)
    *other_dims, last_dim = _require_names(dims, x.shape)
    return fft(apply(RFFT(last_dim), x), other_dims)


def irfft(x: Tensor, dims: Names, size: int | None = None) -> Tensor:
    """Returns the inverse of `rfft`: x [..., n // 2 + 1] -> floats [..., n].

    Args:
      x: a tensor of complex numbers.
      dims: the names of the dimensions, as in `rfft`.
      size: n, the size of the last of `dims` in the result; None: the even one of the two
        possible sizes.

    Raises:
      ShapeError: x lacks one of the dimensions, or the size does not fit.
      DTypeError: x is not of complex numbers.
    """
    x = as_tensor("x", x)
    *other_dims, last_dim = _require_names(dims, x.shape)
    require_dim_of_caller(x.shape, last_dim)
    x = ifft(x, other_dims)
    if size is None:
        size = 2 * x.shape[last_dim] - 2
    return apply(IRFFT(last_dim, size), x)


def _require_names(dims: Names, shape: Shape) -> tuple[str, ...]:
    """Returns the names in `dims`. Raises ShapeError if there are none."""
    names = names_of(dims, shape)
    if not names:
        raise ShapeError(
            explain_error(
                "a Fourier transform of real numbers is along one dimension at least.",
                source=Source.of_caller(),
                way_out='Name it, as in mtf.math.rfft(x, "length").',
            )
        )
    return names
