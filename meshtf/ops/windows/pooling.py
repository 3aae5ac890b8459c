"""Pooling over named dimensions: the largest or the mean of each window of rows.

    y = mtf.max_pool(x, "h:2;w:2")                       # [batch h w c] -> [batch h/2 w/2 c]
    y = mtf.avg_pool(x, "h:3;w:3", stride=2, padding="same")

Rows may be cut. Neighbours then exchange the rows at the border: of x on the way there,
of x and the cotangent on the way back. The gradient of a maximum goes to the first of
equal ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import (
    LocalContext,
    Sample,
    Spec,
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
from meshtf.ops.windows.conv_dimensions import Parts, pack, unpack
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
    own_rows,
    padded,
    slides,
)


class _Pool(WindowedOp):
    """What the ops here share."""

    slides: tuple[Slide, ...]

    def _window(self, which: str, dim: str, fill: float = 0.0) -> Window | None:
        windows = (getattr(s, which) for s in self.slides if s.dim == dim)
        return next((w._replace(fill=fill) for w in windows), None)

    def _resized(self, x: Spec, sizes: dict[str, int]) -> tuple[Spec, ...]:
        require_floating(x, "pooling")
        return (
            Spec(
                Shape(Dimension(d.name, sizes.get(d.name, d.size)) for d in x.shape),
                x.dtype,
            ),
        )

    def _parts(self, names: Sequence[str]) -> Parts:
        """Returns names before, in, and behind those that windows slide over."""
        dims = [s.dim for s in self.slides]
        last = max(names.index(dim) for dim in dims)
        return [
            tuple(n for n in names[:last] if n not in dims),
            *((dim,) for dim in dims),
            tuple(names[last + 1 :]),
        ]

    def _packed(self, context: LocalContext, i: int, x: Any) -> Any:
        # Two tensors may have their names in two orders: the order of the output is
        # that of all.
        return pack(x, context.inputs[i].names, self._parts(context.outputs[0].names))

    def _padded(self, context: LocalContext, i: int, x: Any, fill: float) -> Any:
        """Returns input i with all rows that the windows here read."""
        x = self._packed(context, i, x)
        for axis, slide in enumerate(self.slides, start=1):
            x = padded(context, x, axis, slide, fill)
        return x

    def _unpacked(self, context: LocalContext, y: Any) -> tuple[Any, ...]:
        return (unpack(y, context.outputs[0], self._parts(context.outputs[0].names)),)

    def _own(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        for axis, slide in enumerate(self.slides, start=1):
            x = own_rows(context, x, axis, slide)
        return self._unpacked(context, x)

    def flops(self, *xs: Spec) -> int:
        windows = {s.dim: s.windows for s in self.slides}
        sizes = {d.name: d.size for d in xs[0].shape} | windows
        return math.prod(sizes.values()) * math.prod(s.taps for s in self.slides)


def _sample(
    x: str, window: str, kinds: str = "x", kind: str = "", **how: Any
) -> Sample:
    """Returns a sample of an op whose inputs are as large as x or as the windows."""
    default: dict[str, Any] = {"stride": None, "padding": "valid"}
    over = _over(Shape(x), window, **(default | how))
    windows = {s.dim: s.windows for s in over}
    y = ";".join(f"{d.name}:{windows.get(d.name, d.size)}" for d in Shape(x))
    return Sample(
        (over,), tuple((kind if k == "x" else "") + {"x": x, "y": y}[k] for k in kinds)
    )


def _over(
    x: Shape, window: ShapeLike, stride: PerDim[int] | None, padding: PerDim[Padding]
) -> tuple[Slide, ...]:
    """Returns how windows slide over x. Raises ShapeError."""
    taps = {d.name: d.size for d in Shape(window)}
    if not taps:
        raise ShapeError("a window has the rows of at least one dimension.")
    over = slides(
        x, taps, taps if stride is None else stride, padding, 1, default="valid"
    )
    for s in over:
        if s.before >= s.taps or (s.windows - 1) * s.stride >= s.rows + s.before:
            raise ShapeError(
                explain_error(
                    f'a window over "{s.dim}" has nothing but padding in it.',
                    rows=s.rows,
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

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
        return self._resized(x, {s.dim: s.windows for s in self.slides})

    def window(self, input_index: int, dim: str) -> Window | None:
        return self._window("forward", dim, fill=-math.inf)

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        return self._unpacked(
            context, largest(self.slides, self._padded(context, 0, x, -math.inf))
        )

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor) -> list[Tensor | None]:
        return [apply(MaxPoolGrad(self.slides), dy, x)]


class MaxPoolGrad(_Pool):
    """What dy says of each window, where the first of its largest elements is in x."""

    slides: tuple[Slide, ...]
    samples = (
        _sample("h:8;c:2", "h:3", "yx", stride=2, padding="same"),
        _sample("h:8", "h:3", "yx", stride=3, padding=(2, 2)),
    )

    def output_specs(self, dy: Spec, x: Spec) -> tuple[Spec, ...]:
        return self._resized(x, {})

    def window(self, input_index: int, dim: str) -> Window | None:
        if input_index == 0:
            return self._window("backward", dim)
        return self._window("around", dim, fill=-math.inf)

    def local(self, context: LocalContext, dy: Any, x: Any) -> tuple[Any, ...]:
        dy, x = self._packed(context, 0, dy), self._padded(context, 1, x, -math.inf)
        return self._own(context, largest_gradient(self.slides, dy, x))

    def gradient(
        self, dz: Tensor, z: Tensor, dy: Tensor, x: Tensor
    ) -> list[Tensor | None]:
        return [transpose(apply(MaxPoolPick(self.slides), dz, x), dy.shape), None]


class MaxPoolPick(_Pool):
    """What z holds where the first of each window's largest elements is in x."""

    slides: tuple[Slide, ...]
    samples = (
        _sample("h:8;c:2", "h:3", "xx", stride=2, padding="same"),
        _sample("d:2;h:4;w:3", "d:2;h:3;w:2", "xx"),
    )

    def output_specs(self, z: Spec, x: Spec) -> tuple[Spec, ...]:
        return self._resized(x, {s.dim: s.windows for s in self.slides})

    def window(self, input_index: int, dim: str) -> Window | None:
        return self._window("forward", dim, fill=-math.inf if input_index else 0.0)

    def local(self, context: LocalContext, z: Any, x: Any) -> tuple[Any, ...]:
        z, x = self._padded(context, 0, z, 0.0), self._padded(context, 1, x, -math.inf)
        return self._unpacked(context, largest_picks(self.slides, z, x))

    def gradient(
        self, dp: Tensor, p: Tensor, z: Tensor, x: Tensor
    ) -> list[Tensor | None]:
        return [transpose(apply(MaxPoolGrad(self.slides), dp, x), z.shape), None]


