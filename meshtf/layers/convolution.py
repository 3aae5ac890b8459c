"""Convolutions with kernels of their own.

    conv = Conv(mesh, "h:3;w:3", "c_in:3", "channels:32", stride=2)
    y = mtf.relu(conv(x))                     # [batch h w c_in] -> [batch h/2 w/2 channels]
    conv = Conv(mesh, "h:3;w:3", groups="channels:32")        # depthwise
    conv = SeparableConv(mesh, "length:7", "d_model:512", "d_out:512")

How many dimensions windows slide over is for `window` to say; the rows of a window over
"h" are called "k_h". Images may be cut along any name, for instance "h:data; w:model".
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from meshtf.graph import Tensor
from meshtf.graph.arguments import check_tensors
from meshtf.layers.initializers import Initializer, variance_scaling, zeros
from meshtf.layers.mixed_precision import in_type_of
from meshtf.mesh import Mesh
from meshtf.module import Module
from meshtf.names import Dimension, Shape, ShapeLike
from meshtf.names.arguments import check_bools, check_ints
from meshtf.ops.common.checks import require_dim
from meshtf.ops.windows.convolution import conv, conv_transpose, separable_conv
from meshtf.ops.windows.sliding_window import Padding, PerDim, by_dim
from meshtf.runtime.variable import Variable


class Conv(Module):
    """conv(x[..., reduced_dims], kernel[window, groups, reduced_dims, new_dims]) +
    bias.

    Args:
      mesh: where the variables lie.
      window: the rows of a window, by dimension: "h:3;w:3".
      reduced_dims: the dimensions of the input that are summed away, such as "c_in:16".
      new_dims: the dimensions that come in, such as "channels:32".
      stride: rows from one window to the next; a number, or numbers by name.
      padding: "same", "valid", "causal" or the rows before and after; for all names, or
        by name.
      dilation: rows of x from one row of the kernel to the next.
      groups: dimensions of the input of which each row has a kernel of its own.
      use_bias: whether a bias, at first zero, is added.
      kernel_initializer: default: normal with variance 1 / size of a window of
        `reduced_dims`.
      name: the last part of the path of its variables.
    """

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
        name: str = "conv",
    ) -> None:
        check_bools(use_bias=use_bias)
        super().__init__(name)
        self.window, taps = _taps(window)
        _check_windows(self.window, stride, padding, dilation)
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.groups, self.reduced_dims = Shape(groups), Shape(reduced_dims)
        summed = taps + Shape(reduced_dims)
        first = (
            self._initializer(summed)
            if kernel_initializer is None
            else kernel_initializer
        )
        with self.scope():
            self.kernel = Variable(
                mesh, taps + self.groups + reduced_dims + new_dims, first, name="kernel"
            )
            self.bias = (
                Variable(mesh, self.groups + new_dims, zeros, name="bias")
                if use_bias
                else None
            )

    def _initializer(self, summed: Shape) -> Initializer:
        return variance_scaling(
            ";".join(summed.names), expert_dims=";".join(self.groups.names)
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Returns [..., new_dims] for x[..., reduced_dims], new names where the old
        ones stood.
        """
        check_tensors(x=x)
        require_dim(x.shape, *self.reduced_dims.names)
        y = conv(
            x,
            in_type_of(x, self.kernel),
            self.window,
            self.stride,
            self.padding,
            self.dilation,
            self.groups.names,
        )
        return y if self.bias is None else y + in_type_of(x, self.bias)


class ConvTranspose(Conv):
    """A transposed convolution: `stride` times as many rows as x has.

    Arguments are those of `Conv`. By default the kernel's variance is larger by the
    strides, since fewer rows of x reach a row of the result.
    """

    def _initializer(self, summed: Shape) -> Initializer:
        strides = by_dim(self.stride, self.window, 1, "stride").values()
        return variance_scaling(
            ";".join(summed.names),
            scale=math.prod(strides),
            expert_dims=";".join(self.groups.names),
        )

    def __call__(self, x: Tensor, rows: Mapping[str, int] | None = None) -> Tensor:
        """Returns [..., new_dims] for x[..., reduced_dims]; so many `rows`, where
        several would do.
        """
        check_tensors(x=x)
        require_dim(x.shape, *self.reduced_dims.names)
        y = conv_transpose(
            x,
            in_type_of(x, self.kernel),
            self.window,
            self.stride,
            self.padding,
            self.dilation,
            self.groups.names,
            rows,
        )
        return y if self.bias is None else y + in_type_of(x, self.bias)


class SeparableConv(Module):
    """A depthwise convolution, then a product over channels (Chollet, 2017, arXiv
    1610.02357).

    Args:
      mesh: where the variables lie.
      window: the rows of a window, by dimension: "h:3;w:3".
      reduced_dims: the channels of the input, such as "c_in:16".
      new_dims: the channels of the output, such as "channels:32".
      stride: rows from one window to the next.
      padding: "same", "valid", "causal" or the rows before and after.
      dilation: rows of x from one row of the kernel to the next.
      multiplier: how many depthwise kernels each channel has.
      use_bias: whether a bias, at first zero, is added.
      name: the last part of the path of its variables.
    """

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
        name: str = "separable_conv",
    ) -> None:
        check_bools(use_bias=use_bias)
        check_ints(multiplier=multiplier)
        super().__init__(name)
        self.window, taps = _taps(window)
        _check_windows(self.window, stride, padding, dilation)
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.reduced_dims = Shape(reduced_dims)
        channels = self.reduced_dims + Dimension("multiplier", multiplier)
        names = ";".join(channels.names)
        with self.scope():
            self.depthwise = Variable(
                mesh,
                taps + channels,
                variance_scaling(";".join(taps.names), expert_dims=names),
                name="depthwise",
            )
            self.pointwise = Variable(
                mesh, channels + new_dims, variance_scaling(names), name="pointwise"
            )
            self.bias = (
                Variable(mesh, new_dims, zeros, name="bias") if use_bias else None
            )

    def __call__(self, x: Tensor) -> Tensor:
        """Returns [..., new_dims] for x[..., reduced_dims], new names where the old
        ones stood.
        """
        check_tensors(x=x)
        require_dim(x.shape, *self.reduced_dims.names)
        kernels = in_type_of(x, self.depthwise), in_type_of(x, self.pointwise)
        y = separable_conv(
            x, *kernels, self.window, self.stride, self.padding, self.dilation
        )
        return y if self.bias is None else y + in_type_of(x, self.bias)


def _check_windows(
    window: Mapping[str, str],
    stride: PerDim[int],
    padding: PerDim[Padding],
    dilation: PerDim[int],
) -> None:
    """Refuses what is no stride, padding or dilation. Raises ArgumentError,
    ShapeError.
    """
    by_dim(stride, window, 1, "stride")
    by_dim(padding, window, "same", "padding")
    by_dim(dilation, window, 1, "dilation")


def _taps(window: ShapeLike) -> tuple[dict[str, str], Shape]:
    """Returns which name of the kernel has the rows of windows over a name, and these
    names.
    """
    dims = Shape(window)
    return (
        {d.name: f"k_{d.name}" for d in dims},
        Shape(Dimension(f"k_{d.name}", d.size) for d in dims),
    )
