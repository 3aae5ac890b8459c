"""Convolutions over named dimensions: windows slide over one to three of them.

    y = mtf.conv(x, kernel, "h:k_h;w:k_w")       # x[batch h w c_in], kernel[k_h k_w c_in c_out]
    y = mtf.conv(x, kernel, "h:k_h;w:k_w", groups="c_in")      # depthwise: kernel[k_h k_w c_in]

A convolution is an einsum with windows. Names that x and the kernel share are summed over,
except for `groups`. Names that only the kernel has are added to the result. `window` maps
each name of x that windows slide over to the name of its taps in the kernel. x may be
sharded along any name: where windows slide over a sharded one, neighbouring shards exchange
the elements at the border: an op's method `window` returns the range that a shard reads.

The scalar sum(y * conv(x, kernel)) is linear in each of x, y and the kernel. Its three
derivatives are one op, `Conv`, and the gradients of each are the other two:

    output "y"    the convolution, from x and the kernel       = d/dy
    output "x"    the transposed one, from y and the kernel    = d/dx
    output "k"    the kernel's gradient, from y and x          = d/dkernel
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from meshtf.errors import ShapeError
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    PaddingValue,
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
from meshtf.ops.windows.conv_dimensions import (
    Geometry,
    convolution_geometry,
    pack,
    read_window,
    replace_names,
    resized,
    summed_and_added,
    unpack,
)
from meshtf.ops.windows.conv_kernels import INPUTS
from meshtf.ops.windows.sliding_window import (
    Padding,
    PerDim,
    by_dim,
    crop_to_shard,
    sliding_windows,
    transposed_sizes,
)


def _sample(
    x: str, kernel: str, window: str, inputs: str = "xk", **options: Any
) -> Sample:
    """Returns a sample for the conformance suite.

    Args:
      x: the shape of x as text, "b:2;h:8;c:4".
      kernel: the shape of the kernel as text.
      window: the argument of `conv`.
      inputs: the letters of the op's inputs, as in `INPUTS`.
      **options: `stride`, `padding`, `dilation` and `groups` of `conv`.
    """
    defaults: dict[str, Any] = {
        "stride": 1,
        "padding": "same",
        "dilation": 1,
        "groups": (),
    }
    taps = dict(parse_pairs(window, kind="window"))
    x_shape = Shape(x)
    kernel_shape = Shape(kernel)
    geometry, names = convolution_geometry(
        x_shape, kernel_shape, taps, **(defaults | options)
    )
    sizes = {window.dim: window.num_windows for window in geometry.windows}
    y_shape = resized(kernel_shape.union(x_shape), sizes, names)
    shapes = {"x": x_shape, "k": kernel_shape, "y": y_shape}
    input_texts = []
    for letter in inputs:
        dims = shapes.pop(letter)
        input_texts.append(";".join(map(repr, dims)))
    ((output, output_shape),) = shapes.items()  # the only one that is not an input
    return Sample((geometry, output, output_shape.names), tuple(input_texts))


class Conv(WindowedOp):
    """One of the three tensors of a convolution, or its gradient, from the two others.

    Of the kernel's gradient, y is the first input, since the output has no spatial dimensions:
    then the first input determines how many indices of a dimension are divided among devices
    (`WindowedOp`). These are the windows: y has one element for each of them.

    Attributes:
      geometry: how windows slide over x, and which names of the kernel are taps, summed
        over or added.
      output: the letter of the output: "y", "x" or "k". `INPUTS` has those of the inputs.
      names: the names of the output, in order.
    """

    geometry: Geometry
    output: str
    names: tuple[str, ...]
    # op(a + b, c) = op(a, c) + op(b, c): a partial sum of one input gives a partial sum.
    linearity = "each"
    conformance_samples = (
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
        _sample("h:5;w:7", "i:2;j:3", "h:i;w:j", dilation={"w": 2}),
        _sample("h:7;c:4", "k:3;c:4;m:2", "h:k", dilation=2, groups="c"),
        _sample("h:4;w:8;c:2", "i:3;j:3;c:2", "h:i;w:j", stride={"w": 2}, groups="c"),
        _sample("h:5;g:2;c:2", "c:2;k:3;g:2", "h:k", padding="causal", groups="g"),
        _sample("d:4;h:2;w:3", "i:3;j:2;k:1", "d:i;h:j;w:k", dilation={"d": 2}),
        _sample("b:2;h:8;c:2", "k:4;c:2;o:2", "h:k", inputs="yk", stride=2),
        _sample("h:8;c:2", "k:2;c:2;o:3", "h:k", inputs="yk", stride=3, padding=(2, 2)),
        _sample(
            "h:4;w:4;c:2", "i:3;j:2;c:2", "h:i;w:j", inputs="yk", stride=2, groups="c"
        ),
        _sample("b:2;h:8;c:2", "k:4;c:2;o:2", "h:k", inputs="yx", stride=2),
        _sample(
            "h:8;c:2",
            "c:2;m:2;k:2",
            "h:k",
            inputs="yx",
            stride=3,
            padding=(2, 2),
            groups="c",
        ),
    )

    @property
    def display_name(self) -> str:
        return {"y": "conv", "x": "convtranspose", "k": "convkernelgrad"}[self.output]

    def role(self, factor: str) -> Role:
        # `factor` is the name of a dimension of an input or of the output.
        if factor in self.geometry.taps:
            return Role.UNSHARDED
        return Role.MAP if factor in self.names else Role.SUM

    def padding_value(self, input_index: int, factor: str) -> PaddingValue:
        return None if factor in self.names else 0.0

    def output_specs(self, *xs: Spec) -> Specs:
        sizes = self.geometry.sizes(*xs)
        for window in self.geometry.windows:
            sizes[window.dim] = (
                window.size if self.output == "x" else window.num_windows
            )
        shape = resized(Shape(), sizes, self.names)
        return (Spec(shape, xs[0].dtype),)

    def window(self, input_index: int, dim: str) -> Window | None:
        # The elements of an input that a shard of the output reads; None: only its shard.
        sliding_window = self.geometry.window_over(dim)
        letter = INPUTS[self.output][input_index]
        if sliding_window is not None and letter == "x":
            return sliding_window.elements_of_windows()
        if sliding_window is not None and self.output == "x":
            return sliding_window.windows_of_elements()
        return None

    def local(self, context: LocalContext, *xs: Any) -> LocalTensors:
        inputs = dict(zip(INPUTS[self.output], xs))
        names = {x: shape.names for x, shape in zip(inputs, context.inputs)}
        names[self.output] = self.names
        axes = self.geometry.packed_axes(names["x"], names["k"])
        packed = {
            letter: pack(x, names[letter], axes[letter]) for letter, x in inputs.items()
        }
        windows = self.geometry.windows
        is_sharded = [context.num_shards(window.dim) > 1 for window in windows]
        if self.output != "x":
            x_sizes = packed["x"].shape[1 : 1 + len(windows)]
        else:
            # Of a sharded dimension all elements that the windows of y read: the shard and
            # its border.
            x_sizes = [
                window.covered_size(num_windows) if sharded else window.size
                for window, num_windows, sharded in zip(
                    windows, packed["y"].shape[1:], is_sharded
                )
            ]
        shapes = (*context.inputs, *context.outputs)
        local_sizes = {dim.name: dim.size for shape in shapes for dim in shape}
        kernels = self.geometry.kernels(context, x_sizes, axes, local_sizes)
        z = kernels.compute(self.output, *packed.values())
        if self.output == "x":
            for axis, window in enumerate(windows, start=1):
                if is_sharded[axis - 1]:
                    z = crop_to_shard(context, z, axis, window)
        return (unpack(z, context.outputs[0], axes[self.output]),)

    def gradient(self, dz: Tensor, z: Tensor, *xs: Tensor) -> Cotangents:
        tensors = {self.output: dz, **dict(zip(INPUTS[self.output], xs))}
        dxs = []
        for letter, x in zip(INPUTS[self.output], xs):
            op = Conv(self.geometry, letter, x.shape.names)
            dxs.append(apply(op, *(tensors[other] for other in INPUTS[letter])))
        return dxs

    def flops(self, *xs: Spec) -> int:
        num_windows = math.prod(window.num_windows for window in self.geometry.windows)
        other_sizes = math.prod(self.geometry.sizes(*xs).values())
        return 2 * other_sizes * num_windows


def conv(
    x: Tensor,
    kernel: Any,
    window: Mapping[str, str] | str,
    stride: PerDim[int] = 1,
    padding: PerDim[Padding] = "same",
    dilation: PerDim[int] = 1,
    groups: Names = (),
) -> Tensor:
    """Returns the convolution of x with a kernel, such as [batch, h, w, c_out].

    Args:
      x: a tensor, such as [batch, h, w, c_in].
      kernel: a tensor or variable, such as [k_h, k_w, c_in, c_out], in any order. Names
        that x has too are summed over; other names are added to the result.
      window: for each name of x that windows slide over, the name of its taps in the
        kernel: "h:k_h;w:k_w".
      stride: the distance in elements from one window to the next: an integer, or integers
        by name, {"h": 2}.
      padding: "same" (ceil(size / stride) windows), "valid" (none), "causal" (all
        before), or the numbers of elements before and after; for all names, or by name.
      dilation: the distance in elements of x from one tap of the kernel to the next.
      groups: names that both have and that are not summed over: each of their indices has
        a separate kernel. Where nothing is summed over, the convolution is depthwise.

    Raises:
      ShapeError: names are missing or conflict, or no window fits.
      DTypeError: x is not of floats, or the kernel is of another data type.
    """
    x = as_tensor("x", x)
    kernel = as_tensor("kernel", kernel)
    taps = read_window(window, x.shape, kernel.shape, groups)
    geometry, names = convolution_geometry(
        x.shape, kernel.shape, taps, stride, padding, dilation, groups
    )
    return apply(Conv(geometry, "y", names), x, kernel)


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
    """Returns the transposed convolution of x, such as [batch, stride * h, stride * w, c_out].

    It is the gradient of a convolution in its input: that convolution maps the result to
    the shape of x, and has the same kernel, stride, padding, dilation and groups.

    Args:
      x: a tensor, such as [batch, h, w, c_in].
      kernel: a tensor or variable, such as [k_h, k_w, c_in, c_out], in any order.
      window: as in `conv`: for each name of x that windows slide over, the name of its
        taps in the kernel.
      stride: the distance in elements of the result between elements of x.
      padding: as in `conv`: the padding of the result, as the input of the convolution.
      dilation: the distance in elements of the result from one tap of the kernel to the
        next.
      groups: names that both have and that are not summed over.
      output_size: sizes of the result, by name. The default for "same" and "causal"
        padding is stride times the size of x, for other padding the number of elements
        that the windows span, less the padding.

    Raises:
      ShapeError: names are missing or conflict, or a convolution of `output_size`
        elements does not have the shape of x.
      DTypeError: x is not of floats, or the kernel is of another data type.
    """
    x = as_tensor("x", x)
    kernel = as_tensor("kernel", kernel)
    taps = read_window(window, x.shape, kernel.shape, groups)
    window_sizes = {dim: kernel.shape[tap] for dim, tap in taps.items()}
    result_sizes = transposed_sizes(x.shape, window_sizes, stride, padding, dilation)
    if output_size is not None:
        output_size = as_mapping(
            "output_size", output_size, 'numbers by name, such as {"h": 8}'
        )
        known_dims = {dim: result_sizes[dim] for dim in output_size if dim in taps}
        # `output_size` has a value for each of `known_dims`: the default is never used.
        result_sizes |= by_dim(
            output_size, known_dims, default=0, argument="output_size"
        )
    result_shape = Shape(result_sizes.items())
    windows = sliding_windows(result_shape, window_sizes, stride, padding, dilation)
    for sliding_window in windows:
        dim = sliding_window.dim
        num_windows = sliding_window.num_windows
        if num_windows != x.shape[dim]:
            raise ShapeError(
                f'a convolution of {sliding_window.size} elements of "{dim}" gives '
                f"{num_windows}, not the {x.shape[dim]} of {x.shape!r}."
            )
    summed, added = summed_and_added(x.shape, kernel.shape, taps, groups)
    # The geometry is that of the convolution whose transpose this is: it sums over the
    # names that the transpose adds, and adds the names that the transpose sums over.
    geometry = Geometry(
        windows=windows, taps=tuple(taps.values()), summed=added, added=summed
    )
    names = replace_names(
        x.shape.names, kernel.shape.names, removed=summed, added=added
    )
    return apply(Conv(geometry, "x", names), x, kernel)