class AvgPool(_Pool):
    """The sum of each window over the number of its rows, padding counted."""

    slides: tuple[Slide, ...]
    linearity = "joint"
    samples = (
        _sample("b:2;h:8;c:2", "h:2"),
        _sample("h:8;c:2", "h:3", stride=3, padding=(2, 2)),
        _sample("b:2;w:4;h:8", "h:3;w:2", stride=2, padding="same"),
        _sample("d:4;h:2;w:2", "d:3;h:2;w:1", stride=1, padding="same"),
    )

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
        return self._resized(x, {s.dim: s.windows for s in self.slides})

    def window(self, input_index: int, dim: str) -> Window | None:
        return self._window("forward", dim)

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        return self._unpacked(
            context, average(self.slides, self._padded(context, 0, x, 0.0))
        )

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor) -> list[Tensor | None]:
        return [apply(AvgPoolGrad(self.slides), dy)]


class AvgPoolGrad(_Pool):
    """dy of each window, over the number of its rows, added up on each row."""

    slides: tuple[Slide, ...]
    linearity = "joint"
    samples = (_sample("h:8;c:2", "h:3", "y", stride=2, padding="same"),)

    def output_specs(self, dy: Spec) -> tuple[Spec, ...]:
        return self._resized(dy, {s.dim: s.rows for s in self.slides})

    def window(self, input_index: int, dim: str) -> Window | None:
        return self._window("backward", dim)

    def local(self, context: LocalContext, dy: Any) -> tuple[Any, ...]:
        return self._own(
            context, average_gradient(self.slides, self._packed(context, 0, dy))
        )

    def gradient(self, dx: Tensor, x: Tensor, dy: Tensor) -> list[Tensor | None]:
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
      window: the rows of a window, by name: "h:2;w:2".
      stride: rows from one window to the next, for all or by name; by default those of
        a window.
      padding: "valid" (none), "same" (ceil(rows / stride) windows), "causal" (all
        before), or the rows before and after; for all names, or by name.

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
    """Returns the mean of each window, of rows that are there, not of padding.

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
    """Returns, for each window, its rows over those of them that are there."""
    index = named_range(x.mesh, Dimension(slide.dim, slide.windows))
    first = subtract(multiply(index, slide.stride), slide.before)
    missing = subtract(maximum(first, 0), minimum(first, slide.rows - slide.taps))
    return divide(
        float(slide.taps),
        cast(subtract(slide.taps, missing), accumulation_dtype(x.dtype)),
    )
