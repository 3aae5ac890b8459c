"""Windows that slide over rows: what convolution and pooling have in common.

    rows         0 1 2 3 4 5 6            taps 3, stride 2, padding "same": 1 row before, 1 behind
    window 0   [.   . .]                  reads rows -1 0 1
    window 1         [. . .]              reads rows  1 2 3

A slice of windows reads rows that its neighbours hold, and so does, on the way back, a
slice of rows; `forward` and `backward` say which. Paddings are counted as TensorFlow
counts them: "same" makes ceil(rows / stride) windows, and puts the odd row of padding
behind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias, TypeVar

import tensorflow as tf

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import LocalContext, Window
from meshtf.names import Shape
from meshtf.names.arguments import as_int, refuse
from meshtf.ops.common.checks import require_dim

MOST_DIMS = 3  # that windows slide over: TensorFlow has no kernels for more

Value = TypeVar("Value")
PerDim: TypeAlias = Value | Mapping[str, Value]
Padding: TypeAlias = Literal["same", "valid", "causal"] | tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Slide:
    """Windows of `taps` rows, `dilation` apart, over `rows` rows of `dim`, `before`
    rows padded.
    """

    dim: str
    rows: int
    taps: int
    stride: int
    dilation: int
    before: int
    windows: int

    @property
    def extent(self) -> int:
        """The rows from the first to the last that a window reads."""
        return (self.taps - 1) * self.dilation + 1

    @property
    def after(self) -> int:
        """The rows of padding that the last window reads."""
        return max(0, self.reach(self.windows) - self.before - self.rows)

    @property
    def forward(self) -> Window:
        """The rows that windows [a, b) read."""
        return Window(
            lambda a: a * self.stride - self.before,
            lambda b: (b - 1) * self.stride - self.before + self.extent,
        )

    @property
    def backward(self) -> Window:
        """The windows that read rows [a, b); at least one, so that no slice
        is empty.
        """

        def low(a: int) -> int:
            return -((self.extent - 1 - a - self.before) // self.stride)

        return Window(
            low, lambda b: max((b - 1 + self.before) // self.stride, low(b - 1)) + 1
        )

    @property
    def around(self) -> Window:
        """The rows that the windows that read rows [a, b) read."""
        there, back = self.forward, self.backward
        return Window(
            lambda a: there.low(back.low(a)), lambda b: there.high(back.high(b))
        )

    def reach(self, windows: int) -> int:
        """Returns the rows from the first to the last that so many windows read."""
        return (windows - 1) * self.stride + self.extent

    def leads(self, rows: int, parts: int) -> list[int]:
        """How far into the rows read by `backward` windows each slice's own
        rows begin.
        """
        return [
            a - self.forward.low(self.backward.low(a))
            for a in range(0, rows * parts, rows)
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
      taps: rows of a window, by dimension.
      stride: rows from one window to the next, for all dimensions or by dimension.
      padding: "same", "valid", "causal" (all before), or rows (before, after).
      dilation: rows from one row of a window to the next.
      default: the padding of dimensions that `padding` does not name.

    Raises:
      ShapeError: a dimension is not there, a number is not positive, or there is no
        window.
    """
    require_dim(shape, *taps)
    strides, dilations = (
        by_dim(stride, taps, 1, "stride"),
        by_dim(dilation, taps, 1, "dilation"),
    )
    paddings = by_dim(padding, taps, default, "padding")
    return tuple(
        _slide(dim, shape[dim], taps[dim], strides[dim], paddings[dim], dilations[dim])
        for dim in taps
    )


def transposed_rows(
    shape: Shape,
    taps: Mapping[str, int],
    stride: PerDim[int],
    padding: PerDim[Padding],
    dilation: PerDim[int],
) -> Iterator[tuple[str, int]]:
    """Yields each dimension, and over how many rows as many windows slide as the shape
    has rows.

    Several numbers of rows may do: it is stride times the windows for "same" and
    "causal", else all rows that are read.
    """
    require_dim(shape, *taps)
    strides, dilations = (
        by_dim(stride, taps, 1, "stride"),
        by_dim(dilation, taps, 1, "dilation"),
    )
    paddings = by_dim(padding, taps, "same", "padding")
    for dim, rows in ((dim, shape[dim]) for dim in taps):
        if paddings[dim] in ("same", "causal"):
            yield dim, rows * strides[dim]
        else:
            around = sum(_around(paddings[dim], 1, 1, 1, dim))
            yield (
                dim,
                (rows - 1) * strides[dim]
                + (taps[dim] - 1) * dilations[dim]
                + 1
                - around,
            )


