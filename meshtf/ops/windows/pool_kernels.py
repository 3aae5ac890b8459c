"""TensorFlow's pooling over any number of dimensions, of inputs that are padded already.

    x [batch, *sizes, channels]  ->  [batch, *windows, channels]

The maximum over a window is the maximum over one dimension of the maxima over the
others, and the mean likewise. So the kernels for two dimensions suffice, applied to two
dimensions at a time, from the last:

    x [batch, d, h, w, channels]      over h and w, then over d of [batch, d, h * w * channels]

TensorFlow's own kernels for three dimensions give the whole gradient of a maximum to
each of equal elements on CPUs, and take neither float16 nor float64 there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.ops.common.local_reshape import reshape
from meshtf.ops.windows.sliding_window import Slide

_RAW = tf.raw_ops

Slides = Sequence[Slide]


def largest(slides: Slides, x: Any) -> Any:
    """Returns the largest element of each window."""
    return _steps(slides, x)[-1]


def largest_gradient(slides: Slides, dy: Any, x: Any) -> Any:
    """Returns dy at the first maximum of each window of x, zeros elsewhere."""
    for pair, step in reversed(list(zip(_pairs(slides), _steps(slides, x)))):
        dy = _run(pair, _largest_gradient, step, dy)
    return dy


def largest_picks(slides: Slides, z: Any, x: Any) -> Any:
    """Returns the elements of z at the first maximum of each window of x."""
    for pair, step in zip(_pairs(slides), _steps(slides, x)):
        z = _run(pair, _largest_picks, step, z)
    return z


def average(slides: Slides, x: Any) -> Any:
    """Returns the mean of each window."""
    for pair in _pairs(slides):
        x = _run(pair, lambda x, **attributes: _RAW.AvgPool(value=x, **attributes), x)
    return x


def average_gradient(slides: Slides, dy: Any) -> Any:
    """Returns the transpose of `average`, for all elements that the windows read."""
    for pair in reversed(_pairs(slides)):
        dy = _run(pair, _average_gradient, dy)
    return dy


def _largest_gradient(x: Any, dy: Any, **attributes: Any) -> Any:
    # The maximum is recomputed, not stored: with it, oneDNN's gradient takes a tenth of
    # the time.
    return _RAW.MaxPoolGrad(
        orig_input=x,
        orig_output=_RAW.MaxPool(input=x, **attributes),
        grad=dy,
        **attributes,
    )


def _largest_picks(x: Any, z: Any, **attributes: Any) -> Any:
    return _RAW.MaxPoolGradGrad(
        orig_input=x,
        orig_output=_RAW.MaxPool(input=x, **attributes),
        grad=z,
        **attributes,
    )


def _average_gradient(
    dy: Any, ksize: Sequence[int], strides: Sequence[int], padding: str
) -> Any:
    sizes = [(n - 1) * s + k for n, s, k in zip(dy.shape, strides, ksize)]
    return _RAW.AvgPoolGrad(
        orig_input_shape=sizes, grad=dy, ksize=ksize, strides=strides, padding=padding
    )


def _steps(slides: Slides, x: Any) -> list[Any]:
    """Returns x, and the maxima after each pair of dimensions."""
    xs = [x]
    for pair in _pairs(slides):
        xs.append(
            _run(
                pair,
                lambda x, **attributes: _RAW.MaxPool(input=x, **attributes),
                xs[-1],
            )
        )
    return xs


def _pairs(slides: Slides) -> list[tuple[int, Slides]]:
    """Returns the dimensions in pairs from the last, each with the axis of its start."""
    return [
        (1 + max(0, end - 2), slides[max(0, end - 2) : end])
        for end in range(len(slides), 0, -2)
    ]


def _run(pair: tuple[int, Slides], kernel: Any, *xs: Any) -> Any:
    """Runs a kernel on two axes, or on one and an added axis of size 1."""
    axis, slides = pair
    end = axis + len(slides)
    added = [1] * (2 - len(slides))
    y = kernel(
        *(_as_images(x, axis, end) for x in xs),
        ksize=[1, *(s.taps for s in slides), *added, 1],
        strides=[1, *(s.stride for s in slides), *added, 1],
        padding="VALID",
    )
    sizes = xs[0].shape.as_list()
    return reshape(y, [*sizes[:axis], *y.shape[1 : 1 + len(slides)], *sizes[end:]])


def _as_images(x: Any, start: int, end: int) -> Any:
    """Returns x as [batch, height, width, channels], of its axes [start, end) as images.

    A single axis is the height of images of width 1.
    """
    sizes = x.shape.as_list()
    added = [1] * (2 - (end - start))
    batch = math.prod(sizes[:start])
    channels = math.prod(sizes[end:])
    return reshape(x, [batch, *sizes[start:end], *added, channels])
