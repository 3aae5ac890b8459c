"""Slices, padding and concatenation along a dimension: slice, pad, concat, chunk.

    y = mtf.slice(x, "length", begin=1, size=7)          # elements 1 to 7 of [batch, length:8]
    y = mtf.pad(y, "length", before=0, after=1)          # and one zero after them
    q, k, v = mtf.chunk(x, "d", 3)
    x = mtf.concat([q, k, v], "d")

Where the dimension is sharded, slice, pad and concat declare the range of elements that a
shard reads (a window), and a device receives only the elements that it lacks. chunk gathers
the dimension.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError
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
    apply_all,
)
from meshtf.names import is_floating
from meshtf.names.arguments import as_dim, as_int, as_sequence
from meshtf.ops.common.broadcasting import check_scalar
from meshtf.ops.common.checks import require_dim, tensor_along
from meshtf.ops.common.op_bases import _NeedsWholeDim
from meshtf.ops.shapes.reshape import arrange, transpose
from meshtf.ops.shapes.stack import fill_gaps, require_alike

__all__ = ["chunk", "concat", "pad", "slice"]


class Slice(WindowedOp):
    """Elements [begin, begin + size) of one dimension, or `value` where x has no such
    element.

    A `WindowedOp` declares the range of input elements that a shard of the output needs, its
    window, and `context.window` returns them, with those that other devices have sent.

    Attributes:
      fn: "slice", which takes elements of x only; "pad", which takes them all; or "shift".
      dim: the dimension.
      begin: the index in x of the first element.
      size: the number of elements.
      value: the value of elements that x does not have.
    """

    fn: str
    dim: str
    begin: int
    size: int
    value: float = 0
    # Test inputs: the attributes (fn, dim, begin, size, value), then the input's kind of values
    # and shape.
    conformance_samples = (
        Sample(("slice", "b", 2, 4), ("a:4;b:8",)),
        Sample(("slice", "b", 5, 2), ("b:8;a:3",)),
        Sample(("slice", "a", 1, 3), ("a:5;b:4",)),
        Sample(("slice", "a", 0, 4), ("int b:2;a:6",)),
        Sample(("pad", "b", -2, 8), ("a:4;b:4",)),
        Sample(("pad", "b", 0, 8, -1.5), ("b:3;a:4",)),
        Sample(("pad", "a", -3, 8), ("a:4;b:3",)),
        Sample(("pad", "a", -1, 8, 7), ("int b:2;a:6",)),
        Sample(("pad", "a", -3, 8, 1.0), ("a:4;b:8",)),
        Sample(("shift", "b", -1, 8), ("a:4;b:8",)),
        Sample(("shift", "b", 3, 8, -1.5), ("b:8;a:3",)),
        Sample(("shift", "b", -9, 4), ("b:4",)),
        Sample(("shift", "b", -2, 7, 1.5), ("b:7;a:3",)),
        Sample(("shift", "b", 1, 5, 1.5), ("a:2;b:5",)),
        Sample(("shift", "a", 1, 4, 7), ("int a:4;b:2",)),
        Sample(("shift", "a", -2, 4, True), ("bool a:4",), gradient=False),
    )

    @property
    def display_name(self) -> str:
        return self.fn

    @property
    def linearity(self) -> Any:
        # If x were a partial sum on each device, the sum of the outputs would contain `value`
        # once for each device.
        return None if self.value else "joint"

    def output_specs(self, x: Spec) -> Specs:
        require_dim(x.shape, self.dim)
        end = self.begin + self.size
        after = end - x.shape[self.dim]
        if self.fn == "slice" and not 0 <= self.begin <= end <= x.shape[self.dim]:
            raise ShapeError(
                f"elements {self.begin} to {end} are not all within "
                f"{x.shape.dim(self.dim)!r}."
            )
        if self.fn == "pad" and (self.begin > 0 or after < 0):
            raise ShapeError(
                "pad adds zero or more elements before and after, not "
                f"{-self.begin} and {after}: mtf.slice removes elements."
            )
        if self.fn == "shift":
            check_scalar(self.value, x.dtype)
        elif not is_floating(x.dtype) and not float(self.value).is_integer():
            raise DTypeError(f"{self.value} is no value of a tensor of {x.dtype}.")
        return (Spec(x.shape.resize(self.dim, self.size), x.dtype),)

    def window(self, input_index: int, dim: str) -> Window | None:
        if dim == self.dim:
            return shifted_window(self.begin, fill=self.value)
        return None

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        return (context.window(0, self.dim, x),)  # of input 0

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor) -> Cotangents:
        inverse = {"slice": "pad", "pad": "slice", "shift": "shift"}[self.fn]
        size = x.shape[self.dim]
        back = Slice(inverse, self.dim, -self.begin, size)
        return [apply(back, dy)]


class Concat(WindowedOp):
    """Tensors concatenated along one dimension.

    Attributes:
      dim: the dimension.
      sizes: the size of the dimension in each input.
    """

    dim: str
    sizes: tuple[int, ...]
    linearity = "joint"  # if all inputs are partial sums, so is the output
    # Attributes: (dim, sizes).
    conformance_samples = (
        Sample(("b", (4, 8)), ("a:4;b:4", "b:8;a:4")),
        Sample(("b", (3, 5)), ("b:3;a:2", "b:5;a:2")),
        Sample(("a", (2, 4, 2)), ("a:2;b:3", "a:4;b:3", "a:2;b:3")),
        Sample(("a", (4, 2)), ("int b:4;a:4", "int a:2;b:4")),
        Sample(("a", (4, 4)), ("bool a:4", "bool a:4"), gradient=False),
    )

    def output_specs(self, *xs: Spec) -> Specs:
        for x in xs:
            require_dim(x.shape, self.dim)
        require_alike(xs, "concat", self.dim)
        shape = xs[0].shape.resize(self.dim, sum(self.sizes))
        return (Spec(shape, xs[0].dtype),)

    def _begins(self) -> list[int]:
        """Returns the index at which each input begins in the output."""
        return list(itertools.accumulate(self.sizes[:-1], initial=0))

    def window(self, input_index: int, dim: str) -> Window | None:
        if dim == self.dim:
            begin = self._begins()[input_index]
            return shifted_window(-begin)
        return None

    def local(self, context: LocalContext, *xs: Any) -> LocalTensors:
        names = context.outputs[0].names
        axis = names.index(self.dim)
        is_sharded = context.num_shards(self.dim) > 1
        arranged_xs = []
        for i, x in enumerate(xs):
            if is_sharded:
                # The elements of x in this device's range of the output; 0 where x has none.
                x = context.window(i, self.dim, x)
            arranged_xs.append(arrange(x, context.inputs[i].names, names))
        if not is_sharded:
            return (tf.concat(arranged_xs, axis),)
        # Each element of the output is selected from the input that has its global index.
        index_shape = [1] * len(names)
        index_shape[axis] = -1
        local_index = tf.range(context.local_size(self.dim))
        index = tf.reshape(local_index + context.shard_offset(self.dim), index_shape)
        y = arranged_xs[0]
        for x, begin in zip(arranged_xs[1:], self._begins()[1:]):
            y = tf.where(index < begin, y, x)
        return (y,)

    def gradient(self, dy: Tensor, y: Tensor, *xs: Tensor) -> Cotangents:
        dxs = []
        for begin, x in zip(self._begins(), xs):
            dx = slice(dy, self.dim, begin, size=x.shape[self.dim])
            dxs.append(transpose(dx, x.shape))
        return dxs


class Chunk(_NeedsWholeDim):
    """Chunks of the given sizes along one dimension, one output for each."""

    sizes: tuple[int, ...]
    linearity = "joint"  # if the input is a partial sum, so are the outputs
    # Attributes: (dim, sizes).
    conformance_samples = (
        Sample(("b", (4, 4)), ("a:4;b:8",)),
        Sample(("b", (3, 5)), ("b:8;a:2",)),
        Sample(("a", (2, 2, 2)), ("int b:4;a:6",)),
    )

    def output_specs(self, x: Spec) -> Specs:
        require_dim(x.shape, self.dim)
        if sum(self.sizes) != x.shape[self.dim]:
            raise ShapeError(
                f"chunks of sizes {', '.join(map(str, self.sizes))} do not make up "
                f"{x.shape.dim(self.dim)!r}."
            )
        return tuple(
            Spec(x.shape.resize(self.dim, size), x.dtype) for size in self.sizes
        )

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        axis = context.axis(0, self.dim)  # in the shape of input 0
        return tuple(tf.split(x, self.sizes, axis))

    def gradient(self, dy: Any, y: Any, x: Tensor) -> Cotangents:
        return [transpose(concat(fill_gaps(dy, y), self.dim), x.shape)]


def shifted_window(by: int, wrap: bool = False, fill: float = 0.0) -> Window:
    """Returns the window of an op whose element i reads element i + by of an input.

    Args:
      by: the distance in elements.
      wrap: whether elements beyond one end are those of the other end, and not `fill`.
      fill: the value of elements beyond the ends.
    """
    return Window(low=lambda a: a + by, high=lambda b: b + by, wrap=wrap, fill=fill)


def slice(x: Tensor, dim: str, begin: int, size: int) -> Tensor:
    """Returns elements [begin, begin + size) of one dimension of x: [..., dim, ...] ->
    [..., size, ...].

    Args:
      x: a tensor or variable.
      dim: the name of the dimension; the result has it too, with another size.
      begin: the index of the first element.
      size: the number of elements.

    Raises:
      ShapeError: x lacks `dim`, or an element is out of range.
    """
    x, dim = tensor_along(x, dim)
    begin = as_int("begin", begin)
    size = as_int("size", size)
    if begin == 0 and size == x.shape.get(dim, -1):
        return x
    return apply(Slice("slice", dim, begin, size), x)


def pad(x: Tensor, dim: str, before: int, after: int, value: float = 0.0) -> Tensor:
    """Returns x with elements of `value` before and after those of one dimension:
    [..., dim, ...] -> [..., before + dim + after, ...].

    Args:
      x: a tensor or variable.
      dim: the name of the dimension.
      before: the number of elements that are added before the first one.
      after: the number of elements that are added after the last one.
      value: the value of the added elements.

    Raises:
      ShapeError: x lacks `dim`, or `before` or `after` is negative.
      DTypeError: `value` is a fraction, and x is not floating.
    """
    x, dim = tensor_along(x, dim)
    before = as_int("before", before)
    after = as_int("after", after)
    if before or after:
        size = before + x.shape[dim] + after
        return apply(Slice("pad", dim, -before, size, value), x)
    return x


def concat(xs: Sequence[Tensor], dim: str) -> Tensor:
    """Returns tensors [..., dim, ...] concatenated along `dim`, with dimensions in the
    order of the first tensor.

    Args:
      xs: the tensors, with the same dimensions, in any order, except for the size of `dim`.
      dim: the name of the dimension.

    Raises:
      ShapeError: there are no tensors, or they differ in more than the size of `dim`.
      DTypeError: their data types differ.
    """
    xs = as_sequence("xs", xs, "a list of tensors")
    if not xs:
        raise ShapeError("concat takes at least one tensor.")
    tensors = []
    for x in xs:
        tensor, _dim_name = tensor_along(x, dim, "xs")
        tensors.append(tensor)
    dim = as_dim("dim", dim)
    if len(tensors) == 1:
        return tensors[0]
    sizes = tuple(x.shape[dim] for x in tensors)
    return apply(Concat(dim, sizes), *tensors)


def chunk(x: Tensor, dim: str, sizes: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Returns consecutive chunks [..., dim, ...] of x along `dim`.

    Args:
      x: a tensor or variable.
      dim: the name of the dimension.
      sizes: the size of each chunk, or the number of chunks of equal size.

    Raises:
      ShapeError: x lacks `dim`, or the sizes do not sum to its size.
    """
    x, dim = tensor_along(x, dim)
    if isinstance(sizes, int):
        if sizes < 1 or x.shape[dim] % sizes:
            raise ShapeError(
                f"{x.shape.dim(dim)!r} cannot be split into {sizes} equal parts."
            )
        sizes = [x.shape[dim] // sizes] * sizes
    sizes = as_sequence("sizes", sizes, "a number, or sizes")
    sizes = [as_int("sizes", size) for size in sizes]
    if sizes == [x.shape[dim]]:
        return (x,)
    return apply_all(Chunk(dim, tuple(sizes)), x)
