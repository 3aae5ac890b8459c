"""TensorFlow's pooling over any number of dimensions, of inputs that are padded already.

    y = window_means(windows, x)    # [batch, *sizes, channels] -> [batch, *num_windows, channels]

`windows` has a `SlidingWindow` for each of the sizes.

The maximum over a window is the maximum over its first dimension of the maxima over its
other dimensions, and likewise for the mean. So the kernels for two dimensions suffice.
They are applied to two dimensions at a time, from the last ones:

    x [batch, d, h, w, channels]      over h and w, then over d of [batch, d, h * w * channels]

TensorFlow's kernels for three dimensions are not used: on CPUs they give the full gradient
of a maximum to each of several equal elements, and take neither float16 nor float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.ops.common.local_reshape import reshape
from meshtf.ops.windows.sliding_window import SlidingWindow

Windows = Sequence[SlidingWindow]


class _AxisPair(NamedTuple):
    """One or two adjacent dimensions that a kernel pools at once.

    Attributes:
      first_axis: the axis of the first of these dimensions in x.
      windows: how windows slide over each of these dimensions.
    """

    first_axis: int
    windows: Windows


def window_maxima(windows: Windows, x: Any) -> Any:
    """Returns the largest element of each window of x."""
    return _successive_maxima(windows, x)[-1]


def maxima_gradient(windows: Windows, dy: Any, x: Any) -> Any:
    """Returns the gradient of `window_maxima` in x, in the shape of x: dy of each window at
    its first largest element, zeros elsewhere.
    """
    pairs = _axis_pairs(windows)
    inputs_of_pairs = _successive_maxima(windows, x)[:-1]
    gradient = dy
    for pair, pair_input in zip(reversed(pairs), reversed(inputs_of_pairs)):
        gradient = _run_on_images(pair, _max_pool_gradient, pair_input, gradient)
    return gradient


def values_at_maxima(windows: Windows, z: Any, x: Any) -> Any:
    """Returns the elements of z where x has the first largest element of each window."""
    inputs_of_pairs = _successive_maxima(windows, x)[:-1]
    values = z
    for pair, pair_input in zip(_axis_pairs(windows), inputs_of_pairs):
        values = _run_on_images(pair, _max_pool_values, pair_input, values)
    return values


def window_means(windows: Windows, x: Any) -> Any:
    """Returns the mean of each window of x."""
    means = x
    for pair in _axis_pairs(windows):
        means = _run_on_images(pair, _avg_pool, means)
    return means


def means_gradient(windows: Windows, dy: Any) -> Any:
    """Returns the gradient of `window_means` in x, for all elements that windows read."""
    gradient = dy
    for pair in reversed(_axis_pairs(windows)):
        gradient = _run_on_images(pair, _avg_pool_gradient, gradient)
    return gradient


# Kernels of images [batch, height, width, channels]. The attributes are ksize (the sizes of
# a window), strides and padding.


def _max_pool(x: Any, **attributes: Any) -> Any:
    """Returns the maximum of each window."""
    return tf.raw_ops.MaxPool(input=x, **attributes)


def _max_pool_gradient(x: Any, dy: Any, **attributes: Any) -> Any:
    """Returns the gradient of `_max_pool` in x."""
    # The maximum is recomputed here, not stored in the forward pass: oneDNN's gradient then
    # takes a tenth of the time.
    return tf.raw_ops.MaxPoolGrad(
        orig_input=x,
        orig_output=_max_pool(x, **attributes),
        grad=dy,
        **attributes,
    )


def _max_pool_values(x: Any, z: Any, **attributes: Any) -> Any:
    """Returns z at the maxima of x, by TensorFlow's gradient of the gradient."""
    return tf.raw_ops.MaxPoolGradGrad(
        orig_input=x,
        orig_output=_max_pool(x, **attributes),
        grad=z,
        **attributes,
    )


def _avg_pool(x: Any, **attributes: Any) -> Any:
    """Returns the mean of each window."""
    return tf.raw_ops.AvgPool(value=x, **attributes)


def _avg_pool_gradient(
    dy: Any, ksize: Sequence[int], strides: Sequence[int], padding: str
) -> Any:
    """Returns the gradient of `_avg_pool` in x."""
    x_sizes = []
    for num_windows, stride, taps in zip(dy.shape, strides, ksize):
        x_sizes.append((num_windows - 1) * stride + taps)
    return tf.raw_ops.AvgPoolGrad(
        orig_input_shape=x_sizes,
        grad=dy,
        ksize=ksize,
        strides=strides,
        padding=padding,
    )


def _successive_maxima(windows: Windows, x: Any) -> list[Any]:
    """Returns x, followed by the maxima after each of `_axis_pairs`.

    Entry i is the input of pair i, and the last entry is the maximum over all dimensions.
    """
    maxima = [x]
    for pair in _axis_pairs(windows):
        maxima.append(_run_on_images(pair, _max_pool, maxima[-1]))
    return maxima


def _axis_pairs(windows: Windows) -> list[_AxisPair]:
    """Returns the dimensions in pairs, from the last ones: of [d, h, w] the pair (h, w),
    then d, which is single.
    """
    pairs = []
    for end in range(len(windows), 0, -2):
        start = max(0, end - 2)
        # Axis 0 of x is the batch.
        pairs.append(_AxisPair(first_axis=1 + start, windows=windows[start:end]))
    return pairs


def _run_on_images(pair: _AxisPair, kernel: Callable[..., Any], *xs: Any) -> Any:
    """Returns the result of a kernel on a pair of axes, or on one and an added axis of
    size 1.

    Args:
      pair: the axes, which the kernel takes as height and width.
      kernel: a function of images [batch, height, width, channels].
      *xs: the inputs [batch, *sizes, channels], which `kernel` gets as images.
    """
    start, windows = pair
    end = start + len(windows)
    width_if_single = [1] * (2 - len(windows))
    images = [_as_images(x, start, end) for x in xs]
    y = kernel(
        *images,
        ksize=[1, *(window.taps for window in windows), *width_if_single, 1],
        strides=[1, *(window.stride for window in windows), *width_if_single, 1],
        padding="VALID",
    )
    sizes = xs[0].shape.as_list()
    pooled_sizes = y.shape[1 : 1 + len(windows)]
    return reshape(y, [*sizes[:start], *pooled_sizes, *sizes[end:]])


def _as_images(x: Any, start: int, end: int) -> Any:
    """Returns x as images [batch, height, width, channels].

    Axes [start, end) of x are height and width; a single one is the height of images of
    width 1. The axes before are merged into the batch, those after into the channels.
    """
    sizes = x.shape.as_list()
    width_if_single = [1] * (2 - (end - start))
    batch = math.prod(sizes[:start])
    channels = math.prod(sizes[end:])
    return reshape(x, [batch, *sizes[start:end], *width_if_single, channels])
