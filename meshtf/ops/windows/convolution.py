"""Convolutions over named dimensions, one to three of which windows slide over.

    y = mtf.conv(x, kernel, "h:k_h;w:k_w")       # x[batch h w c_in], kernel[k_h k_w c_in c_out]
    y = mtf.conv(x, kernel, "h:k_h;w:k_w", groups="c_in")      # depthwise: kernel[k_h k_w c_in]

A convolution is an einsum with windows: names that x and the kernel share are summed
over, but for `groups`; names that only the kernel has are new; `window` maps each name of
x that windows slide over to the kernel's name of its taps. x may be sharded along any
name. Where windows slide over a sharded one, neighbours exchange the elements at the
border.

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
    Cotangents,
    LocalContext,
    LocalTensors,
    Role,
    Sample,
    Spec,
    Specs,
    Tensor,
    Window,
    WindowedOp,
    apply,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import Names, Shape, parse_pairs
from meshtf.names.arguments import as_mapping
from meshtf.ops.linear.einsum import einsum
from meshtf.ops.windows.conv_dimensions import (
    Geometry,
    convolution_geometry,
    pack,
    read_window,
    reduced_and_new,
    replace_names,
    resized,
    unpack,
)
from meshtf.ops.windows.sliding_window import (
    Padding,
    PerDim,
    by_dim,
    crop_to_shard,
    slides,
    transposed_sizes,
)


class _Product(WindowedOp):
    """The base of the three ops; `names` are those of the output, in order."""

    geometry: Geometry
    names: tuple[str, ...]

    def role(self, factor: str) -> Role:
        if factor in self.geometry.taps:
            return Role.UNSHARDED
        if factor in self.names:
            return Role.MAP
        return Role.SUM

    def _spatial_sizes(self) -> dict[str, int]:
        """Returns the sizes in the output of the names that windows slide over."""
        return {s.dim: s.windows for s in self.geometry.slides}

    def output_specs(self, *xs: Spec) -> Specs:
        sizes = self.geometry.sizes(*xs)
        sizes |= self._spatial_sizes()
        shape = resized(Shape(), sizes, self.names)
        return (Spec(shape, xs[0].dtype),)

    def window(self, input_index: int, dim: str) -> Window | None:
        slide = self.geometry.slide(dim)
        if slide is not None and input_index == 0:
            return slide.forward
        return None

    def flops(self, *xs: Spec) -> int:
        windows = [s.windows for s in self.geometry.slides]
        return 2 * math.prod(self.geometry.sizes(*xs).values()) * math.prod(windows)


def _sample(
    x: str, kernel: str, window: str, inputs: str = "xk", **options: Any
) -> Sample:
    """Returns a sample of an op that has these two of x, y and the kernel as inputs."""
    default: dict[str, Any] = {
        "stride": 1,
        "padding": "same",
        "dilation": 1,
        "groups": (),
    }
    taps = dict(parse_pairs(window, kind="window"))
    x_shape = Shape(x)
    kernel_shape = Shape(kernel)
    geometry, names = convolution_geometry(
        x_shape, kernel_shape, taps, **(default | options)
    )
    sizes = {slide.dim: slide.windows for slide in geometry.slides}
    y_shape = resized(kernel_shape.union(x_shape), sizes, names)
    shapes = {"x": x_shape, "k": kernel_shape, "y": y_shape}
    input_texts = []
    for letter in inputs:
        dims = shapes.pop(letter)
        input_texts.append(";".join(map(repr, dims)))
    (output_shape,) = shapes.values()
    return Sample((geometry, output_shape.names), tuple(input_texts))


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

    def local(self, context: LocalContext, x: Any, kernel: Any) -> LocalTensors:
        x_names, kernel_names = [shape.names for shape in context.inputs]
        packed_axes = self.geometry.packed_axes(x_names, kernel_names)
        x_axes, kernel_axes, y_axes = packed_axes
        x = pack(x, x_names, x_axes)
        kernel = pack(kernel, kernel_names, kernel_axes)
        x_sizes = x.shape[1:-2]
        channels = kernel.shape[-3:]
        kernels = self.geometry.kernels(context, x_sizes, channels)
        y = kernels.forward(x, kernel)
        return (unpack(y, context.outputs[0], y_axes),)

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor, kernel: Tensor) -> Cotangents:
        return [
            apply(ConvTranspose(self.geometry, x.shape.names), dy, kernel),
            apply(ConvKernelGrad(self.geometry, kernel.shape.names), dy, x),
        ]


@dataclasses.dataclass(frozen=True)
class ConvTranspose(_Product):
    """x from y and the kernel: the gradient of a convolution in x, and a layer as well."""

    geometry: Geometry
    names: tuple[str, ...]
    linearity = "each"
    samples = (
        _sample("b:2;h:8;c:2", "k:4;c:2;o:2", "h:k", "yk", stride=2),
        _sample("h:8;c:2", "k:2;c:2;o:3", "h:k", "yk", stride=3, padding=(2, 2)),
        _sample("h:4;w:4;c:2", "i:3;j:2;c:2", "h:i;w:j", "yk", stride=2, groups="c"),
    )

    def _spatial_sizes(self) -> dict[str, int]:
        return {s.dim: s.size for s in self.geometry.slides}

    def window(self, input_index: int, dim: str) -> Window | None:
        slide = self.geometry.slide(dim)
        if slide is not None and input_index == 0:
            return slide.backward
        return None

    def local(self, context: LocalContext, y: Any, kernel: Any) -> LocalTensors:
        y_names, kernel_names = [shape.names for shape in context.inputs]
        slides = self.geometry.slides
        packed_axes = self.geometry.packed_axes(self.names, kernel_names)
        x_axes, kernel_axes, y_axes = packed_axes
        y = pack(y, y_names, y_axes)
        kernel = pack(kernel, kernel_names, kernel_axes)
        x_sizes = []
        for num_windows, slide in zip(y.shape[1:-2], slides):
            if context.num_shards(slide.dim) == 1:
                x_sizes.append(slide.size)
            else:
                x_sizes.append(slide.reach(num_windows))
        kernels = self.geometry.kernels(context, x_sizes, kernel.shape[-3:])
        x = kernels.input_gradient(y, kernel)
        for axis, slide in enumerate(slides, start=1):
            if context.num_shards(slide.dim) > 1:
                x = crop_to_shard(context, x, axis, slide)
        return (unpack(x, context.outputs[0], x_axes),)

    def gradient(self, dx: Tensor, x: Tensor, y: Tensor, kernel: Tensor) -> Cotangents:
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
        if slide is not None and input_index == 1:
            return slide.forward
        return None

    def local(self, context: LocalContext, y: Any, x: Any) -> LocalTensors:
        y_names, x_names = [shape.names for shape in context.inputs]
        packed_axes = self.geometry.packed_axes(x_names, self.names)
        x_axes, kernel_axes, y_axes = packed_axes
        y = pack(y, y_names, y_axes)
        x = pack(x, x_names, x_axes)
        _batch, *x_sizes, groups, c_in = x.shape
        c_out = y.shape[-1]
        kernels = self.geometry.kernels(context, x_sizes, (groups, c_in, c_out))
        kernel = kernels.kernel_gradient(x, y)
        return (unpack(kernel, context.outputs[0], kernel_axes),)

    def gradient(self, dk: Tensor, kernel: Tensor, y: Tensor, x: Tensor) -> Cotangents:
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
      window: for each name of x that windows slide over, the kernel's name of its taps:
        "h:k_h;w:k_w".
      stride: elements from one window to the next: an integer, or one by name, {"h": 2}.
      padding: "same" (ceil(size / stride) windows), "valid" (none), "causal" (all
        before), or the elements before and after; for all names, or by name.
      dilation: elements of x from one tap of the kernel to the next.
      groups: names of both that are not summed over: each of their indices has a separate
        kernel. Where nothing is summed over, the convolution is depthwise.

    Raises:
      ShapeError: names are missing or clash, or no window fits.
      DTypeError: x is not of floats, or the kernel is of another data type.
    """
    x = as_tensor("x", x)
    kernel = as_tensor("kernel", kernel)
    taps = read_window(window, x.shape, kernel.shape, groups)
    geometry, names = convolution_geometry(
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
    output_size: Mapping[str, int] | None = None,
) -> Tensor:
    """Returns a transposed convolution: the gradient of a convolution in its input.

    Args:
      x: such as [batch, h, w, c_in].
      kernel: such as [k_h, k_w, c_in, c_out], in any order.
      window: as of `conv`; so are `padding`, `dilation` and `groups`, those of the
        convolution.
      stride: elements of the result for one element of x.
      padding: of the result.
      dilation: elements of the result from one tap of the kernel to the next.
      groups: names of both that are not summed over.
      output_size: sizes of the result, by name. By default stride times those of x for
        "same" and "causal" padding, else all elements that the windows reach.

    Raises:
      ShapeError: names are missing or conflict, or a convolution of `output_size`
        elements does not have the shape of x.
      DTypeError: x is not of floats, or the kernel is of another data type.
    """
    x = as_tensor("x", x)
    kernel = as_tensor("kernel", kernel)
    taps = read_window(window, x.shape, kernel.shape, groups)
    sizes = {dim: kernel.shape[tap] for dim, tap in taps.items()}
    result = dict(transposed_sizes(x.shape, sizes, stride, padding, dilation))
    if output_size is not None:
        as_mapping("output_size", output_size, 'numbers by name, such as {"h": 8}')
        named = {dim: result[dim] for dim in output_size if dim in taps}
        result |= by_dim(output_size, named, 0, "output_size")
    over = slides(Shape(result.items()), sizes, stride, padding, dilation)
    for slide in over:
        size = x.shape[slide.dim]
        if slide.windows != size:
            raise ShapeError(
                f'a convolution of {slide.size} elements of "{slide.dim}" gives '
                f"{slide.windows}, not the {size} of {x.shape!r}."
            )
    reduced, new = reduced_and_new(x.shape, kernel.shape, taps, groups)
    geometry = Geometry(over, tuple(taps.values()), reduced=new, new=reduced)
    names = replace_names(x.shape.names, kernel.shape.names, reduced, new)
    return apply(ConvTranspose(geometry, names), x, kernel)


