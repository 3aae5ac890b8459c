"""Fourier transforms along named dimensions, of complex and of real numbers.

    z = mtf.fft(x, "width")                  # x, z complex
    z = mtf.rfft(x, "height;width")          # x real: z has width // 2 + 1 rows of `width`
    x = mtf.irfft(z, "height;width", size=width)

A transform needs a dimension whole. Where the layout cuts it, the planner cuts another
dimension meanwhile if it can: one all_to_all there and one back, as in the pencils of
parallel FFT codes. One over several dimensions is one after the other, so that only
those that are cut move.

The numbers and their order are those of numpy.fft: forward exp(-2 pi i jk/n), inverse
divided by n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import LocalContext, Op, Role, Sample, Source, Spec, Tensor, apply
from meshtf.graph.arguments import as_tensor
from meshtf.names import Names, Shape, complex_dtype, is_complex, names_of, real_dtype
from meshtf.ops.common.checks import require_dim
from meshtf.ops.common.local_reshape import transpose
from meshtf.ops.elementwise.arithmetic import equal, logical_or, multiply
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.indexing.gather import range as numbered


class _Transform(Op):
    """Base: `dim` must be whole, and is the last axis for TensorFlow."""

    dim: str

    def role(self, factor: str) -> Role:
        return Role.WHOLE if factor == self.dim else Role.MAP

    def flops(self, *xs: Spec) -> int:
        n = max(
            2,
            xs[0].shape[self.dim],
            *(y.shape[self.dim] for y in self.output_specs(*xs)),
        )
        return round(5 * n * math.log2(n)) * xs[0].shape.without(self.dim).size

    def _along(
        self, context: LocalContext, kernel: Callable[[Any], Any], x: Any
    ) -> tuple[Any, ...]:
        order = list(range(len(x.shape)))
        order.append(order.pop(context.axis(0, self.dim)))
        y = kernel(transpose(x, order))
        return (transpose(y, [order.index(i) for i in range(len(order))]),)


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

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
        require_dim(x.shape, self.dim)
        if not is_complex(x.dtype):
            raise DTypeError(
                explain_error(
                    f"{self.display_name} takes complex numbers, not {x.dtype}.",
                    way_out='Use mtf.rfft for real ones, or mtf.cast(x, "complex64").',
                )
            )
        return (x,)

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        return self._along(
            context, tf.signal.ifft if self.inverse else tf.signal.fft, x
        )

    def gradient(self, dy: Any, y: Any, x: Any) -> list[Any]:
        n = x.shape[self.dim]
        dx = apply(FFT(self.dim, not self.inverse), dy)
        return [multiply(dx, 1 / n if self.inverse else n)]


class RFFT(_Transform):
    """The transform of real numbers along `dim`: the rows up to the middle, which tell
    the others.
    """

    dim: str

    linearity = "joint"
    samples = (Sample(("d",), ("b:4;d:6",)), Sample(("d",), ("d:5;b:4",)))

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
        require_dim(x.shape, self.dim)
        if x.dtype not in ("float32", "float64"):
            raise DTypeError(
                explain_error(
                    f"rfft takes float32 or float64, not {x.dtype}.",
                    way_out="Use mtf.fft for complex numbers."
                    if is_complex(x.dtype)
                    else 'Convert it first: mtf.cast(x, "float32").',
                )
            )
        return (
            Spec(
                x.shape.resize(self.dim, x.shape[self.dim] // 2 + 1),
                complex_dtype(x.dtype),
            ),
        )

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        return self._along(context, tf.signal.rfft, x)

    def gradient(self, dy: Any, y: Any, x: Any) -> list[Any]:
        n = x.shape[self.dim]
        return [multiply(apply(IRFFT(self.dim, n), _weighted(dy, self.dim, n, 0.5)), n)]


class IRFFT(_Transform):
    """The inverse of RFFT, to `size` real numbers."""

    dim: str
    size: int

    linearity = "joint"
    samples = (
        Sample(("d", 6), ("complex b:4;d:4",)),
        Sample(("d", 5), ("complex d:3;b:4",)),
    )

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
        require_dim(x.shape, self.dim)
        if not is_complex(x.dtype):
            raise DTypeError(
                explain_error(
                    f"irfft takes complex numbers, not {x.dtype}.",
                    way_out='Make them of it: mtf.cast(x, "complex64").',
                )
            )
        if x.shape[self.dim] != self.size // 2 + 1:
            raise ShapeError(
                explain_error(
                    f"irfft makes {self.size} rows of {self.size // 2 + 1}, not of "
                    f"{x.shape[self.dim]}.",
                    way_out="Give it size=2 * rows - 2, or 2 * rows - 1 where the size "
                    "was odd.",
                )
            )
        return (Spec(x.shape.resize(self.dim, self.size), real_dtype(x.dtype)),)

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        return self._along(context, lambda v: tf.signal.irfft(v, [self.size]), x)

    def gradient(self, dy: Any, y: Any, x: Any) -> list[Any]:
        return [
            _weighted(
                multiply(apply(RFFT(self.dim), dy), 1 / self.size),
                self.dim,
                self.size,
                2.0,
            )
        ]


def _weighted(z: Tensor, dim: str, size: int, weight: float) -> Tensor:
    """Returns z with a weight on those rows that stand for two: all but the first and
    the middle.
    """
    k = numbered(z.mesh, z.shape.dim(dim))
    alone = logical_or(equal(k, 0), equal(multiply(k, 2), size))
    return multiply(z, cast(where(alone, 1.0, weight), z.dtype))


def fft(x: Tensor, dims: Names) -> Tensor:
    """Returns the Fourier transform of complex numbers along one or more dimensions.

    Raises:
      ShapeError: x lacks one of them.
      DTypeError: x is not of complex numbers.
    """
    x = as_tensor("x", x)
    for dim in names_of(dims, x.shape):
        x = apply(FFT(dim), x)
    return x


def ifft(x: Tensor, dims: Names) -> Tensor:
    """Returns the inverse of `fft`. Raises what it does."""
    x = as_tensor("x", x)
    for dim in names_of(dims, x.shape):
        x = apply(FFT(dim, True), x)
    return x


def rfft(x: Tensor, dims: Names) -> Tensor:
    """Returns the Fourier transform of real numbers along one or more dimensions.

    Of the last dimension, of size n, it has the rows 0 to n // 2, under the same name:
    the others are their conjugates. A layout that cuts this name must be able to cut n
    // 2 + 1 rows; if it cannot, rename it before, so that other rules hold.

    Raises:
      ShapeError: x lacks one of them.
      DTypeError: x is not of float32 or float64.
      LayoutError: the layout cannot cut the rows that remain.
    """
    x = as_tensor("x", x)
    *others, last = _several(dims, x.shape)
    return fft(apply(RFFT(last), x), others)


def irfft(x: Tensor, dims: Names, size: int | None = None) -> Tensor:
    """Returns the inverse of `rfft`.

    Args:
      x: complex numbers.
      dims: as for `rfft`.
      size: rows of the last dimension of the result; default: the even number.

    Raises:
      ShapeError: x lacks one of the dimensions, or the size does not fit.
      DTypeError: x is not of complex numbers.
    """
    x = as_tensor("x", x)
    *others, last = _several(dims, x.shape)
    require_dim(x.shape, last)
    x = ifft(x, others)
    return apply(IRFFT(last, 2 * x.shape[last] - 2 if size is None else size), x)


def _several(dims: Names, shape: Shape) -> tuple[str, ...]:
    """Returns one name or more. Raises ShapeError where there is none."""
    names = names_of(dims, shape)
    if not names:
        raise ShapeError(
            explain_error(
                "a Fourier transform of real numbers is along one dimension at least.",
                **{"from": Source.of_caller()},
                way_out='Name it, as in mtf.rfft(x, "length").',
            )
        )
    return names
