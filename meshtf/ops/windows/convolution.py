"""Convolutions over named dimensions, one to three of which windows slide over.

    y = mtf.conv(x, kernel, "h:k_h;w:k_w")       # x[batch h w c_in], kernel[k_h k_w c_in c_out]
    y = mtf.conv(x, kernel, "h:k_h;w:k_w", groups="c_in")      # depthwise: kernel[k_h k_w c_in]

A convolution is an einsum with windows: names that x and the kernel share are summed
over, but for `groups`; names of the kernel alone are new; `window` says which name of
the kernel has the rows of windows over a name of x. x may be cut along any name. Where
one is cut that windows slide over, neighbours exchange the rows at the border.

The form sum(y * conv(x, kernel)) is linear in each of x, y and the kernel. Its three
derivatives are the ops here, and each has the other two as its gradients.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from meshtf.errors import ShapeError
from meshtf.graph import (
    LocalContext,
    Role,
    Sample,
    Spec,
    Tensor,
    Window,
    WindowedOp,
    apply,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import Names, Shape, names_of, parse_pairs
from meshtf.names.arguments import as_mapping
from meshtf.ops.linear.einsum import einsum
from meshtf.ops.windows.conv_dimensions import (
    Geometry,
    exchanged,
    pack,
    read_window,
    resized,
    unpack,
)
from meshtf.ops.windows.sliding_window import (
    Padding,
    PerDim,
    by_dim,
    own_rows,
    slides,
    transposed_rows,
)


class _Product(WindowedOp):
    """What the three ops share; `names`, the output's in order, tell which of the three
    it is.
    """

    geometry: Geometry
    names: tuple[str, ...]

    def role(self, factor: str) -> Role:
        if factor in self.geometry.taps:
            return Role.WHOLE
        return Role.MAP if factor in self.names else Role.SUM

    def _rows(self) -> dict[str, int]:
        return {s.dim: s.windows for s in self.geometry.slides}

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        sizes = self.geometry.sizes(*xs) | self._rows()
        return (Spec(resized(Shape(), sizes, self.names), xs[0].dtype),)

    def window(self, input_index: int, dim: str) -> Window | None:
        slide = self.geometry.slide(dim)
        return slide.forward if slide is not None and input_index == 0 else None

    def flops(self, *xs: Spec) -> int:
        windows = [s.windows for s in self.geometry.slides]
        return 2 * math.prod(self.geometry.sizes(*xs).values()) * math.prod(windows)


def _sample(x: str, kernel: str, window: str, inputs: str = "xk", **how: Any) -> Sample:
    """Returns a sample of an op that has these two of x, y and the kernel as inputs."""
    default: dict[str, Any] = {
        "stride": 1,
        "padding": "same",
        "dilation": 1,
        "groups": (),
    }
    taps = dict(parse_pairs(window, kind="window"))
    geometry, names = _convolution(Shape(x), Shape(kernel), taps, **(default | how))
    sizes = {s.dim: s.windows for s in geometry.slides}
    shapes = {
        "x": Shape(x),
        "k": Shape(kernel),
        "y": resized(Shape(kernel).union(Shape(x)), sizes, names),
    }
    (output,) = set(shapes) - set(inputs)
    return Sample(
        (geometry, shapes[output].names),
        tuple(";".join(map(repr, shapes[s])) for s in inputs),
    )


def _convolution(
    x: Shape,
    kernel: Shape,
    taps: dict[str, str],
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Names,
) -> tuple[Geometry, tuple[str, ...]]:
    """Returns the geometry of a convolution of x, and the names of what it gives."""
    how = slides(
        x, {dim: kernel[tap] for dim, tap in taps.items()}, stride, padding, dilation
    )
    reduced = tuple(
        n for n in kernel.names if n in x and n not in names_of(groups, x, kernel)
    )
    new = tuple(n for n in kernel.names if n not in x and n not in taps.values())
    return (
        Geometry(how, tuple(taps.values()), reduced, new),
        exchanged(x.names, kernel.names, reduced, new),
    )


@dataclasses.dataclass(frozen=True)
class Conv(_Product):
    """y from x and the kernel."""

    geometry: Geometry
    names: tuple[str, ...]
    linearity = "each"
    samples = (
        _sample("b:2;h:8;c:4", "k:3;c:4;o:2", "h:k"),
        _sample("h:8;c:4", "o:4;k:4;c:4", "h:k", stride=2),
        _sample("c:4;h:12", "k:2;c:4", "h:k", stride=3, padding="valid", dilation=2),
        _sample("h:8;c:2", "k:3;c:2", "h:k", stride=3, padding=(2, 2)),
        _sample("h:8;c:2", "k:1;c:2", "h:k", stride=3, padding=(1, 1)),
        _sample(
            "h:8;w:4;c:2",
            "c:2;i:3;j:2",
            "h:i;w:j",
            stride={"h": 2},
            padding={"h": (0, 2)},
        ),
        _sample("h:4;w:8", "i:2;j:3", "h:i;w:j", dilation={"w": 2}),
        _sample("h:8;c:4", "k:3;c:4;m:2", "h:k", dilation=2, groups="c"),
        _sample("h:4;w:8;c:2", "i:3;j:3;c:2", "h:i;w:j", stride={"w": 2}, groups="c"),
        _sample("h:4;g:2;c:2", "c:2;k:3;g:2", "h:k", padding="causal", groups="g"),
        _sample("d:4;h:2;w:3", "i:3;j:2;k:1", "d:i;h:j;w:k", dilation={"d": 2}),
    )

    def local(self, context: LocalContext, x: Any, kernel: Any) -> tuple[Any, ...]:
        names = [shape.names for shape in context.inputs]
        parts = self.geometry.parts(*names)
        x, kernel = pack(x, names[0], parts[0]), pack(kernel, names[1], parts[1])
        y = self.geometry.kernels(context, x.shape[1:-2], kernel.shape[-3:]).forward(
            x, kernel
        )
        return (unpack(y, context.outputs[0], parts[2]),)

    def gradient(
        self, dy: Tensor, y: Tensor, x: Tensor, kernel: Tensor
    ) -> list[Tensor | None]:
        return [
            apply(ConvTranspose(self.geometry, x.shape.names), dy, kernel),
            apply(ConvKernelGrad(self.geometry, kernel.shape.names), dy, x),
        ]


@dataclasses.dataclass(frozen=True)
class ConvTranspose(_Product):
    """x from y and the kernel: the gradient of a convolution in x, and a layer in its
    own right.
    """

    geometry: Geometry
    names: tuple[str, ...]
    linearity = "each"
    samples = (
        _sample("b:2;h:8;c:2", "k:4;c:2;o:2", "h:k", "yk", stride=2),
        _sample("h:8;c:2", "k:2;c:2;o:3", "h:k", "yk", stride=3, padding=(2, 2)),
        _sample("h:4;w:4;c:2", "i:3;j:2;c:2", "h:i;w:j", "yk", stride=2, groups="c"),
    )

    def _rows(self) -> dict[str, int]:
        return {s.dim: s.rows for s in self.geometry.slides}

    def window(self, input_index: int, dim: str) -> Window | None:
        slide = self.geometry.slide(dim)
        return slide.backward if slide is not None and input_index == 0 else None

    def local(self, context: LocalContext, y: Any, kernel: Any) -> tuple[Any, ...]:
        names, slides = [shape.names for shape in context.inputs], self.geometry.slides
        parts = self.geometry.parts(self.names, names[1])
        y, kernel = pack(y, names[0], parts[2]), pack(kernel, names[1], parts[1])
        rows = [
            s.rows if context.num_shards(s.dim) == 1 else s.reach(n)
            for n, s in zip(y.shape[1:-2], slides)
        ]
        x = self.geometry.kernels(context, rows, kernel.shape[-3:]).input_gradient(
            y, kernel
        )
        for axis, slide in enumerate(slides, start=1):
            x = (
                x
                if context.num_shards(slide.dim) == 1
                else own_rows(context, x, axis, slide)
            )
        return (unpack(x, context.outputs[0], parts[0]),)

    def gradient(
        self, dx: Tensor, x: Tensor, y: Tensor, kernel: Tensor
    ) -> list[Tensor | None]:
        return [
            apply(Conv(self.geometry, y.shape.names), dx, kernel),
            apply(ConvKernelGrad(self.geometry, kernel.shape.names), y, dx),
        ]


class ConvKernelGrad(_Product):
    """The kernel from y and x: the gradient of a convolution in its kernel.

    y comes first, since its sizes are those of the windows.
    """

    geometry: Geometry
    names: tuple[str, ...]
    linearity = "each"
    samples = (
        _sample("b:2;h:8;c:2", "k:4;c:2;o:2", "h:k", "yx", stride=2),
        _sample(
            "h:8;c:2", "c:2;m:2;k:2", "h:k", "yx", stride=3, padding=(2, 2), groups="c"
        ),
    )

    def window(self, input_index: int, dim: str) -> Window | None:
        slide = self.geometry.slide(dim)
        return slide.forward if slide is not None and input_index == 1 else None

    def local(self, context: LocalContext, y: Any, x: Any) -> tuple[Any, ...]:
        names = [shape.names for shape in context.inputs]
        parts = self.geometry.parts(names[1], self.names)
        y, x = pack(y, names[0], parts[2]), pack(x, names[1], parts[0])
        kernels = self.geometry.kernels(
            context, x.shape[1:-2], (*x.shape[-2:], y.shape[-1])
        )
        return (unpack(kernels.kernel_gradient(x, y), context.outputs[0], parts[1]),)

    def gradient(
        self, dk: Tensor, kernel: Tensor, y: Tensor, x: Tensor
    ) -> list[Tensor | None]:
        return [
            apply(Conv(self.geometry, y.shape.names), x, dk),
            apply(ConvTranspose(self.geometry, x.shape.names), y, dk),
        ]


def conv(
    x: Tensor,
    kernel: Any,
    window: Mapping[str, str] | str,
    stride: PerDim[int] = 1,
    padding: PerDim[Padding] = "same",
    dilation: PerDim[int] = 1,
    groups: Names = (),
) -> Tensor:
    """Returns a convolution: x with new names of the kernel in place of those summed
    over.

    Args:
      x: such as [batch, h, w, c_in].
      kernel: such as [k_h, k_w, c_in, c_out], in any order.
      window: which name of the kernel has the rows of windows over a name of x:
        "h:k_h;w:k_w".
      stride: rows from one window to the next: a number, or numbers by name, {"h": 2}.
      padding: "same" (ceil(rows / stride) windows), "valid" (none), "causal" (all
        before), or the rows before and after; for all names, or by name.
      dilation: rows of x from one row of the kernel to the next.
      groups: names of both that are not summed over: each of their rows has a kernel of
        its own. Where nothing is summed over, the convolution is depthwise.

    Raises:
      ShapeError: names are missing or clash, or no window fits.
      DTypeError: x is not of floats, or the kernel is of another data type.
    """
    x, kernel = as_tensor("x", x), as_tensor("kernel", kernel)
    taps = read_window(window, x.shape, kernel.shape, groups)
    geometry, names = _convolution(
        x.shape, kernel.shape, taps, stride, padding, dilation, groups
    )
    return apply(Conv(geometry, names), x, kernel)


def conv_transpose(
    x: Tensor,
    kernel: Any,
    window: Mapping[str, str] | str,
    stride: PerDim[int] = 1,
    padding: PerDim[Padding] = "same",
    dilation: PerDim[int] = 1,
    groups: Names = (),
    rows: Mapping[str, int] | None = None,
) -> Tensor:
    """Returns a transposed convolution: the gradient, at x, of the convolution that
    gives such an x.

    Args:
      x: such as [batch, h, w, c_in].
      kernel: such as [k_h, k_w, c_in, c_out], in any order.
      window: as of `conv`; so are `padding`, `dilation` and `groups`, those of the
        convolution.
      stride: rows of the result for one row of x.
      padding: of the result.
      dilation: rows of the result from one row of the kernel to the next.
      groups: names of both that are not summed over.
      rows: how many rows the result has, by name. By default stride times those of x
        for "same" and "causal" padding, else all that x reaches.

    Raises:
      ShapeError: names are missing or clash, or a convolution of `rows` does not give
        such an x.
      DTypeError: x is not of floats, or the kernel is of another data type.
    """
    x, kernel = as_tensor("x", x), as_tensor("kernel", kernel)
    taps = read_window(window, x.shape, kernel.shape, groups)
    sizes = {dim: kernel.shape[tap] for dim, tap in taps.items()}
    result = dict(transposed_rows(x.shape, sizes, stride, padding, dilation))
    if rows is not None:
        as_mapping("rows", rows, 'numbers by name, such as {"h": 8}')
    result |= (
        {}
        if rows is None
        else by_dim(rows, {dim: result[dim] for dim in rows if dim in taps}, 0, "rows")
    )
    how = slides(Shape(result.items()), sizes, stride, padding, dilation)
    for s in how:
        if s.windows != x.shape[s.dim]:
            raise ShapeError(
                f'a convolution of {s.rows} rows of "{s.dim}" gives {s.windows}, not '
                f"the {x.shape[s.dim]} of {x.shape!r}."
            )
    keep = names_of(groups, x.shape, kernel.shape)
    reduced = tuple(n for n in kernel.shape.names if n in x.shape and n not in keep)
    new = tuple(
        n for n in kernel.shape.names if n not in x.shape and n not in taps.values()
    )
    geometry = Geometry(how, tuple(taps.values()), reduced=new, new=reduced)
    return apply(
        ConvTranspose(
            geometry, exchanged(x.shape.names, kernel.shape.names, reduced, new)
        ),
        x,
        kernel,
    )


def separable_conv(
    x: Tensor,
    depthwise: Any,
    pointwise: Any,
    window: Mapping[str, str] | str,
    stride: PerDim[int] = 1,
    padding: PerDim[Padding] = "same",
    dilation: PerDim[int] = 1,
) -> Tensor:
    """Returns a depthwise convolution, and then a product over channels (Chollet,
    2017).

    Args:
      x: such as [batch, h, w, c_in].
      depthwise: a kernel for each channel: [k_h, k_w, c_in], perhaps with a name for
        several each.
      pointwise: the product: [c_in, c_out], with that name too if there is one.
      window: as of `conv`, and so are `stride`, `padding` and `dilation`.
      stride: rows from one window to the next.
      padding: "same", "valid", "causal" or the rows before and after.
      dilation: rows of x from one row of the kernel to the next.

    Raises:
      ShapeError: names are missing or clash, or no window fits.
      DTypeError: x is not of floats, or a kernel is of another data type.
    """
    x, depthwise = as_tensor("x", x), as_tensor("depthwise", depthwise)
    pointwise = as_tensor("pointwise", pointwise)
    groups = [n for n in depthwise.shape.names if n in x.shape]
    y = conv(x, depthwise, window, stride, padding, dilation, groups)
    reduced = [n for n in pointwise.shape.names if n in y.shape]
    new = [n for n in pointwise.shape.names if n not in y.shape]
    return einsum(
        [y, pointwise], exchanged(y.shape.names, pointwise.shape.names, reduced, new)
    )
