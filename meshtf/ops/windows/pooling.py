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
from typing import Any, NamedTuple

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


def _sample(
    fn: str, x: str, window: str, inputs: str = "x", values: str = "", **options: Any
) -> Sample:
    """Returns a sample of `Pool`, for the conformance suite.

    Args:
      fn: the name of the function.
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
    return Sample((fn, windows), tuple(texts[letter] for letter in inputs))


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


# The ranges of elements that a shard of an output reads: those of its windows, the windows of its
# elements, and all elements of these windows.
_ELEMENTS = SlidingWindow.elements_of_windows
_WINDOWS = SlidingWindow.windows_of_elements
_SHARING = SlidingWindow.elements_sharing_windows


class _Function(NamedTuple):
    """A function of windows.

    Attributes:
      kernel: the function of `pool_kernels` that computes it.
      reads: for each input, what it reads, and the value of padding.
      gradient: the name of the function that is its gradient in the first input. It has none in
        the second one.
      gives_windows: whether the output has an element for each window, and not those of x.
    """

    kernel: Callable[..., Any]
    reads: tuple[tuple[Callable[[SlidingWindow, float], Window], float], ...]
    gradient: str
    gives_windows: bool = True


_FUNCTIONS = {
    # The largest element of each window of x.
    "maxpool": _Function(window_maxima, ((_ELEMENTS, -math.inf),), "maxpoolgrad"),
    # Its gradient, of dy and x: dy of each window is added at the window's first largest element.
    "maxpoolgrad": _Function(
        maxima_gradient,
        ((_WINDOWS, 0.0), (_SHARING, -math.inf)),
        gradient="maxpoolpick",
        gives_windows=False,
    ),
    # The gradient of that, of z and x: the element of z at the index of each window's first
    # largest element in x.
    "maxpoolpick": _Function(
        values_at_maxima, ((_ELEMENTS, 0.0), (_ELEMENTS, -math.inf)), "maxpoolgrad"
    ),
    # The mean of each window of x, in which padding counts as zeros.
    "avgpool": _Function(window_means, ((_ELEMENTS, 0.0),), "avgpoolgrad"),
    # Its gradient, of dy: an element gets the sum of dy over the windows that read it, divided by
    # the size of a window.
    "avgpoolgrad": _Function(
        means_gradient, ((_WINDOWS, 0.0),), "avgpool", gives_windows=False
    ),
}


class Pool(WindowedOp):
    """A function of windows that slide over the last input.

    Attributes:
      fn: the name of the function.
      windows: how windows slide over each dimension that is pooled.
    """

    fn: str
    windows: tuple[SlidingWindow, ...]
    conformance_samples = (
        _sample("maxpool", "b:2;h:8;c:2", "h:2"),
        _sample("maxpool", "h:7;c:2", "h:3", values="ties ", stride=1, padding="same"),
        _sample("maxpool", "h:8;b:2", "h:3", values="ties ", stride=3, padding=(2, 2)),
        _sample("maxpool", "h:12;c:2", "h:2", stride=3, padding=(1, 1)),
        _sample(
            "maxpool",
            "b:2;w:4;h:8",
            "h:3;w:2",
            values="ties ",
            stride=2,
            padding="same",
        ),
        _sample(
            "maxpool",
            "d:4;h:2;w:2",
            "d:3;h:2;w:1",
            values="ties ",
            stride=1,
            padding="same",
        ),
        _sample("maxpoolgrad", "h:8;c:2", "h:3", inputs="yx", stride=2, padding="same"),
        _sample("maxpoolgrad", "h:8", "h:3", inputs="yx", stride=3, padding=(2, 2)),
        _sample("maxpoolpick", "h:8;c:2", "h:3", inputs="xx", stride=2, padding="same"),
        _sample("maxpoolpick", "d:2;h:4;w:3", "d:2;h:3;w:2", inputs="xx"),
        _sample("avgpool", "b:2;h:8;c:2", "h:2"),
        _sample("avgpool", "h:8;c:2", "h:3", stride=3, padding=(2, 2)),
        _sample("avgpool", "b:2;w:4;h:8", "h:3;w:2", stride=2, padding="same"),
        _sample("avgpool", "d:5;h:2;w:2", "d:3;h:2;w:1", stride=1, padding="same"),
        _sample("avgpoolgrad", "h:8;c:2", "h:3", inputs="y", stride=2, padding="same"),
    )

    @property
    def display_name(self) -> str:
        return self.fn

    @property
    def linearity(self) -> Any:
        # mean(a + b) = mean(a) + mean(b): partial sums stay partial sums
        return "joint" if self.fn in ("avgpool", "avgpoolgrad") else None

    def output_specs(self, *xs: Spec) -> Specs:
        x = xs[-1]
        require_floating(x, "pooling")
        shape = x.shape
        for window in self.windows:
            size = window.size
            if _FUNCTIONS[self.fn].gives_windows:
                size = window.num_windows
            shape = shape.resize(window.dim, size)
        return (Spec(shape, x.dtype),)

    def window(self, input_index: int, dim: str) -> Window | None:
        range_method, fill = _FUNCTIONS[self.fn].reads[input_index]
        for sliding_window in self.windows:
            if sliding_window.dim == dim:
                return range_method(sliding_window, fill)
        return None  # the shard reads only its own indices

    def local(self, context: LocalContext, *xs: Any) -> LocalTensors:
        function = _FUNCTIONS[self.fn]
        (shape,) = context.outputs
        # The names of two inputs may differ in order: all follow that of the output.
        axes = self._packed_axes(shape.names)
        packed = []
        for x, x_shape, (range_method, fill) in zip(xs, context.inputs, function.reads):
            x = pack(x, x_shape.names, axes)
            if range_method is not _WINDOWS:
                for axis, window in enumerate(self.windows, start=1):  # axis 0: batch
                    x = pad_input(context, x, axis, window, fill)
            packed.append(x)
        y = function.kernel(self.windows, *packed)
        if not function.gives_windows:
            # y has all elements that this device's windows read.
            for axis, window in enumerate(self.windows, start=1):
                y = crop_to_shard(context, y, axis, window)
        return (unpack(y, shape, axes),)

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

    def gradient(self, dy: Tensor, y: Tensor, *xs: Tensor) -> Cotangents:
        op = Pool(_FUNCTIONS[self.fn].gradient, self.windows)
        # Only maxima read x again.
        inputs = [dy] if self.linearity else [dy, xs[-1]]
        dx = transpose(apply(op, *inputs), xs[0].shape)
        return [dx, *(None for _ in xs[1:])]

    def flops(self, *xs: Spec) -> int:
        output_sizes = {dim.name: dim.size for dim in xs[0].shape}
        taps = 1
        for window in self.windows:
            output_sizes[window.dim] = window.num_windows
            taps *= window.taps
        return math.prod(output_sizes.values()) * taps


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
    windows = _pooling_windows(x.shape, window, stride, padding)
    return apply(Pool("maxpool", windows), x)


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
    y = apply(Pool("avgpool", windows), x)
    for sliding_window in windows:
        if sliding_window.pad_before or sliding_window.pad_after:
            # The op counts padding as zeros; corrected in float32 if x is of 16 bits.
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