def separable_conv(
    x: Tensor,
    depthwise: Any,
    pointwise: Any,
    window: Mapping[str, str] | str,
    stride: PerDim[int] = 1,
    padding: PerDim[Padding] = "same",
    dilation: PerDim[int] = 1,
) -> Tensor:
    """Returns a depthwise convolution, then a matmul over channels (Chollet, 2017).

    Args:
      x: such as [batch, h, w, c_in].
      depthwise: a kernel for each channel: [k_h, k_w, c_in], perhaps with a name for
        several each.
      pointwise: the kernel of the matmul: [c_in, c_out], with that name too if there is
        one.
      window: as of `conv`, and so are `stride`, `padding` and `dilation`.
      stride: elements from one window to the next.
      padding: "same", "valid", "causal" or the elements before and after.
      dilation: elements of x from one tap of the kernel to the next.

    Raises:
      ShapeError: names are missing or clash, or no window fits.
      DTypeError: x is not of floats, or a kernel is of another data type.
    """
    x = as_tensor("x", x)
    depthwise = as_tensor("depthwise", depthwise)
    pointwise = as_tensor("pointwise", pointwise)
    groups = [n for n in depthwise.shape.names if n in x.shape]
    y = conv(x, depthwise, window, stride, padding, dilation, groups)
    reduced = [n for n in pointwise.shape.names if n in y.shape]
    new = [n for n in pointwise.shape.names if n not in y.shape]
    return einsum(
        [y, pointwise],
        replace_names(y.shape.names, pointwise.shape.names, reduced, new),
    )
