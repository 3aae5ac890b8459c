"""Pooling over named dimensions: the maximum or the mean of each window.

    y = mtf.max_pool(x, "h:2;w:2")                       # [batch h w c] -> [batch h/2 w/2 c]
    y = mtf.avg_pool(x, "h:3;w:3", stride=2, padding="same")

The dimensions may be sharded. Neighbours then exchange the elements at the border: of x
in the forward pass, of x and the cotangent in the backward pass. The gradient of a
maximum goes to the first of equal elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    Sample,
    Spec,
    Specs,
    Tensor,
    Window,
    WindowedOp,
    apply,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import Dimension, Shape, ShapeLike, accumulation_dtype
from meshtf.ops.common.checks import require_floating
from meshtf.ops.elementwise.arithmetic import (
    divide,
    maximum,
    minimum,
    multiply,
    subtract,
)
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.indexing.gather import range as named_range
from meshtf.ops.shapes.reshape import transpose
from meshtf.ops.windows.conv_dimensions import PackedAxes, pack, unpack
from meshtf.ops.windows.pool_kernels import (
    average,
    average_gradient,
    largest,
    largest_gradient,
    largest_picks,
)
from meshtf.ops.windows.sliding_window import (
    Padding,
    PerDim,
    Slide,
    crop_to_shard,
    padded,
    slides,
)


class _Pool(WindowedOp):
    """The base of the pooling ops."""

    slides: tuple[Slide, ...]

    def _window(self, kind: str, dim: str, fill: float = 0.0) -> Window | None:
        """Returns the window of one kind: "forward", "backward" or "both_ways"."""
        for slide in self.slides:
            if slide.dim == dim:
                window = getattr(slide, kind)
                return window._replace(fill=fill)
        return None

    def _resized(self, x: Spec, sizes: dict[str, int]) -> Specs:
        """Returns the spec of x with other sizes of some dimensions."""
        require_floating(x, "pooling")
        shape = x.shape
        for dim, size in sizes.items():
            shape = shape.resize(dim, size)
        return (Spec(shape, x.dtype),)

    def _packed_axes(self, names: Sequence[str]) -> PackedAxes:
        """Returns the names of each axis: batch, each name of windows, channels."""
        dims = [slide.dim for slide in self.slides]
        last = max(names.index(dim) for dim in dims)
        batch = tuple(name for name in names[:last] if name not in dims)
        channels = tuple(names[last + 1 :])
        return [batch, *((dim,) for dim in dims), channels]

    def _packed(self, context: LocalContext, i: int, x: Any) -> Any:
        """Returns input i as [batch, *windows, channels]."""
        # The names of two inputs may differ in order: all follow that of the output.
        axes = self._packed_axes(context.outputs[0].names)
        return pack(x, context.inputs[i].names, axes)

    def _padded(self, context: LocalContext, i: int, x: Any, fill: float) -> Any:
        """Returns input i with all elements that this device's windows read."""
        x = self._packed(context, i, x)
        for axis, slide in enumerate(self.slides, start=1):
            x = padded(context, x, axis, slide, fill)
        return x

    def _unpacked(self, context: LocalContext, y: Any) -> LocalTensors:
        """Returns the output for y [batch, *windows, channels]."""
        (shape,) = context.outputs
        return (unpack(y, shape, self._packed_axes(shape.names)),)

    def _cropped(self, context: LocalContext, x: Any) -> LocalTensors:
        """Returns the output for x with all elements that this device's windows read."""
        for axis, slide in enumerate(self.slides, start=1):
            x = crop_to_shard(context, x, axis, slide)
        return self._unpacked(context, x)

    def flops(self, *xs: Spec) -> int:
        sizes = {dim.name: dim.size for dim in xs[0].shape}
        taps = 1
        for slide in self.slides:
            sizes[slide.dim] = slide.windows
            taps *= slide.taps
        return math.prod(sizes.values()) * taps


