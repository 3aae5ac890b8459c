"""Pooling over named dimensions: the maximum or the mean of each window.

    y = mtf.max_pool(x, "h:2;w:2")                       # [batch h w c] -> [batch h/2 w/2 c]
    y = mtf.avg_pool(x, "h:3;w:3", stride=2, padding="same")

The dimensions may be sharded. Neighbouring shards then exchange the elements at the border, of
x in the forward pass, of x and the cotangent in the backward pass; an op's method `window`
returns their range. Among equal largest elements of a window, the first gets the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
from meshtf.ops.elementwise.arithmetic import maximum, minimum
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.shapes.reshape import transpose
from meshtf.ops.windows.conv_dimensions import PackedAxes, pack, unpack
from meshtf.ops.windows.pool_kernels import (
    maxima_gradient,
    means_gradient,
    values_at_maxima,
    window_maxima,
    window_means,
)
from meshtf.ops.windows.sliding_window import (
    Padding,
    PerDim,
    SlidingWindow,
    crop_to_shard,
    pad_input,
    sliding_windows,
)


class _PoolOp(WindowedOp):
    """The base of the pooling ops.

    Attributes:
      windows: how windows slide over each dimension that is pooled.
    """

    windows: tuple[SlidingWindow, ...]

    def _range_read(
        self,
        dim: str,
        range_method: Callable[[SlidingWindow, float], Window],
        fill: float = 0.0,
    ) -> Window | None:
        """Returns the range of elements of an input that a shard of the output reads; None
        if no windows slide over the dimension: the shard reads only its own indices.

        Args:
          dim: the name of the dimension.
          range_method: the method of `SlidingWindow` that returns the range.
          fill: the value of padding.
        """
        for sliding_window in self.windows:
            if sliding_window.dim == dim:
                return range_method(sliding_window, fill)
        return None

    def _resized(self, x: Spec, sizes: dict[str, int]) -> Specs:
        """Returns the spec of x with new sizes of the dimensions in `sizes`."""
        require_floating(x, "pooling")
        shape = x.shape
        for dim, size in sizes.items():
            shape = shape.resize(dim, size)
        return (Spec(shape, x.dtype),)

    def _packed_axes(self, names: Sequence[str]) -> PackedAxes:
        """Returns the names of each packed axis: batch, each pooled dimension, channels.

        Channels are the names after the last pooled dimension; batch are the other names
        that are not pooled.
        """
        dims = [window.dim for window in self.windows]
        last_index = max(names.index(dim) for dim in dims)
        batch = tuple(name for name in names[:last_index] if name not in dims)
        channels = tuple(names[last_index + 1 :])
        return [batch, *((dim,) for dim in dims), channels]

    def _packed(self, context: LocalContext, x: Any, input_index: int) -> Any:
        """Returns an input as [batch, *sizes, channels]."""
        # The names of two inputs may differ in order: all follow that of the output.
        axes = self._packed_axes(context.outputs[0].names)
        return pack(x, context.inputs[input_index].names, axes)

    def _packed_and_padded(
        self, context: LocalContext, x: Any, input_index: int, fill: float
    ) -> Any:
        """Returns an input as [batch, *sizes, channels], with all elements that this
        device's windows read; padding has the value `fill`.
        """
        x = self._packed(context, x, input_index)
        for axis, window in enumerate(self.windows, start=1):  # axis 0: batch
            x = pad_input(context, x, axis, window=window, fill=fill)
        return x

    def _unpacked(self, context: LocalContext, y: Any) -> LocalTensors:
        """Returns the output of the op for the packed output [batch, *sizes, channels]."""
        (shape,) = context.outputs
        return (unpack(y, shape, self._packed_axes(shape.names)),)

    def _cropped(self, context: LocalContext, x: Any) -> LocalTensors:
        """Returns the output of the op for x [batch, *sizes, channels], the packed output
        extended to all elements that this device's windows read, which is cropped here.
        """
        for axis, window in enumerate(self.windows, start=1):  # axis 0: batch
            x = crop_to_shard(context, x, axis, window)
        return self._unpacked(context, x)

    def flops(self, *xs: Spec) -> int:
        output_sizes = {dim.name: dim.size for dim in xs[0].shape}
        taps = 1
        for window in self.windows:
            output_sizes[window.dim] = window.num_windows
            taps *= window.taps
        return math.prod(output_sizes.values()) * taps


def _sample(
    x: str, window: str, inputs: str = "x", values: str = "", **options: Any
) -> Sample:
    """Returns a sample of a pooling op, for the conformance suite.

    Args:
      x: the shape of x as text, "b:2;h:8".
      window: the sizes of a window, "h:3".
      inputs: one letter for each input of the op: "x" if it has the shape of x, "y" if it
        has that of the result of pooling.
      values: the prefix that says how values of "x" are drawn: "ties " for equal ones.
      **options: `stride` and `padding` of `max_pool`.
    """
    defaults: dict[str, Any] = {"stride": None, "padding": "valid"}
    windows = _pooling_windows(Shape(x), window, **(defaults | options))
    y_shape = Shape(x)
    for sliding_window in windows:
        y_shape = y_shape.resize(sliding_window.dim, sliding_window.num_windows)
    y = ";".join(map(repr, y_shape))
    texts = {"x": values + x, "y": y}
    return Sample((windows,), tuple(texts[letter] for letter in inputs))


def _pooling_windows(
    x: Shape, window: ShapeLike, stride: PerDim[int] | None, padding: PerDim[Padding]
) -> tuple[SlidingWindow, ...]:
    """Returns how windows slide over x, for the arguments of `max_pool`.

    Raises:
      ShapeError: x lacks a name, or a window does not fit or reads only padding.
    """
    taps = {dim.name: dim.size for dim in Shape(window)}
    if not taps:
        raise ShapeError("a window has at least one dimension.")
    windows = sliding_windows(
        x,
        taps,
        stride=taps if stride is None else stride,
        padding=padding,
        dilation=1,
        default_padding="valid",
    )
    for w in windows:
        first_is_padding = w.pad_before >= w.taps
        last_start = (w.num_windows - 1) * w.stride - w.pad_before
        if first_is_padding or last_start >= w.size:
            raise ShapeError(
                explain_error(
                    f'a window over "{w.dim}" has nothing but padding in it.',
                    size=w.size,
                    window=w.taps,
                    stride=w.stride,
                    padding=padding,
                    way_out="Take less padding, or a larger window.",
                )
            )
    return windows


class MaxPool(_PoolOp):
    """The largest element of each window of x."""

    windows: tuple[SlidingWindow, ...]
    conformance_samples = (
        _sample("b:2;h:8;c:2", "h:2"),
        _sample("h:7;c:2", "h:3", values="ties ", stride=1, padding="same"),
        _sample("h:8;b:2", "h:3", values="ties ", stride=3, padding=(2, 2)),
        _sample("h:12;c:2", "h:2", stride=3, padding=(1, 1)),
        _sample("b:2;w:4;h:8", "h:3;w:2", values="ties ", stride=2, padding="same"),
        _sample("d:4;h:2;w:2", "d:3;h:2;w:1", values="ties ", stride=1, padding="same"),
    )

    def output_specs(self, x: Spec) -> Specs:
        return self._resized(x, {w.dim: w.num_windows for w in self.windows})

    def window(self, input_index: int, dim: str) -> Window | None:
        return self._range_read(dim, SlidingWindow.elements_of_windows, fill=-math.inf)

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        x = self._packed_and_padded(context, x, input_index=0, fill=-math.inf)
        return self._unpacked(context, window_maxima(self.windows, x))

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return [apply(MaxPoolGrad(self.windows), dy, x)]


class MaxPoolGrad(_PoolOp):
    """The gradient of `MaxPool` in x; the inputs are dy and x. Its own gradient in x is zero.

    dy of each window is added at the first largest element of the window in x.
    """

    windows: tuple[SlidingWindow, ...]
    conformance_samples = (
        _sample("h:8;c:2", "h:3", inputs="yx", stride=2, padding="same"),
        _sample("h:8", "h:3", inputs="yx", stride=3, padding=(2, 2)),
    )

    def output_specs(self, dy: Spec, x: Spec) -> Specs:
        return self._resized(x, {})

    def window(self, input_index: int, dim: str) -> Window | None:
        if input_index == 0:
            return self._range_read(dim, SlidingWindow.windows_of_elements)
        return self._range_read(
            dim, SlidingWindow.elements_sharing_windows, fill=-math.inf
        )

    def local(self, context: LocalContext, dy: Any, x: Any) -> LocalTensors:
        dy = self._packed(context, dy, input_index=0)
        x = self._packed_and_padded(context, x, input_index=1, fill=-math.inf)
        return self._cropped(context, maxima_gradient(self.windows, dy, x))

    def gradient(self, dz: Tensor, z: Tensor, dy: Tensor, x: Tensor) -> Cotangents:
        return [transpose(apply(MaxPoolPick(self.windows), dz, x), dy.shape), None]


class MaxPoolPick(_PoolOp):
    """For each window, the element of z at the index of the window's first largest element
    in x.

    The inputs are z and x, of the same shape. It is the gradient of `MaxPoolGrad` in dy.
    """

    windows: tuple[SlidingWindow, ...]
    conformance_samples = (
        _sample("h:8;c:2", "h:3", inputs="xx", stride=2, padding="same"),
        _sample("d:2;h:4;w:3", "d:2;h:3;w:2", inputs="xx"),
    )

    def output_specs(self, z: Spec, x: Spec) -> Specs:
        return self._resized(x, {w.dim: w.num_windows for w in self.windows})

    def window(self, input_index: int, dim: str) -> Window | None:
        z_index = 0
        fill = 0.0 if input_index == z_index else -math.inf
        return self._range_read(dim, SlidingWindow.elements_of_windows, fill)

    def local(self, context: LocalContext, z: Any, x: Any) -> LocalTensors:
        z = self._packed_and_padded(context, z, input_index=0, fill=0.0)
        x = self._packed_and_padded(context, x, input_index=1, fill=-math.inf)
        return self._unpacked(context, values_at_maxima(self.windows, z, x))

    def gradient(self, dp: Tensor, p: Tensor, z: Tensor, x: Tensor) -> Cotangents:
        return [transpose(apply(MaxPoolGrad(self.windows), dp, x), z.shape), None]


class AvgPool(_PoolOp):
    """The mean of each window of x, in which padding counts as zeros."""

    windows: tuple[SlidingWindow, ...]
    linearity = "joint"  # op(a + b) = op(a) + op(b): partial sums stay partial sums
    conformance_samples = (
        _sample("b:2;h:8;c:2", "h:2"),
        _sample("h:8;c:2", "h:3", stride=3, padding=(2, 2)),
        _sample("b:2;w:4;h:8", "h:3;w:2", stride=2, padding="same"),
        _sample("d:5;h:2;w:2", "d:3;h:2;w:1", stride=1, padding="same"),
    )

    def output_specs(self, x: Spec) -> Specs:
        return self._resized(x, {w.dim: w.num_windows for w in self.windows})

    def window(self, input_index: int, dim: str) -> Window | None:
        return self._range_read(dim, SlidingWindow.elements_of_windows)

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        x = self._packed_and_padded(context, x, input_index=0, fill=0.0)
        return self._unpacked(context, window_means(self.windows, x))

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return [apply(AvgPoolGrad(self.windows), dy)]


class AvgPoolGrad(_PoolOp):
    """The gradient of `AvgPool` in x; the input is dy.

    An element gets the sum of dy over the windows that read it, divided by the size of a
    window.
    """

    windows: tuple[SlidingWindow, ...]
    linearity = "joint"  # as in `AvgPool`
    conformance_samples = (
        _sample("h:8;c:2", "h:3", inputs="y", stride=2, padding="same"),
    )

    def output_specs(self, dy: Spec) -> Specs:
        return self._resized(dy, {w.dim: w.size for w in self.windows})

    def window(self, input_index: int, dim: str) -> Window | None:
        return self._range_read(dim, SlidingWindow.windows_of_elements)

    def local(self, context: LocalContext, dy: Any) -> LocalTensors:
        dy = self._packed(context, dy, input_index=0)
        return self._cropped(context, means_gradient(self.windows, dy))

    def gradient(self, dx: Tensor, x: Tensor, dy: Tensor) -> Cotangents:
        return [apply(AvgPool(self.windows), dx)]


def max_pool(
    x: Tensor,
    window: ShapeLike,
    stride: PerDim[int] | None = None,
    padding: PerDim[Padding] = "valid",
) -> Tensor:
    """Returns the largest element of each window of x; padding is never the largest. Whether
    NaN is left out is not defined: `mtf.check_numerics` finds it before.

    Args:
      x: a tensor, such as [batch, h, w, c].
      window: the sizes of a window, by name: "h:2;w:2".
      stride: the distance in elements from one window to the next, for all names or by
        name; None: the size of a window.
      padding: "valid" (none), "same" (ceil(size / stride) windows), "causal" (all
        before), or the numbers of elements before and after; for all names, or by name.

    Raises:
      ShapeError: x lacks a name, or no window fits.
      DTypeError: x is not of floats.
    """
    x = as_tensor("x", x)
    return apply(MaxPool(_pooling_windows(x.shape, window, stride, padding)), x)


def avg_pool(
    x: Tensor,
    window: ShapeLike,
    stride: PerDim[int] | None = None,
    padding: PerDim[Padding] = "valid",
) -> Tensor:
    """Returns the mean of the elements of x in each window; padding does not count.

    The result has the names of x, such as [batch, h, w, c], and an element for each window.
    Arguments and errors are those of `max_pool`.
    """
    x = as_tensor("x", x)
    windows = _pooling_windows(x.shape, window, stride, padding)
    y = apply(AvgPool(windows), x)
    for sliding_window in windows:
        if sliding_window.pad_before or sliding_window.pad_after:
            # AvgPool counts padding as zeros; corrected in float32 if x is of 16 bits.
            y = cast(y, accumulation_dtype(x.dtype))
            y = cast(y * _padding_correction(x, sliding_window), x.dtype)
    return y


def _padding_correction(x: Tensor, window: SlidingWindow) -> Tensor:
    """Returns, for each window, its size divided by the number of its elements that are
    not padding: [window.dim:num_windows].
    """
    window_index = index_range(x.mesh, Dimension(window.dim, window.num_windows))
    start = window_index * window.stride - window.pad_before
    last_full_start = window.size - window.taps  # windows that start later read padding
    # The sum of max(start, 0) - start before x and start - min(start, last_full_start)
    # after it.
    num_padding = maximum(start, 0) - minimum(start, last_full_start)
    num_elements = window.taps - num_padding
    return float(window.taps) / cast(num_elements, accumulation_dtype(x.dtype))
