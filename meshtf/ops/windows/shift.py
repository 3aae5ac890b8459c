"""Rows moved along a dimension: shift, and roll, where what leaves one end comes in at
the other.

    y = mtf.shift(x, "length", 1)              # y[i] = x[i - 1]; row 0 is zeros
    lap = mtf.roll(u, "x", 1) + mtf.roll(u, "x", -1) - 2.0 * u          # on a ring

Where the dimension is cut, a device gets the rows that it lacks from the slices that
have them (windows), and nothing else is moved: one row from one neighbour in both lines
above.
"""

from __future__ import annotations

import operator
from typing import Any

import tensorflow as tf

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import (
    LocalContext,
    Sample,
    Spec,
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
    """Row i is row i - by of the input; `value` where there is none."""

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
    def linearity(
        self,
    ) -> Any:  # a sum of shifted parts would hold the value several times
        return None if self.value else "joint"

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
        require_dim(x.shape, self.dim)
        check_scalar(self.value, x.dtype)
        return (x,)

    def window(self, input_index: int, dim: str) -> Window | None:
        return _before(self.by, fill=self.value) if dim == self.dim else None

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        return (context.window(0, self.dim, x),)

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor) -> list[Tensor | None]:
        return [apply(Shift(self.dim, -self.by), dy)]


class Roll(WindowedOp):
    """Row i is row i - by of the input, counted around."""

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

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
        require_dim(x.shape, self.dim)
        return (x,)

    def window(self, input_index: int, dim: str) -> Window | None:
        return _before(self.by, wrap=True) if dim == self.dim else None

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        if context.num_shards(self.dim) > 1 or x.shape.num_elements() < _LARGE:
            return (context.window(0, self.dim, x),)
        return (
            tf.raw_ops.Roll(input=x, shift=[self.by], axis=[context.axis(0, self.dim)]),
        )

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor) -> list[Tensor | None]:
        return [apply(Roll(self.dim, -self.by), dy)]


def _before(by: int, wrap: bool = False, fill: float = 0.0) -> Window:
    return Window(lambda a: a - by, lambda b: b - by, wrap, fill)


def _number_of_rows(by: Any) -> int:
    try:
        return operator.index(by)
    except TypeError:
        raise ShapeError(
            explain_error(
                "rows are moved by a whole number, known when the program is made, not "
                f"by {by!r}.",
                way_out="By a tensor's value moves mtf.dynamic_shift.",
            )
        ) from None


def shift(x: Tensor, dim: str, by: int, fill: float = 0) -> Tensor:
    """Returns x moved along one dimension: row i is row i - by of x, `fill` where there
    is none.

    Args:
      x: any tensor.
      dim: the name along which rows move.
      by: how far, towards higher numbers; negative: towards lower ones. Any number will
        do.
      fill: what stands in rows that nothing moves to.

    Raises:
      ShapeError: x lacks `dim`, or `by` is no whole number.
      DTypeError: `fill` is no value of x's data type.
    """
    x, dim = tensor_along(x, dim)
    rows, size = _number_of_rows(by), x.shape[dim]
    value: Any = as_number("fill", fill)
    value = bool(value) if x.dtype == "bool" and value in (0, 1) else value
    return apply(Shift(dim, max(-size, min(rows, size)), value), x) if rows else x


def roll(x: Tensor, dim: str, by: int) -> Tensor:
    """Returns x moved around along one dimension: row i is row (i - by) modulo the size
    of x.

    Args:
      x: any tensor.
      dim: the name along which rows move.
      by: how far, towards higher numbers; negative: towards lower ones. Any number will
        do.

    Raises:
      ShapeError: x lacks `dim`, or `by` is no whole number.
    """
    x, dim = tensor_along(x, dim)
    rows = _number_of_rows(by) % max(x.shape[dim], 1)
    return apply(Roll(dim, rows), x) if rows else x
