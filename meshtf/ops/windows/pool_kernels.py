"""TensorFlow's pooling over any number of dimensions, all padding there already.

    x [batch, *rows, channels]  ->  [batch, *windows, channels]

The largest of a window is the largest of its rows' largest, and the mean likewise. So
all is done with the kernels for two dimensions, two at a time, and those at hand last
come first:

    x [batch, d, h, w, channels]      over h and w, then over d, as rows of h * w * channels

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
    """Returns dy at the first of the largest elements of each window of x, zeros
    elsewhere.
    """
    for pair, step in reversed(list(zip(_pairs(slides), _steps(slides, x)))):
        dy = _run(pair, _largest_gradient, step, dy)
    return dy


def largest_picks(slides: Slides, z: Any, x: Any) -> Any:
    """Returns what z holds at the first of the largest elements of each window of x."""
    for pair, step in zip(_pairs(slides), _steps(slides, x)):
        z = _run(pair, _largest_picks, step, z)
    return z


def average(slides: Slides, x: Any) -> Any:
    """Returns the mean of each window."""
    for pair in _pairs(slides):
        x = _run(pair, lambda x, **how: _RAW.AvgPool(value=x, **how), x)
    return x


def average_gradient(slides: Slides, dy: Any) -> Any:
    """Returns the transpose of `average`, for all rows that the windows read."""
    for pair in reversed(_pairs(slides)):
        dy = _run(pair, _average_gradient, dy)
    return dy


def _largest_gradient(x: Any, dy: Any, **how: Any) -> Any:
    # The largest is made again, not kept: oneDNN's gradient takes a tenth of the time
    # beside it.
    return _RAW.MaxPoolGrad(
        orig_input=x, orig_output=_RAW.MaxPool(input=x, **how), grad=dy, **how
    )


def _largest_picks(x: Any, z: Any, **how: Any) -> Any:
    return _RAW.MaxPoolGradGrad(
        orig_input=x, orig_output=_RAW.MaxPool(input=x, **how), grad=z, **how
    )


def _average_gradient(
    dy: Any, ksize: Sequence[int], strides: Sequence[int], padding: str
) -> Any:
    sizes = [(n - 1) * s + k for n, s, k in zip(dy.shape, strides, ksize)]
    return _RAW.AvgPoolGrad(
        orig_input_shape=sizes, grad=dy, ksize=ksize, strides=strides, padding=padding
    )


def _steps(slides: Slides, x: Any) -> list[Any]:
    """Returns x, and what is left after each pair of dimensions."""
    xs = [x]
    for pair in _pairs(slides):
        xs.append(_run(pair, lambda x, **how: _RAW.MaxPool(input=x, **how), xs[-1]))
    return xs


def _pairs(slides: Slides) -> list[tuple[int, Slides]]:
    """Returns the dimensions two by two, the last first, with the axis of the first of
    the two.
    """
    return [
        (1 + max(0, end - 2), slides[max(0, end - 2) : end])
        for end in range(len(slides), 0, -2)
    ]


def _run(pair: tuple[int, Slides], kernel: Any, *xs: Any) -> Any:
    """Runs a kernel on two axes, or on one and one of a single row."""
    axis, slides = pair
    rest = xs[0].shape.as_list()
    more = [1] * (2 - len(slides))
    flat = []
    for x in xs:
        sizes = x.shape.as_list()
        rows = sizes[axis : axis + len(slides)]
        flat.append(
            reshape(
                x,
                [
                    math.prod(sizes[:axis]),
                    *rows,
                    *more,
                    math.prod(sizes[axis + len(slides) :]),
                ],
            )
        )
    y = kernel(
        *flat,
        ksize=[1, *(s.taps for s in slides), *more, 1],
        strides=[1, *(s.stride for s in slides), *more, 1],
        padding="VALID",
    )
    return reshape(
        y, [*rest[:axis], *y.shape[1 : 1 + len(slides)], *rest[axis + len(slides) :]]
    )