def _sample(
    x: str, window: str, kinds: str = "x", kind: str = "", **options: Any
) -> Sample:
    """Returns a sample of an op whose inputs are as large as x or as the windows."""
    default: dict[str, Any] = {"stride": None, "padding": "valid"}
    over = _over(Shape(x), window, **(default | options))
    y_shape = Shape(x)
    for slide in over:
        y_shape = y_shape.resize(slide.dim, slide.windows)
    y = ";".join(map(repr, y_shape))
    texts = {"x": kind + x, "y": y}
    return Sample((over,), tuple(texts[k] for k in kinds))


def _over(
    x: Shape, window: ShapeLike, stride: PerDim[int] | None, padding: PerDim[Padding]
) -> tuple[Slide, ...]:
    """Returns how windows slide over x. Raises ShapeError."""
    taps = {d.name: d.size for d in Shape(window)}
    if not taps:
        raise ShapeError("a window has at least one dimension.")
    over = slides(
        x, taps, taps if stride is None else stride, padding, 1, default="valid"
    )
    for s in over:
        if s.before >= s.taps or (s.windows - 1) * s.stride >= s.size + s.before:
            raise ShapeError(
                explain_error(
                    f'a window over "{s.dim}" has nothing but padding in it.',
                    size=s.size,
                    window=s.taps,
                    stride=s.stride,
                    padding=padding,
                    way_out="Take less padding, or a larger window.",
                )
            )
    return over


class MaxPool(_Pool):
    """The largest of each window."""

    slides: tuple[Slide, ...]
    samples = (
        _sample("b:2;h:8;c:2", "h:2"),
        _sample("h:8;c:2", "h:3", kind="ties ", stride=1, padding="same"),
        _sample("h:8;b:2", "h:3", kind="ties ", stride=3, padding=(2, 2)),
        _sample("h:12;c:2", "h:2", stride=3, padding=(1, 1)),
        _sample("b:2;w:4;h:8", "h:3;w:2", kind="ties ", stride=2, padding="same"),
        _sample("d:4;h:2;w:2", "d:3;h:2;w:1", kind="ties ", stride=1, padding="same"),
    )

    def output_specs(self, x: Spec) -> Specs:
        return self._resized(x, {s.dim: s.windows for s in self.slides})

    def window(self, input_index: int, dim: str) -> Window | None:
        return self._window("forward", dim, fill=-math.inf)

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        return self._unpacked(
            context, largest(self.slides, self._padded(context, 0, x, -math.inf))
        )

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return [apply(MaxPoolGrad(self.slides), dy, x)]


class MaxPoolGrad(_Pool):
    """dy of each window at its first maximum in x, zeros elsewhere."""

    slides: tuple[Slide, ...]
    samples = (
        _sample("h:8;c:2", "h:3", "yx", stride=2, padding="same"),
        _sample("h:8", "h:3", "yx", stride=3, padding=(2, 2)),
    )

    def output_specs(self, dy: Spec, x: Spec) -> Specs:
        return self._resized(x, {})

    def window(self, input_index: int, dim: str) -> Window | None:
        if input_index == 0:
            return self._window("backward", dim)
        return self._window("both_ways", dim, fill=-math.inf)

    def local(self, context: LocalContext, dy: Any, x: Any) -> LocalTensors:
        dy = self._packed(context, 0, dy)
        x = self._padded(context, 1, x, -math.inf)
        return self._cropped(context, largest_gradient(self.slides, dy, x))

    def gradient(self, dz: Tensor, z: Tensor, dy: Tensor, x: Tensor) -> Cotangents:
        return [transpose(apply(MaxPoolPick(self.slides), dz, x), dy.shape), None]


class MaxPoolPick(_Pool):
    """The element of z at the first maximum of each window in x."""

    slides: tuple[Slide, ...]
    samples = (
        _sample("h:8;c:2", "h:3", "xx", stride=2, padding="same"),
        _sample("d:2;h:4;w:3", "d:2;h:3;w:2", "xx"),
    )

    def output_specs(self, z: Spec, x: Spec) -> Specs:
        return self._resized(x, {s.dim: s.windows for s in self.slides})

    def window(self, input_index: int, dim: str) -> Window | None:
        return self._window("forward", dim, fill=-math.inf if input_index else 0.0)

    def local(self, context: LocalContext, z: Any, x: Any) -> LocalTensors:
        z = self._padded(context, 0, z, 0.0)
        x = self._padded(context, 1, x, -math.inf)
        return self._unpacked(context, largest_picks(self.slides, z, x))

    def gradient(self, dp: Tensor, p: Tensor, z: Tensor, x: Tensor) -> Cotangents:
        return [transpose(apply(MaxPoolGrad(self.slides), dp, x), z.shape), None]


