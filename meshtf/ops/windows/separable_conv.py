"""Separable convolutions: one kernel for each channel, then a matmul over channels.

    y = mtf.separable_conv(x, depthwise, pointwise, "h:k_h;w:k_w")

    x[batch h w c_in]   depthwise[k_h k_w c_in]   pointwise[c_in c_out]   y[batch h w c_out]

"h:k_h" says that windows slide over h of x, and that k_h of the kernel indexes the taps (the
elements) of a window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshtf.graph import Tensor
from meshtf.graph.arguments import as_tensor
from meshtf.ops.linear.einsum import einsum
from meshtf.ops.windows.conv_dimensions import replace_names
from meshtf.ops.windows.convolution import conv
from meshtf.ops.windows.sliding_window import Padding, PerDim


def separable_conv(
    x: Tensor,
    depthwise: Any,
    pointwise: Any,
    window: Mapping[str, str] | str,
    stride: PerDim[int] = 1,
    padding: PerDim[Padding] = "same",
    dilation: PerDim[int] = 1,
) -> Tensor:
    """Returns a depthwise convolution of x, followed by a matmul over channels.

    The result is [batch, h, w, c_out] for the shapes below, with a size of h and w that
    depends on stride and padding (Chollet, 2017, "Xception").

    Args:
      x: a tensor, such as [batch, h, w, c_in].
      depthwise: a kernel for each channel, [k_h, k_w, c_in], or several kernels for each
        channel, [k_h, k_w, c_in, multiplier].
      pointwise: the kernel of the matmul, [c_in, c_out] or [c_in, multiplier, c_out].
      window: as in `conv`: for each name of x that windows slide over, the name of its
        taps in `depthwise`.
      stride: the distance in elements from one window to the next.
      padding: "same" (ceil(size / stride) windows), "valid" (none), "causal" (all
        before), or the numbers of elements before and after.
      dilation: the distance in elements of x from one tap of the kernel to the next.

    Raises:
      ShapeError: names are missing or conflict, or no window fits.
      DTypeError: x is not of floats, or a kernel is of another data type.
    """
    x = as_tensor("x", x)
    depthwise = as_tensor("depthwise", depthwise)
    pointwise = as_tensor("pointwise", pointwise)
    groups = [name for name in depthwise.shape.names if name in x.shape]
    y = conv(
        x,
        depthwise,
        window,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
    )
    # The matmul replaces c_in (and multiplier) by c_out.
    summed = [name for name in pointwise.shape.names if name in y.shape]
    added = [name for name in pointwise.shape.names if name not in y.shape]
    result_names = replace_names(
        y.shape.names, pointwise.shape.names, removed=summed, added=added
    )
    return einsum([y, pointwise], result_names)
