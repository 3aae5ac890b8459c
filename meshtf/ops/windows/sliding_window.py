"""Windows that slide over a dimension: the geometry that convolution and pooling share.

    indices      0 1 2 3 4 5 6            taps 3, stride 2, padding "same": 1 zero on each side
    window 0   [.   . .]                  reads indices -1 0 1
    window 1         [. . .]              reads indices  1 2 3

Where the dimension is sharded, a shard of windows reads elements of neighbouring
shards. So does, in the backward pass, a shard of the input. `forward` and `backward`
return the ranges that are read. Padding follows TensorFlow: "same" yields
ceil(size / stride) windows, and an odd element of padding comes after.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias, TypeVar

import tensorflow as tf

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import LocalContext, Window
from meshtf.names import Shape
from meshtf.names.arguments import as_int, refuse
from meshtf.ops.common.checks import require_dim

MAX_DIMS = 3  # spatial dimensions: TensorFlow has no kernels for more

Value = TypeVar("Value")
PerDim: TypeAlias = Value | Mapping[str, Value]
Padding: TypeAlias = Literal["same", "valid", "causal"] | tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Slide:
    """Windows of `taps` elements, `dilation` apart, over the `size` elements of `dim`.

    `before` elements of padding precede them; there are `windows` windows.
    """

    dim: str
    size: int
    taps: int
    stride: int
    dilation: int
    before: int
    windows: int

    @property
    def extent(self) -> int:
        """The length of the range of elements that a window reads: the dilated taps."""
        return (self.taps - 1) * self.dilation + 1

    @property
    def after(self) -> int:
        """How many elements of padding the last window reads after the dimension."""
        return max(0, self.reach(self.windows) - self.before - self.size)

    @property
    def forward(self) -> Window:
        """The range of elements that windows [a, b) read."""
        return Window(
            lambda a: a * self.stride - self.before,
            lambda b: (b - 1) * self.stride - self.before + self.extent,
        )

    @property
    def backward(self) -> Window:
        """The range of windows that read elements [a, b).

        It has at least one window, so that no shard is empty.
        """

        def low(a: int) -> int:
            return -((self.extent - 1 - a - self.before) // self.stride)

        return Window(
            low, lambda b: max((b - 1 + self.before) // self.stride, low(b - 1)) + 1
        )

    @property
    def both_ways(self) -> Window:
        """The range of elements that all windows over elements [a, b) read."""
        forward = self.forward
        backward = self.backward
        return Window(
            lambda a: forward.low(backward.low(a)),
            lambda b: forward.high(backward.high(b)),
        )

    def reach(self, windows: int) -> int:
        """Returns the length of the range of elements that consecutive windows read."""
        return (windows - 1) * self.stride + self.extent

    def leads(self, size: int, num_shards: int) -> list[int]:
        """Returns, for each shard, where it starts in the range of `both_ways`.

        Args:
          size: elements of a shard.
          num_shards: how many shards the dimension has.
        """
        return [
            a - self.forward.low(self.backward.low(a))
            for a in range(0, size * num_shards, size)
        ]


def slides(
    shape: Shape,
    taps: Mapping[str, int],
    stride: PerDim[int],
    padding: PerDim[Padding],
    dilation: PerDim[int],
    default: Padding = "same",
) -> tuple[Slide, ...]:
    """Returns how windows slide over a tensor.

    Args:
      shape: of the tensor.
      taps: elements of a window, by dimension.
      stride: elements from one window to the next, for all dimensions or by dimension.
      padding: "same", "valid", "causal" (all before), or elements (before, after).
      dilation: elements from one tap of a window to the next.
      default: the padding of dimensions that `padding` does not name.

    Raises:
      ShapeError: the shape lacks a dimension, an argument is not positive, or no window
        fits.
    """
    require_dim(shape, *taps)
    strides = by_dim(stride, taps, 1, "stride")
    dilations = by_dim(dilation, taps, 1, "dilation")
    paddings = by_dim(padding, taps, default, "padding")
    return tuple(
        _slide(dim, shape[dim], taps[dim], strides[dim], paddings[dim], dilations[dim])
        for dim in taps
    )


def transposed_sizes(
    shape: Shape,
    taps: Mapping[str, int],
    stride: PerDim[int],
    padding: PerDim[Padding],
    dilation: PerDim[int],
) -> Iterator[tuple[str, int]]:
    """Yields each dimension, and the size of the result of a transposed convolution.

    Several sizes have as many windows as `shape` has elements. For "same" and "causal"
    padding the size is stride times the windows, else that of the range they read.
    """
    require_dim(shape, *taps)
    strides = by_dim(stride, taps, 1, "stride")
    dilations = by_dim(dilation, taps, 1, "dilation")
    paddings = by_dim(padding, taps, "same", "padding")
    for dim in taps:
        windows = shape[dim]
        if paddings[dim] in ("same", "causal"):
            yield dim, windows * strides[dim]
        else:
            extent = (taps[dim] - 1) * dilations[dim] + 1
            padding_size = sum(_padding_elements(paddings[dim], 1, 1, 1, dim))
            yield dim, (windows - 1) * strides[dim] + extent - padding_size


def padded(
    context: LocalContext, x: Any, axis: int, slide: Slide, fill: float = 0.0
) -> Any:
    """Returns the elements that this device's windows read, with `fill` as padding.

    Where the dimension is sharded, the exchange between devices has padded x already.
    """
    if context.num_shards(slide.dim) > 1:
        return x
    pads = [
        [slide.before, slide.after] if k == axis else [0, 0]
        for k in range(len(x.shape))
    ]
    if slide.before or slide.after:
        x = tf.pad(x, pads, constant_values=tf.cast(fill, x.dtype))
    return x[(slice(None),) * axis + (slice(slide.reach(slide.windows)),)]


def crop_to_shard(context: LocalContext, x: Any, axis: int, slide: Slide) -> Any:
    """Returns the elements of this device's shard out of the range that its windows read.

    Elements that no window reads are zeros.
    """
    size = context.local_size(slide.dim)
    num_shards = context.num_shards(slide.dim)
    if num_shards > 1:
        leads = slide.leads(size, num_shards)
    else:
        leads = [slide.before]
    front = max(0, -min(leads))
    back = max(0, max(leads) + size - x.shape[axis])
    if front or back:
        pads = [[0, 0] for _ in x.shape]
        pads[axis] = [front, back]
        x = tf.pad(x, pads)
    starts = [lead + front for lead in leads]
    start: Any = starts[0]
    if len(set(starts)) > 1:
        start = tf.gather(tf.constant(starts), context.shard_index(slide.dim))
    begin = [0] * len(x.shape)
    begin[axis] = start
    sizes = x.shape.as_list()
    sizes[axis] = size
    return tf.slice(x, begin, sizes)


def by_dim(
    value: Any, dims: Mapping[str, Any], default: Any, argument: str
) -> dict[str, Any]:
    """Returns a value for each dimension of `dims`.

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
    """Returns a padding. Raises ArgumentError."""
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return (as_int(name, value[0]), as_int(name, value[1]))
    if not isinstance(value, str) or value not in ("same", "valid", "causal"):
        refuse(
            name,
            value,
            '"same", "valid", "causal" or elements (before, after)',
            error=ShapeError,
        )
    return value  # type: ignore[return-value]


