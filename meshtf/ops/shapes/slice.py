"""Parts of tensors, and tensors put end to end: slice, pad, concat, chunk.

    y = mtf.slice(x, "length", 1, 7)                     # rows 1..7 of [batch, length:8]
    y = mtf.pad(y, "length", 0, 1)                       # and a row of zeros behind them
    q, k, v = mtf.chunk(x, "d", 3)
    x = mtf.concat([q, k, v], "d")

Where the dimension is cut, slice, pad and concat say which rows a slice reads
(windows), and only rows that a device lacks are moved; chunk takes it whole.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError
from meshtf.graph import (
    LocalContext,
    Op,
    Role,
    Sample,
    Spec,
    Tensor,
    Window,
    WindowedOp,
    apply,
    apply_all,
)
from meshtf.names import is_floating
from meshtf.names.arguments import as_dim, as_int, as_sequence
from meshtf.ops.common.checks import require_dim, tensor_along
from meshtf.ops.shapes.reshape import arrange, transpose
from meshtf.ops.shapes.stack import fill_gaps, require_alike

__all__ = ["chunk", "concat", "pad", "slice"]


@dataclasses.dataclass(frozen=True)
class Slice(WindowedOp):
    """Rows [begin, begin + size) of one dimension."""

    dim: str
    begin: int
    size: int
    linearity = "joint"
    samples = (
        Sample(("b", 2, 4), ("a:4;b:8",)),
        Sample(("b", 5, 2), ("b:8;a:3",)),
        Sample(("a", 1, 3), ("a:5;b:4",)),
        Sample(("a", 0, 4), ("int b:2;a:6",)),
    )

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
        require_dim(x.shape, self.dim)
        if not 0 <= self.begin <= self.begin + self.size <= x.shape[self.dim]:
            raise ShapeError(
                f"rows {self.begin} to {self.begin + self.size} are not all within "
                f"{x.shape.dim(self.dim)!r}."
            )
        return (Spec(x.shape.resize(self.dim, self.size), x.dtype),)

    def window(self, input_index: int, dim: str) -> Window | None:
        return _shifted(self.begin) if dim == self.dim else None

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        return (context.window(0, self.dim, x),)

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor) -> list[Tensor | None]:
        return [
            pad(dy, self.dim, self.begin, x.shape[self.dim] - self.begin - self.size)
        ]


class Pad(WindowedOp):
    """Rows of one value before and after one dimension."""

    dim: str
    before: int
    after: int
    value: float = 0.0
    samples = (
        Sample(("b", 2, 2), ("a:4;b:4",)),
        Sample(("b", 0, 5, -1.5), ("b:3;a:4",)),
        Sample(("a", 3, 1), ("a:4;b:3",)),
        Sample(("a", 1, 1, 7), ("int b:2;a:6",)),
        Sample(("a", 3, 1, 1.0), ("a:4;b:8",)),
    )

    @property
    def linearity(
        self,
    ) -> Any:  # a sum of padded parts would hold the value several times
        return None if self.value else "joint"

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
        require_dim(x.shape, self.dim)
        if self.before < 0 or self.after < 0:
            raise ShapeError(
                f"pad takes rows to add, not {self.before} and {self.after}: mtf.slice "
                "takes rows away."
            )
        if not is_floating(x.dtype) and not float(self.value).is_integer():
            raise DTypeError(f"{self.value} is no value of a tensor of {x.dtype}.")
        size = self.before + x.shape[self.dim] + self.after
        return (Spec(x.shape.resize(self.dim, size), x.dtype),)

    def window(self, input_index: int, dim: str) -> Window | None:
        return _shifted(-self.before, self.value) if dim == self.dim else None

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        return (context.window(0, self.dim, x),)

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor) -> list[Tensor | None]:
        return [slice(dy, self.dim, self.before, x.shape[self.dim])]


class Concat(WindowedOp):
    """Tensors one after another along one dimension, which has these sizes in them."""

    dim: str
    sizes: tuple[int, ...]
    linearity = "joint"
    samples = (
        Sample(("b", (4, 8)), ("a:4;b:4", "b:8;a:4")),
        Sample(("b", (3, 5)), ("b:3;a:2", "b:5;a:2")),
        Sample(("a", (2, 4, 2)), ("a:2;b:3", "a:4;b:3", "a:2;b:3")),
        Sample(("a", (4, 2)), ("int b:4;a:4", "int a:2;b:4")),
        Sample(("a", (4, 4)), ("bool a:4", "bool a:4"), gradient=False),
    )

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        for x in xs:
            require_dim(x.shape, self.dim)
        require_alike(xs, "concat", self.dim)
        return (Spec(xs[0].shape.resize(self.dim, sum(self.sizes)), xs[0].dtype),)

    def _begins(self) -> list[int]:
        return list(itertools.accumulate(self.sizes[:-1], initial=0))

    def window(self, input_index: int, dim: str) -> Window | None:
        return _shifted(-self._begins()[input_index]) if dim == self.dim else None

    def local(self, context: LocalContext, *xs: Any) -> tuple[Any, ...]:
        names = context.outputs[0].names
        axis = names.index(self.dim)
        whole = context.num_shards(self.dim) == 1
        if (
            not whole
        ):  # each input over all rows of this slice, of which it has some or none
            xs = tuple(context.window(i, self.dim, x) for i, x in enumerate(xs))
        xs = tuple(
            arrange(x, shape.names, names) for x, shape in zip(xs, context.inputs)
        )
        if whole:
            return (tf.concat(xs, axis),)
        row = tf.reshape(
            tf.range(context.local_size(self.dim)) + context.shard_offset(self.dim),
            [-1 if i == axis else 1 for i in range(len(names))],
        )
        y = xs[-1]
        for x, end in zip(xs[-2::-1], self._begins()[:0:-1]):
            y = tf.where(row < end, x, y)
        return (y,)

    def gradient(self, dy: Tensor, y: Tensor, *xs: Tensor) -> list[Tensor | None]:
        return [
            transpose(slice(dy, self.dim, begin, x.shape[self.dim]), x.shape)
            for begin, x in zip(self._begins(), xs)
        ]


class Chunk(Op):
    """Pieces of these sizes along one dimension."""

    dim: str
    sizes: tuple[int, ...]
    linearity = "joint"
    samples = (
        Sample(("b", (4, 4)), ("a:4;b:8",)),
        Sample(("b", (3, 5)), ("b:8;a:2",)),
        Sample(("a", (2, 2, 2)), ("int b:4;a:6",)),
    )

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
        require_dim(x.shape, self.dim)
        if sum(self.sizes) != x.shape[self.dim]:
            raise ShapeError(
                f"pieces of {', '.join(map(str, self.sizes))} rows do not make up "
                f"{x.shape.dim(self.dim)!r}."
            )
        return tuple(
            Spec(x.shape.resize(self.dim, size), x.dtype) for size in self.sizes
        )

    def role(self, factor: str) -> Role:
        return Role.WHOLE if factor == self.dim else Role.MAP

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        return tuple(tf.split(x, self.sizes, context.axis(0, self.dim)))

    def gradient(self, dy: Any, y: Any, x: Tensor) -> list[Tensor | None]:
        return [transpose(concat(fill_gaps(dy, y), self.dim), x.shape)]


def _shifted(by: int, fill: float = 0.0) -> Window:
    return Window(lambda a: a + by, lambda b: b + by, fill=fill)


def slice(x: Tensor, dim: str, begin: int, size: int) -> Tensor:
    """Returns rows [begin, begin + size) of one dimension of x.

    Raises:
      ShapeError: x lacks `dim`, or some of the rows.
    """
    x, dim = tensor_along(x, dim)
    begin, size = as_int("begin", begin), as_int("size", size)
    return (
        x
        if (begin, size) == (0, x.shape.get(dim, -1))
        else apply(Slice(dim, begin, size), x)
    )


def pad(x: Tensor, dim: str, before: int, after: int, value: float = 0.0) -> Tensor:
    """Returns x with rows of `value` before and after those of one dimension.

    Raises:
      ShapeError: x lacks `dim`, or a number of rows is negative.
      DTypeError: `value` is a fraction, and x is not floating.
    """
    x, dim = tensor_along(x, dim)
    before, after = as_int("before", before), as_int("after", after)
    return apply(Pad(dim, before, after, value), x) if before or after else x


def concat(xs: Sequence[Tensor], dim: str) -> Tensor:
    """Returns tensors one after another along `dim`; the order of dimensions is the
    first one's.

    Raises:
      ShapeError: there are no tensors, or they differ in more than the size of `dim`.
      DTypeError: their data types differ.
    """
    xs = as_sequence("xs", xs, "a list of tensors")
    if not xs:
        raise ShapeError("concat takes at least one tensor.")
    xs = [tensor_along(x, dim, "xs")[0] for x in xs]
    dim = as_dim("dim", dim)
    return (
        apply(Concat(dim, tuple(x.shape[dim] for x in xs)), *xs)
        if len(xs) > 1
        else xs[0]
    )


def chunk(x: Tensor, dim: str, sizes: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Returns pieces of x along `dim`: so many equal ones, or pieces of these sizes.

    Raises:
      ShapeError: x lacks `dim`, or the pieces do not make it up.
    """
    x, dim = tensor_along(x, dim)
    if isinstance(sizes, int):
        if sizes < 1 or x.shape[dim] % sizes:
            raise ShapeError(
                f"{x.shape.dim(dim)!r} cannot be split into {sizes} equal parts."
            )
        sizes = [x.shape[dim] // sizes] * sizes
    sizes = [
        as_int("sizes", size)
        for size in as_sequence("sizes", sizes, "a number, or sizes")
    ]
    return (
        (x,)
        if list(sizes) == [x.shape[dim]]
        else apply_all(Chunk(dim, tuple(sizes)), x)
    )