def padded(
    context: LocalContext, x: Any, axis: int, slide: Slide, fill: float = 0.0
) -> Any:
    """Returns the rows that the windows here read; where rows are cut, they have been
    exchanged.
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


def own_rows(context: LocalContext, x: Any, axis: int, slide: Slide) -> Any:
    """Returns a slice's own rows of all that the windows here read, zeros where none
    reads them.
    """
    rows, parts = context.local_size(slide.dim), context.num_shards(slide.dim)
    leads = slide.leads(rows, parts) if parts > 1 else [slide.before]
    front, back = max(0, -min(leads)), max(0, max(leads) + rows - x.shape[axis])
    if front or back:
        x = tf.pad(
            x, [[front, back] if k == axis else [0, 0] for k in range(len(x.shape))]
        )
    begin: Any = leads[0] + front
    if len(set(leads)) > 1:
        begin = tf.gather(tf.constant(leads) + front, context.shard_index(slide.dim))
    sizes = x.shape.as_list()
    sizes[axis] = rows
    return tf.slice(x, [begin if k == axis else 0 for k in range(len(sizes))], sizes)


def by_dim(
    value: Any, dims: Mapping[str, Any], default: Any, what: str
) -> dict[str, Any]:
    """Returns a value for each dimension. Raises ShapeError where one is given for
    another name.
    """
    convert = _as_padding if what == "padding" else as_int
    if not isinstance(value, Mapping):
        return dict.fromkeys(dims, convert(what, value))
    for name in value:
        if name not in dims:
            raise ShapeError(
                f'the {what} names "{name}", which is not one of {", ".join(dims)}.'
            )
    return {dim: convert(what, value.get(dim, default)) for dim in dims}


def _as_padding(name: str, value: Any) -> Padding:
    """Returns a padding. Raises ArgumentError."""
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return (as_int(name, value[0]), as_int(name, value[1]))
    if not isinstance(value, str) or value not in ("same", "valid", "causal"):
        refuse(
            name,
            value,
            '"same", "valid", "causal" or rows (before, after)',
            error=ShapeError,
        )
    return value  # type: ignore[return-value]


def _slide(
    dim: str, rows: int, taps: int, stride: int, padding: Padding, dilation: int
) -> Slide:
    for what, number in (("window", taps), ("stride", stride), ("dilation", dilation)):
        if number < 1:
            raise ShapeError(f'the {what} of "{dim}" is at least 1, not {number}.')
    extent = (taps - 1) * dilation + 1
    before, after = _around(padding, rows, extent, stride, dim)
    windows = (rows + before + after - extent) // stride + 1
    if windows < 1:
        raise ShapeError(
            explain_error(
                f'no window of {extent} rows fits into "{dim}".',
                rows=rows,
                padding=padding,
                way_out='Take a smaller window, or padding="same".',
            )
        )
    return Slide(dim, rows, taps, stride, dilation, before, windows)


def _around(
    padding: Padding, rows: int, extent: int, stride: int, dim: str
) -> tuple[int, int]:
    """Returns the rows of padding before and after."""
    if padding == "valid":
        return 0, 0
    if padding == "causal":
        return extent - 1, 0
    if padding == "same":
        total = max((-(-rows // stride) - 1) * stride + extent - rows, 0)
        return total // 2, total - total // 2
    if isinstance(padding, tuple) and len(padding) == 2 and min(padding) >= 0:
        return padding
    raise ShapeError(
        f'the padding of "{dim}" is "same", "valid", "causal" or rows (before, after), '
        f"not {padding!r}."
    )