def _slide(
    dim: str, size: int, taps: int, stride: int, padding: Padding, dilation: int
) -> Slide:
    """Returns how windows slide over one dimension. Raises ShapeError."""
    arguments = {"window": taps, "stride": stride, "dilation": dilation}
    for argument, value in arguments.items():
        if value < 1:
            raise ShapeError(f'the {argument} of "{dim}" is at least 1, not {value}.')
    extent = (taps - 1) * dilation + 1
    before, after = _padding_elements(padding, size, extent, stride, dim)
    windows = (size + before + after - extent) // stride + 1
    if windows < 1:
        raise ShapeError(
            explain_error(
                f'no window of {extent} elements fits into "{dim}".',
                size=size,
                padding=padding,
                way_out='Take a smaller window, or padding="same".',
            )
        )
    return Slide(dim, size, taps, stride, dilation, before, windows)


def _padding_elements(
    padding: Padding, size: int, extent: int, stride: int, dim: str
) -> tuple[int, int]:
    """Returns the elements of padding before and after. Raises ShapeError."""
    if padding == "valid":
        return 0, 0
    if padding == "causal":
        return extent - 1, 0
    if padding == "same":
        total = max((-(-size // stride) - 1) * stride + extent - size, 0)
        return total // 2, total - total // 2
    if isinstance(padding, tuple) and len(padding) == 2 and min(padding) >= 0:
        return padding
    raise ShapeError(
        f'the padding of "{dim}" is "same", "valid", "causal" or elements (before, after), '
        f"not {padding!r}."
    )
