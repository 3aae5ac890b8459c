"""Elements moved along a dimension: shift fills with a value, roll wraps around.

    y = mtf.shift(x, "length", 1)              # y[i] = x[i - 1]; y[0] is zeros
    laplacian = mtf.roll(u, "x", 1) + mtf.roll(u, "x", -1) - 2.0 * u    # on a ring

Where the dimension is sharded, a device receives only the elements that its shard lacks,
from the devices that hold them. In each shift or roll above, that is one element from one
neighbour. The method `window` of the op says which elements of x a shard of the result reads;
the runtime exchanges these before `local` runs.
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
from meshtf.ops.common.checks import require_dim, tensor_along
from meshtf.ops.shapes.slice import Slice, shifted_window

# From this number of elements on, TensorFlow's op for rolls is used: it wakes other threads
# even for few elements, which takes longer than slices.
_MIN_SIZE_OF_ROLL_OP = 2**16


class Roll(WindowedOp):
    """Element i of the output is element (i - by) of the input, modulo its size."""

    dim: str
    by: int
    linearity = "joint"  # op(a + b) = op(a) + op(b): partial sums stay partial sums
    conformance_samples = (
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
            return shifted_window(-self.by, wrap=True)
        return None

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        is_sharded = context.num_shards(self.dim) > 1
        if is_sharded or x.shape.num_elements() < _MIN_SIZE_OF_ROLL_OP:
            return (context.window(0, self.dim, x),)
        axis = context.axis(0, self.dim)  # in the shape of input 0
        return (tf.raw_ops.Roll(input=x, shift=[self.by], axis=[axis]),)

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        return [apply(Roll(self.dim, -self.by), dy)]


def _as_shift(by: Any) -> int:
    """Returns `by` as an integer. Raises ShapeError if it is none."""
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
    """Returns x [..., dim, ...] shifted along one dimension: element i is element i - by
    of x, or `fill` where x has no such element.

    Args:
      x: a tensor.
      dim: the name of the dimension along which elements move.
      by: the distance that elements move, in indices, towards higher ones; if it is
        negative, towards lower ones. It may exceed the size.
      fill: the value of elements to which no element moves.

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
    # A shift by the size or more leaves only `fill`.
    clipped_offset = max(-size, min(offset, size))
    return apply(Slice("shift", dim, -clipped_offset, size, value), x)


def roll(x: Tensor, dim: str, by: int) -> Tensor:
    """Returns x [..., dim, ...] rolled along one dimension: element i is element
    (i - by) modulo the size of the dimension.

    Args:
      x: a tensor.
      dim: the name of the dimension along which elements move.
      by: the distance that elements move, in indices, towards higher ones; if it is
        negative, towards lower ones. It may exceed the size.

    Raises:
      ShapeError: x lacks `dim`, or `by` is no integer.
    """
    x, dim = tensor_along(x, dim)
    modulus = max(x.shape[dim], 1)  # 1 for an empty dimension: modulo 0 is an error
    offset = _as_shift(by) % modulus
    if offset:
        return apply(Roll(dim, offset), x)
    return x
