"""Convolution layers.

    conv = Conv(mesh, "h:3;w:3", "c_in:3", "channels:32", stride=2)
    y = mtf.relu(conv(x))                     # [batch, h, w, c_in] -> [batch, h/2, w/2, channels]
    conv = Conv(mesh, "h:3;w:3", groups="channels:32")        # depthwise
    conv = SeparableConv(mesh, "length:7", "d_model:512", "d_out:512")

`window` names the dimensions that windows slide over, each with the size of a window; the
dimension of the kernel over "h" is called "k_h". Images may be sharded along any
dimension, for instance "h:data; w:model".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from meshtf.graph import Tensor
from meshtf.graph.arguments import check_tensors
from meshtf.layers.initializers import Initializer, variance_scaling, zeros
from meshtf.layers.mixed_precision import add_bias, cast_like
from meshtf.mesh import Mesh
from meshtf.module import Module
from meshtf.names import Dimension, Shape, ShapeLike
from meshtf.names.arguments import check_bools, check_ints
from meshtf.ops.common.checks import require_dim_of_caller
from meshtf.ops.windows.convolution import conv, conv_transpose
from meshtf.ops.windows.separable_conv import separable_conv
from meshtf.ops.windows.sliding_window import Padding, PerDim, by_dim
from meshtf.runtime.variable import Variable


class Conv(Module):
    """conv(x[..., reduced_dims], kernel[window, groups, reduced_dims, new_dims]) + bias.

    Args:
      mesh: the mesh of the variables.
      window: the size of a window along each dimension: "h:3;w:3".
      reduced_dims: the dimensions of the input that are summed over, such as "c_in:16".
      new_dims: the dimensions of the output that replace them, such as "channels:32".
      stride: the step from one window to the next; an integer, or integers by name.
      padding: "same", "valid", "causal" or the padding before and after; for all names,
        or by name.
      dilation: the step along x from one entry of the kernel to the next.
      groups: dimensions of the input with a separate kernel for each entry.
      use_bias: whether a bias is added; its initial value is zero.
      kernel_initializer: the initializer of the kernel; default: normal with variance
        1 / (size of a window * size of `reduced_dims`).
      name: the layer's name, a component of the names of its variables; see `mtf.Module`.

    Attributes:
      window: the name of the kernel's dimension for each name in `window`, such as
        {"h": "k_h", "w": "k_w"}.
    """

    default_name = "conv"

    def __init__(
        self,
        mesh: Mesh,
        window: ShapeLike,
        reduced_dims: ShapeLike = "",
        new_dims: ShapeLike = "",
        stride: PerDim[int] = 1,
        padding: PerDim[Padding] = "same",
        dilation: PerDim[int] = 1,
        groups: ShapeLike = "",
        use_bias: bool = True,
        kernel_initializer: Initializer | None = None,
        name: str | None = None,
    ) -> None:
        check_bools(use_bias=use_bias)
        super().__init__(name)
        self.window, kernel_window = _kernel_window(window)
        _check_windows(self.window, stride=stride, padding=padding, dilation=dilation)
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.groups = Shape(groups)
        self.reduced_dims = Shape(reduced_dims)
        summed_dims = kernel_window + self.reduced_dims
        if kernel_initializer is None:
            kernel_initializer = self._initializer(summed_dims)
        kernel_shape = kernel_window + self.groups + self.reduced_dims + new_dims
        with self.scope():
            self.kernel = Variable(
                mesh, kernel_shape, kernel_initializer, name="kernel"
            )
            self.bias: Variable | None = None
            if use_bias:
                self.bias = Variable(mesh, self.groups + new_dims, zeros, name="bias")

    def _initializer(self, summed_dims: Shape) -> Initializer:
        """Returns the default initializer of a kernel that sums over `summed_dims`."""
        # Each entry of `groups` has a separate kernel, like an expert of a mixture.
        return variance_scaling(
            ";".join(summed_dims.names), expert_dims=";".join(self.groups.names)
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Returns x [..., reduced_dims] with `new_dims` in place of `reduced_dims`."""
        return self._output(conv, x)

    def _output(
        self, convolution: Callable[..., Tensor], x: Tensor, **settings: Any
    ) -> Tensor:
        """Returns a convolution of x, or a transposed one, and the bias added.

        Args:
          convolution: `conv` or `conv_transpose`.
          x: the input.
          **settings: further arguments of the function.
        """
        check_tensors(x=x)
        require_dim_of_caller(x.shape, *self.reduced_dims.names)
        y = convolution(
            x,
            cast_like(self.kernel, x),
            self.window,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups.names,
            **settings,
        )
        return add_bias(y, self.bias)


