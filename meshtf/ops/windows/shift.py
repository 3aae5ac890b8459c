"""Elements moved along a dimension: shift fills with a value, roll wraps around.

    y = mtf.shift(x, "length", 1)              # y[i] = x[i - 1]; y[0] is zeros
    lap = mtf.roll(u, "x", 1) + mtf.roll(u, "x", -1) - 2.0 * u          # on a ring

Where the dimension is sharded, a device receives the elements that it lacks from the
shards that hold them (windows), and nothing else: one element from one neighbour for
each shift or roll above.
"""

from __future__ import annotations

import operator
from typing import Any

import tensorflow as tf

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    Sample,
    Spec,
    Specs,
    Tensor,
    Window,
    WindowedOp,
    apply,
)
from meshtf.names.arguments import as_number
from meshtf.ops.common.broadcasting import check_scalar
from meshtf.ops.common.checks import require_dim, tensor_along

_LARGE = 2**16  # elements: TensorFlow's kernel wakes other threads for fewer, too


class Shift(WindowedOp):
    """Element i is element i - by of the input, or `value` outside of it."""

    dim: str
    by: int
    value: float = 0
    samples = (
        Sample(("b", 1), ("a:4;b:8",)),
        Sample(("b", -3, -1.5), ("b:8;a:3",)),
        Sample(("b", 9), ("b:4",)),
        Sample(("a", -1, 7), ("int a:4;b:2",)),
        Sample(("a", 2, True), ("bool a:4",), gradient=False),
    )

    @property
    def linearity(self) -> Any:
        # The sum of shifted partial sums would have the value several times.
        return None if self.value else "joint"

    def output_specs(self, x: Spec) -> Specs:
        require_dim(x.shape, self.dim)
        check_scalar(self.value, x.dtype)
        return (x,)

    def window(self, input_index: int, dim: str) -> Window | None:
        if dim == self.dim:
            return _before(self.by, fill=self.value)
        return None

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        return (context.window(0, self.dim, x),)

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return [apply(Shift(self.dim, -self.by), dy)]


class Roll(WindowedOp):
    """Element i is element (i - by) modulo the size of the input."""

    dim: str
    by: int
    linearity = "joint"
    samples = (
        Sample(("b", 1), ("a:4;b:8",)),
        Sample(("b", -3), ("b:8;a:3",)),
        Sample(("b", 5), ("b:4",)),
        Sample(("a", -1), ("int a:4;b:2",)),
        Sample(("a", 2), ("bool a:4",), gradient=False),
    )

    def output_specs(self, x: Spec) -> Specs:
        require_dim(x.shape, self.dim)
        return (x,)

    def window(self, input_index: int, dim: str) -> Window | None:
        if dim == self.dim:
            return _before(self.by, wrap=True)
        return None

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        if context.num_shards(self.dim) > 1 or x.shape.num_elements() < _LARGE:
            return (context.window(0, self.dim, x),)
        return (
            tf.raw_ops.Roll(input=x, shift=[self.by], axis=[context.axis(0, self.dim)]),
        )

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return [apply(Roll(self.dim, -self.by), dy)]


def _before(by: int, wrap: bool = False, fill: float = 0.0) -> Window:
    """Returns the range `by` elements before, as the window to read."""
    return Window(lambda a: a - by, lambda b: b - by, wrap, fill)


def _as_shift(by: Any) -> int:
    """Returns `by` as an integer. Raises ShapeError."""
    try:
        return operator.index(by)
    except TypeError:
        raise ShapeError(
            explain_error(
                "elements are shifted by an integer, known when the program is built, "
                f"not by {by!r}.",
                way_out="To shift by the value of a tensor, use mtf.dynamic_shift.",
            )
        ) from None


def shift(x: Tensor, dim: str, by: int, fill: float = 0) -> Tensor:
    """Returns x [..., dim, ...] shifted along one dimension: element i is element i -
    by of x, or `fill`.

    Args:
      x: any tensor.
      dim: the name along which elements move.
      by: how far, towards higher indices; negative: towards lower ones. It may exceed
        the size.
      fill: the value of elements that nothing moves to.

    Raises:
      ShapeError: x lacks `dim`, or `by` is no integer.
      DTypeError: `fill` is no value of x's data type.
    """
    x, dim = tensor_along(x, dim)
    offset = _as_shift(by)
    size = x.shape[dim]
    value: Any = as_number("fill", fill)
    if x.dtype == "bool" and value in (0, 1):
        value = bool(value)
    if not offset:
        return x
    return apply(Shift(dim, max(-size, min(offset, size)), value), x)


def roll(x: Tensor, dim: str, by: int) -> Tensor:
    """Returns x [..., dim, ...] rolled along one dimension: element i is element (i -
    by) modulo its size.

    Args:
      x: any tensor.
      dim: the name along which elements move.
      by: how far, towards higher indices; negative: towards lower ones. It may exceed
        the size.

    Raises:
      ShapeError: x lacks `dim`, or `by` is no integer.
    """
    x, dim = tensor_along(x, dim)
    offset = _as_shift(by) % max(x.shape[dim], 1)
    if offset:
        return apply(Roll(dim, offset), x)
    return x