class AvgPool(_Pool):
    """The mean of each window, padding counted as zeros."""

    slides: tuple[Slide, ...]
    linearity = "joint"
    samples = (
        _sample("b:2;h:8;c:2", "h:2"),
        _sample("h:8;c:2", "h:3", stride=3, padding=(2, 2)),
        _sample("b:2;w:4;h:8", "h:3;w:2", stride=2, padding="same"),
        _sample("d:4;h:2;w:2", "d:3;h:2;w:1", stride=1, padding="same"),
    )

    def output_specs(self, x: Spec) -> Specs:
        return self._resized(x, {s.dim: s.windows for s in self.slides})

    def window(self, input_index: int, dim: str) -> Window | None:
        return self._window("forward", dim)

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        return self._unpacked(
            context, average(self.slides, self._padded(context, 0, x, 0.0))
        )

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return [apply(AvgPoolGrad(self.slides), dy)]


class AvgPoolGrad(_Pool):
    """The sum at each element of dy of its windows, over the size of a window."""

    slides: tuple[Slide, ...]
    linearity = "joint"
    samples = (_sample("h:8;c:2", "h:3", "y", stride=2, padding="same"),)

    def output_specs(self, dy: Spec) -> Specs:
        return self._resized(dy, {s.dim: s.size for s in self.slides})

    def window(self, input_index: int, dim: str) -> Window | None:
        return self._window("backward", dim)

    def local(self, context: LocalContext, dy: Any) -> LocalTensors:
        return self._cropped(
            context, average_gradient(self.slides, self._packed(context, 0, dy))
        )

    def gradient(self, dx: Tensor, x: Tensor, dy: Tensor) -> Cotangents:
        return [apply(AvgPool(self.slides), dx)]


def max_pool(
    x: Tensor,
    window: ShapeLike,
    stride: PerDim[int] | None = None,
    padding: PerDim[Padding] = "valid",
) -> Tensor:
    """Returns the largest element of each window; padding is never the largest.

    Args:
      x: such as [batch, h, w, c].
      window: the sizes of a window, by name: "h:2;w:2".
      stride: elements from one window to the next, for all or by name; by default the
        size of a window.
      padding: "valid" (none), "same" (ceil(size / stride) windows), "causal" (all
        before), or the elements before and after; for all names, or by name.

    Raises:
      ShapeError: x lacks a name, or no window fits.
      DTypeError: x is not of floats.
    """
    x = as_tensor("x", x)
    return apply(MaxPool(_over(x.shape, window, stride, padding)), x)


def avg_pool(
    x: Tensor,
    window: ShapeLike,
    stride: PerDim[int] | None = None,
    padding: PerDim[Padding] = "valid",
) -> Tensor:
    """Returns the mean of each window, of elements of x only, not of padding:
    [..., height, width, ...] -> the same names, an element for each window.

    Arguments and errors are those of `max_pool`.
    """
    x = as_tensor("x", x)
    over = _over(x.shape, window, stride, padding)
    y = apply(AvgPool(over), x)
    for slide in over:
        if slide.before or slide.after:
            y = cast(
                multiply(cast(y, accumulation_dtype(x.dtype)), _correction(x, slide)),
                x.dtype,
            )
    return y


def _correction(x: Tensor, slide: Slide) -> Tensor:
    """Returns, for each window, its size over the number of its elements in x."""
    index = named_range(x.mesh, Dimension(slide.dim, slide.windows))
    start = subtract(multiply(index, slide.stride), slide.before)
    missing = subtract(maximum(start, 0), minimum(start, slide.size - slide.taps))
    return divide(
        float(slide.taps),
        cast(subtract(slide.taps, missing), accumulation_dtype(x.dtype)),
    )
