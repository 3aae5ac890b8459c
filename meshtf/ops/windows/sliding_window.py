"""Windows that slide over a dimension: the geometry that convolution and pooling share.

    indices      0 1 2 3 4 5 6            taps 3, stride 2, padding "same": 1 zero on each side
    window 0   [.   . .]                  reads indices -1 0 1
    window 1         [. . .]              reads indices  1 2 3

Taps are the elements that a window reads, as in a filter. Where the dimension is sharded,
a device's windows also read elements of neighbouring shards: `elements_of_windows` has
their range. In the backward pass, the gradient of a device's elements needs windows of
neighbouring shards: `windows_of_elements` has their range.

Padding follows TensorFlow: "same" yields ceil(size / stride) windows; if its number of
padding elements is odd, one more comes after than before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, TypeVar

import tensorflow as tf

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import LocalContext, Window
from meshtf.names import Shape
from meshtf.names.arguments import as_int, refuse
from meshtf.ops.common.checks import require_dim_of_caller
from meshtf.ops.common.trace_cache import constant

MAX_DIMS = 3  # spatial dimensions: TensorFlow has no kernels for more

Value = TypeVar("Value")
# One value for all dimensions, or a value by dimension.
PerDim: TypeAlias = Value | Mapping[str, Value]
Padding: TypeAlias = Literal["same", "valid", "causal"] | tuple[int, int]


@dataclasses.dataclass(frozen=True)
class SlidingWindow:
    """A window that slides over one dimension of a tensor.

    Attributes:
      dim: the name of the dimension.
      size: the size of the dimension.
      taps: the number of elements that a window reads.
      stride: the distance in elements from one window to the next.
      dilation: the distance in elements from one tap of a window to the next.
      pad_before: the number of padding elements before the dimension.
      num_windows: the number of windows, which is the size of the result.
    """

    dim: str
    size: int
    taps: int
    stride: int
    dilation: int
    pad_before: int
    num_windows: int

    @property
    def extent(self) -> int:
        """The length of the range of elements that one window spans."""
        return _extent(self.taps, self.dilation)

    @property
    def pad_after(self) -> int:
        """The number of padding elements after the dimension that the last window reads."""
        covered_size = self.covered_size(self.num_windows)
        return max(0, covered_size - self.pad_before - self.size)

    # A `Window` maps a range [a, b) of output indices to the range [low(a), high(b)) of
    # input indices that the outputs depend on.

    def elements_of_windows(self, fill: float = 0.0) -> Window:
        """Returns the range of elements that windows [a, b) read, padded with `fill`."""

        def low(a: int) -> int:
            return a * self.stride - self.pad_before

        def high(b: int) -> int:
            return low(b - 1) + self.extent

        return Window(low=low, high=high, fill=fill)

    def windows_of_elements(self, fill: float = 0.0) -> Window:
        """Returns the range of windows that read elements [a, b), padded with `fill`.

        The range has at least one window, so that no shard is empty.
        """

        # Window w reads element i if
        #   w * stride - pad_before <= i <= w * stride - pad_before + extent - 1.
        def low(a: int) -> int:
            # The ceiling of (a + pad_before - extent + 1) / stride.
            return -((self.extent - 1 - a - self.pad_before) // self.stride)

        def high(b: int) -> int:
            last = (b - 1 + self.pad_before) // self.stride
            return max(last, low(b - 1)) + 1

        return Window(low=low, high=high, fill=fill)

    def elements_sharing_windows(self, fill: float = 0.0) -> Window:
        """Returns the range of elements that are read by any window that reads an element
        of [a, b), padded with `fill`.
        """
        elements = self.elements_of_windows()
        windows = self.windows_of_elements()

        def low(a: int) -> int:
            return elements.low(windows.low(a))

        def high(b: int) -> int:
            return elements.high(windows.high(b))

        return Window(low=low, high=high, fill=fill)

    def covered_size(self, num_windows: int) -> int:
        """Returns the length of the range of elements that consecutive windows span."""
        return (num_windows - 1) * self.stride + self.extent

    def shard_offsets(self, shard_size: int, num_shards: int) -> list[int]:
        """Returns where each shard of the dimension starts in the range of elements that
        share windows with it.

        Args:
          shard_size: the number of elements of a shard.
          num_shards: the number of shards of the dimension.
        """
        elements = self.elements_of_windows()
        windows = self.windows_of_elements()
        return [
            start - elements.low(windows.low(start))
            for start in range(0, shard_size * num_shards, shard_size)
        ]


def sliding_windows(
    shape: Shape,
    taps: Mapping[str, int],
    stride: PerDim[int],
    padding: PerDim[Padding],
    dilation: PerDim[int],
    default_padding: Padding = "same",
) -> tuple[SlidingWindow, ...]:
    """Returns how windows slide over each dimension of a tensor that `taps` names.

    Args:
      shape: the shape of the tensor.
      taps: the number of elements that a window reads, by dimension.
      stride: the distance in elements from one window to the next, for all dimensions or
        by dimension.
      padding: "same", "valid", "causal" (all before), or numbers of elements (before,
        after), for all dimensions or by dimension.
      dilation: the distance in elements from one tap of a window to the next, for all
        dimensions or by dimension.
      default_padding: the padding of dimensions that `padding` does not name.

    Raises:
      ShapeError: the shape lacks a dimension, an argument is not positive, or no window
        fits.
    """
    require_dim_of_caller(shape, *taps)
    strides = by_dim(stride, taps, default=1, argument="stride")
    dilations = by_dim(dilation, taps, default=1, argument="dilation")
    paddings = by_dim(padding, taps, default=default_padding, argument="padding")
    windows = []
    for dim in taps:
        window = _sliding_window(
            dim=dim,
            size=shape[dim],
            taps=taps[dim],
            stride=strides[dim],
            padding=paddings[dim],
            dilation=dilations[dim],
        )
        windows.append(window)
    return tuple(windows)


def transposed_sizes(
    shape: Shape,
    taps: Mapping[str, int],
    stride: PerDim[int],
    padding: PerDim[Padding],
    dilation: PerDim[int],
) -> dict[str, int]:
    """Returns the default sizes of the result of a transposed convolution, by dimension.

    A convolution maps several sizes to one number of windows, so its transpose may choose.
    For "same" and "causal" padding, the default is stride times the number of windows; for
    others, the length of the range that the windows span, less the padding.

    Args:
      shape: the shape of the input, whose elements are the windows of the convolution.
      taps, stride, padding, dilation: as in `sliding_windows`.
    """
    require_dim_of_caller(shape, *taps)
    strides = by_dim(stride, taps, default=1, argument="stride")
    dilations = by_dim(dilation, taps, default=1, argument="dilation")
    paddings = by_dim(padding, taps, default="same", argument="padding")
    sizes = {}
    for dim in taps:
        num_windows = shape[dim]
        if paddings[dim] in ("same", "causal"):
            sizes[dim] = num_windows * strides[dim]
            continue
        # "valid" or explicit padding, which does not depend on the last three arguments.
        before, after = _padding_elements(
            paddings[dim], dim=dim, size=1, extent=1, stride=1
        )
        extent = _extent(taps[dim], dilations[dim])
        covered_size = (num_windows - 1) * strides[dim] + extent
        sizes[dim] = covered_size - before - after
    return sizes


def pad_input(
    context: LocalContext, x: Any, axis: int, window: SlidingWindow, fill: float = 0.0
) -> Any:
    """Returns the elements along an axis that this device's windows read, padded with
    `fill`.

    Where the dimension is sharded, the exchange between devices has padded x already.

    Args:
      context: the sizes of this device's shards.
      x: the TensorFlow tensor.
      axis: the axis of x over which windows slide.
      window: how windows slide over it.
      fill: the value of padding.
    """
    if context.num_shards(window.dim) > 1:
        return x
    if window.pad_before or window.pad_after:
        pads = [[0, 0] for _ in x.shape]
        pads[axis] = [window.pad_before, window.pad_after]
        x = tf.pad(x, pads, constant_values=constant(fill, x.dtype))
    # If windows skip elements at the end, these are dropped.
    covered_range = slice(window.covered_size(window.num_windows))
    return x[(slice(None),) * axis + (covered_range,)]


def crop_to_shard(
    context: LocalContext, x: Any, axis: int, window: SlidingWindow
) -> Any:
    """Returns the elements of this device's shard, from the range of elements that its
    windows read: the reverse of `pad_input`. Elements that no window reads are zeros.

    Args:
      context: the sizes of this device's shards.
      x: the TensorFlow tensor, with all elements along `axis` that the windows read.
      axis: the axis of x over which windows slide.
      window: how windows slide over it.
    """
    shard_size = context.local_size(window.dim)
    num_shards = context.num_shards(window.dim)
    if num_shards > 1:
        offsets = window.shard_offsets(shard_size, num_shards)
    else:
        offsets = [window.pad_before]
    # All devices run one program, so x is padded with as many zeros as any shard needs.
    pad_before = max(0, -min(offsets))
    pad_after = max(0, max(offsets) + shard_size - x.shape[axis])
    if pad_before or pad_after:
        pads = [[0, 0] for _ in x.shape]
        pads[axis] = [pad_before, pad_after]
        x = tf.pad(x, pads)
    starts = [offset + pad_before for offset in offsets]
    start: Any = starts[0]
    shards_differ = len(set(starts)) > 1
    if shards_differ:
        start = tf.gather(tf.constant(starts), context.shard_index(window.dim))
    begin = [0] * len(x.shape)
    begin[axis] = start
    sizes = x.shape.as_list()
    sizes[axis] = shard_size
    return tf.slice(x, begin, sizes)


def by_dim(
    value: Any, dims: Mapping[str, Any], default: Any, argument: str
) -> dict[str, Any]:
    """Returns the value of an argument for each dimension.

    Args:
      value: one value for all dimensions, or a mapping of values by dimension.
      dims: a mapping whose keys are the dimensions.
      default: the value of dimensions that the mapping lacks.
      argument: the name of the argument, which selects the conversion of its values:
        "padding", or any other for integers.

    Raises:
      ShapeError: `value` names another dimension.
    """
    convert: Callable[[str, Any], Any] = as_int
    if argument == "padding":
        convert = _as_padding
    if not isinstance(value, Mapping):
        return dict.fromkeys(dims, convert(argument, value))
    for name in value:
        if name not in dims:
            raise ShapeError(
                f'the {argument} names "{name}", which is not one of {", ".join(dims)}.'
            )
    return {dim: convert(argument, value.get(dim, default)) for dim in dims}


def _as_padding(name: str, value: Any) -> Padding:
    """Returns an argument as a padding. Raises ShapeError if it is none.

    Args:
      name: the name of the argument, for the error.
      value: the value of the argument.
    """
    if isinstance(value, (tuple, list)) and len(value) == 2:
        before, after = value
        return (as_int(name, before), as_int(name, after))
    if not isinstance(value, str) or value not in ("same", "valid", "causal"):
        refuse(
            name,
            value,
            '"same", "valid", "causal" or elements (before, after)',
            error=ShapeError,
        )
    return value  # type: ignore[return-value]


def _extent(taps: int, dilation: int) -> int:
    """Returns the length of the range of elements that one window spans."""
    return (taps - 1) * dilation + 1


def _sliding_window(
    *, dim: str, size: int, taps: int, stride: int, padding: Padding, dilation: int
) -> SlidingWindow:
    """Returns how windows slide over one dimension of `size` elements.

    Raises:
      ShapeError: an argument is not positive, or no window fits.
    """
    arguments = {"window": taps, "stride": stride, "dilation": dilation}
    for argument, value in arguments.items():
        if value < 1:
            raise ShapeError(f'the {argument} of "{dim}" is at least 1, not {value}.')
    extent = _extent(taps, dilation)
    before, after = _padding_elements(
        padding, dim=dim, size=size, extent=extent, stride=stride
    )
    num_windows = (size + before + after - extent) // stride + 1
    if num_windows < 1:
        raise ShapeError(
            explain_error(
                f'no window of {extent} elements fits into "{dim}".',
                size=size,
                padding=padding,
                way_out='Take a smaller window, or padding="same".',
            )
        )
    return SlidingWindow(
        dim=dim,
        size=size,
        taps=taps,
        stride=stride,
        dilation=dilation,
        pad_before=before,
        num_windows=num_windows,
    )


def _padding_elements(
    padding: Padding, *, dim: str, size: int, extent: int, stride: int
) -> tuple[int, int]:
    """Returns the numbers of padding elements before and after a dimension.

    Raises:
      ShapeError: `padding` is no padding.
    """
    if padding == "valid":
        return 0, 0
    if padding == "causal":
        return extent - 1, 0
    if padding == "same":
        num_windows = -(-size // stride)  # the ceiling of the quotient
        total = max((num_windows - 1) * stride + extent - size, 0)
        return total // 2, total - total // 2
    if isinstance(padding, tuple) and len(padding) == 2 and min(padding) >= 0:
        return padding
    raise ShapeError(
        f'the padding of "{dim}" is "same", "valid", "causal" or elements (before, after), '
        f"not {padding!r}."
    )