class ConvTranspose(Conv):
    """A transposed convolution: the output is `stride` times as large as x.

    Arguments are those of `Conv`. By default the kernel's variance is multiplied by the
    strides, since fewer elements of x contribute to an element of the output.
    """

    def _initializer(self, summed_dims: Shape) -> Initializer:
        """Returns the default initializer, of variance (product of strides) / fan_in."""
        stride_of = by_dim(self.stride, self.window, default=1, argument="stride")
        return variance_scaling(
            ";".join(summed_dims.names),
            scale=math.prod(stride_of.values()),
            expert_dims=";".join(self.groups.names),
        )

    def __call__(
        self, x: Tensor, output_size: Mapping[str, int] | None = None
    ) -> Tensor:
        """Returns x [..., reduced_dims] with `new_dims` in place of `reduced_dims`.

        Args:
          x: the input.
          output_size: the size of the output along the dimensions of windows, by name;
            default: stride times the size of x for "same" and "causal" padding. With a
            stride of 2, a convolution maps both 7 and 8 elements to 4: pass 7 to get 7.
        """
        return self._output(conv_transpose, x, output_size=output_size)


class SeparableConv(Module):
    """A depthwise convolution, then a pointwise (1x1) convolution over channels (Chollet,
    2017, arXiv 1610.02357).

    Args:
      mesh: the mesh of the variables.
      window: the size of a window along each dimension: "h:3;w:3".
      reduced_dims: the channels of the input, such as "c_in:16".
      new_dims: the channels of the output, such as "channels:32".
      stride: the step from one window to the next.
      padding: "same", "valid", "causal" or the padding before and after.
      dilation: the step along x from one entry of the kernel to the next.
      multiplier: the count of depthwise kernels of each channel.
      use_bias: whether a bias is added; its initial value is zero.
      name: the layer's name, a component of the names of its variables; see `mtf.Module`.
    """

    default_name = "separable_conv"

    def __init__(
        self,
        mesh: Mesh,
        window: ShapeLike,
        reduced_dims: ShapeLike,
        new_dims: ShapeLike,
        stride: PerDim[int] = 1,
        padding: PerDim[Padding] = "same",
        dilation: PerDim[int] = 1,
        multiplier: int = 1,
        use_bias: bool = True,
        name: str | None = None,
    ) -> None:
        check_bools(use_bias=use_bias)
        check_ints(multiplier=multiplier)
        super().__init__(name)
        self.window, kernel_window = _kernel_window(window)
        _check_windows(self.window, stride=stride, padding=padding, dilation=dilation)
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.reduced_dims = Shape(reduced_dims)
        channels = self.reduced_dims + Dimension("multiplier", multiplier)
        channel_names = ";".join(channels.names)
        window_names = ";".join(kernel_window.names)
        with self.scope():
            self.depthwise = Variable(
                mesh,
                kernel_window + channels,
                variance_scaling(window_names, expert_dims=channel_names),
                name="depthwise",
            )
            self.pointwise = Variable(
                mesh,
                channels + new_dims,
                variance_scaling(channel_names),
                name="pointwise",
            )
            self.bias: Variable | None = None
            if use_bias:
                self.bias = Variable(mesh, new_dims, zeros, name="bias")

    def __call__(self, x: Tensor) -> Tensor:
        """Returns x [..., reduced_dims] with `new_dims` in place of `reduced_dims`."""
        check_tensors(x=x)
        require_dim_of_caller(x.shape, *self.reduced_dims.names)
        y = separable_conv(
            x,
            cast_like(self.depthwise, x),
            cast_like(self.pointwise, x),
            self.window,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
        )
        return add_bias(y, self.bias)


def _check_windows(
    window: Mapping[str, str],
    stride: PerDim[int],
    padding: PerDim[Padding],
    dilation: PerDim[int],
) -> None:
    """Raises ArgumentError or ShapeError for an invalid stride, padding or dilation."""
    # Each call is a check: `by_dim` raises. The convolution resolves the settings again.
    by_dim(stride, window, default=1, argument="stride")
    by_dim(padding, window, default="same", argument="padding")
    by_dim(dilation, window, default=1, argument="dilation")


def _kernel_window(window: ShapeLike) -> tuple[dict[str, str], Shape]:
    """Returns (kernel's name for each name in `window`, kernel's dimensions): for the window
    "h:3;w:5", ({"h": "k_h", "w": "k_w"}, Shape("k_h:3;k_w:5")).
    """
    kernel_names = {}
    kernel_dims = []
    for dim in Shape(window):
        kernel_name = f"k_{dim.name}"
        kernel_names[dim.name] = kernel_name
        kernel_dims.append(Dimension(kernel_name, dim.size))
    return kernel_names, Shape(kernel_dims)
