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
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
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
from meshtf.ops.common.op_bases import _NeedsWholeDim
from meshtf.ops.elementwise.arithmetic import equal
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.indexing.one_hot_and_range import range as index_range

# The inverse of each transform.
_INVERSES = {"fft": "ifft", "ifft": "fft", "rfft": "irfft", "irfft": "rfft"}


class Fourier(_NeedsWholeDim):
    """A Fourier transform along `dim`, which must not be sharded.

    Attributes:
      dim: the dimension.
      kind: "fft" or "ifft", of complex numbers; "rfft", which gives the coefficients 0 to n // 2
        of n real numbers, whose other coefficients are the conjugates of these; or "irfft".
      size: the size of `dim` in the output.
    """

    kind: str
    size: int

    # A partial sum consists of one addend on each device. If all inputs are partial sums, so
    # is the output.
    linearity = "joint"
    # Test inputs: the attributes (dim, kind, size), then the input's kind of values and shape.
    conformance_samples = (
        Sample(("d", "fft", 6), ("complex b:4;d:6",)),
        Sample(("d", "ifft", 5), ("complex d:5;b:4",)),
        Sample(("b", "fft", 4), ("complex c:2;b:4;d:2",)),
        Sample(("d", "rfft", 4), ("b:4;d:6",)),
        Sample(("d", "rfft", 3), ("d:5;b:4",)),
        Sample(("d", "irfft", 6), ("complex b:4;d:4",)),
        Sample(("d", "irfft", 5), ("complex d:3;b:4",)),
    )

    @property
    def display_name(self) -> str:
        return self.kind

    def output_specs(self, x: Spec) -> Specs:
        require_dim(x.shape, self.dim)
        _check_dtype(self.kind, x.dtype)
        size = x.shape[self.dim]
        if self.kind == "irfft" and size != self.size // 2 + 1:
            raise ShapeError(
                explain_error(
                    f"irfft computes {self.size} numbers from {self.size // 2 + 1} "
                    f"coefficients, not from {size}.",
                    way_out="Pass size=2 * coefficients - 2, or 2 * coefficients - 1 "
                    "where the size was odd.",
                )
            )
        dtype = x.dtype
        if self.kind == "rfft":
            dtype = complex_dtype(dtype)
        elif self.kind == "irfft":
            dtype = real_dtype(dtype)
        return (Spec(x.shape.resize(self.dim, self.size), dtype),)

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        # The order in which the axis of `dim` is the last one.
        axis = context.axis(0, self.dim)  # in input 0, which is x
        order = [i for i in range(len(x.shape)) if i != axis]
        order.append(axis)
        length = [[self.size]] if self.kind == "irfft" else []
        y = getattr(tf.signal, self.kind)(transpose(x, order), *length)
        inverse_order = [order.index(i) for i in range(len(order))]
        return (transpose(y, inverse_order),)

    def gradient(self, dy: Any, y: Any, x: Any) -> Cotangents:
        size = x.shape[self.dim]
        inverse = Fourier(self.dim, _INVERSES[self.kind], size)
        if self.kind == "rfft":
            # dx is size * Re(ifft(dy, padded with zeros)). The inverse adds to each paired
            # coefficient its conjugate, which counts the real part twice; so paired
            # coefficients are halved first.
            dy = _scale_paired_coefficients(dy, self.dim, size=size, scale=0.5)
        if self.kind in ("fft", "rfft"):
            return [apply(inverse, dy) * size]
        dx = apply(inverse, dy) * (1 / self.size)
        if self.kind == "irfft":
            # y contains each paired coefficient twice: itself and its conjugate.
            dx = _scale_paired_coefficients(dx, self.dim, size=self.size, scale=2.0)
        return [dx]

    def flops(self, x: Spec) -> int:
        # 5 n log2(n) is the usual count for n complex numbers. For a real transform, n is
        # the count of real numbers, the larger size. At least 2, since log2(1) is 0.
        n = max(2, x.shape[self.dim], self.size)
        flops_per_transform = round(5 * n * math.log2(n))
        return flops_per_transform * x.shape.without(self.dim).size


def _check_dtype(kind: str, dtype: str) -> None:
    """Raises DTypeError if a kind of transform does not take a data type."""
    if kind == "rfft":
        takes = "float32 or float64"
        if dtype in ("float32", "float64"):
            return
        way_out = 'Convert it first: mtf.cast(x, "float32").'
        if is_complex(dtype):
            way_out = "Use mtf.math.fft for complex numbers."
    else:
        takes = "complex numbers"
        if is_complex(dtype):
            return
        way_out = 'Use mtf.math.rfft for real ones, or mtf.cast(x, "complex64").'
        if kind == "irfft":
            way_out = 'Convert it first: mtf.cast(x, "complex64").'
    message = f"{kind} takes {takes}, not {dtype}."
    raise DTypeError(explain_error(message, way_out=way_out))


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
    is_middle = equal(k * 2, size)  # of an even size
    is_unpaired = equal(k, 0) | is_middle
    scales = where(is_unpaired, 1.0, scale)
    return z * cast(scales, z.dtype)


def fft(x: Tensor, dims: Names) -> Tensor:
    """Returns the Fourier transform of complex numbers along one or more dimensions, in the
    shape of x.

    Raises:
      ShapeError: x lacks one of the dimensions.
      DTypeError: x is not of complex numbers.
    """
    return _transform("fft", x, dims)


def ifft(x: Tensor, dims: Names) -> Tensor:
    """Returns the inverse of `fft`, in the shape of x. Errors are those of `fft`."""
    return _transform("ifft", x, dims)


def _transform(kind: str, x: Tensor, dims: Names) -> Tensor:
    """Returns `fft` or `ifft`."""
    x = as_tensor("x", x)
    for dim in names_of(dims, x.shape):
        x = apply(Fourier(dim, kind, x.shape.get(dim)), x)
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
    size = x.shape.get(last_dim) // 2 + 1
    return fft(apply(Fourier(last_dim, "rfft", size), x), other_dims)


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
    return apply(Fourier(last_dim, "irfft", size), x)


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
