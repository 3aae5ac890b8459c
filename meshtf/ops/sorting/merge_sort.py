"""Sorting of slices that stay where they are: neighbours merge theirs in turns.

    slices      [7 8] [3 9] [1 2]       each sorted by itself
    turn 0      [3 7] [8 9] [1 2]       slices 0 and 1 merge: the left keeps the smaller half
    turn 1      [3 7] [1 2] [8 9]       1 and 2
    turn 2      [1 2] [3 7] [8 9]       0 and 1: with so many turns as slices all are in order

This is odd-even transposition sort with merge-splitting (Baudet and Stevenson 1978). In
each turn a device gets one slice, its partner's, by a window. Nothing here asks how
many devices there are: the dimension is reshaped to blocks and rows, and a cut of it is
a cut of the blocks.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

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
from meshtf.names import Dimension
from meshtf.ops.elementwise.arithmetic import add, multiply
from meshtf.ops.indexing.gather import range as rows_of
from meshtf.ops.indexing.gather import take_along
from meshtf.ops.shapes.reshape import arrange, reshape, split_dim
from meshtf.ops.sorting.sort_op import Reorder, Sort, sorted_rows

BLOCKS, ROWS = ".blocks", ".rows"  # no layout can name them


class MergeSplit(WindowedOp):
    """Pairs of neighbouring blocks (0 1)(2 3), odd: (1 2)(3 4), each pair sorted by its
    keys.

    The further inputs are put into the order of the keys. What has gradients is told by
    `Carried`.
    """

    blocks: str
    rows: str
    odd: bool
    descending: bool = False
    share_trace = True
    samples = (
        Sample(("b", "r", False), ("ties b:4;r:2", "int b:4;r:2"), gradient=False),
        Sample(("b", "r", True), ("ties a:2;b:4;r:3", "b:4;r:3;a:2"), gradient=False),
        Sample(("b", "r", True, True), ("int r:2;b:6", "int r:2;b:6"), gradient=False),
        Sample(("b", "r", False), ("int b:6;r:1",), gradient=False),
    )

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        return xs

    def role(self, factor: str) -> Role:
        return Role.WHOLE if factor == self.rows else Role.MAP

    def window(self, input_index: int, dim: str) -> Window | None:
        if dim != self.blocks:
            return None
        return Window(
            lambda a: a - (a + self.odd) % 2, lambda b: b + (b + self.odd) % 2
        )

    def local(self, context: LocalContext, *xs: Any) -> tuple[Any, ...]:
        rest = [n for n in context.inputs[0].names if n not in (self.blocks, self.rows)]
        order = [*rest, self.blocks, self.rows]
        xs = tuple(
            arrange(context.window(i, self.blocks, x), s.names, order)
            for i, (x, s) in enumerate(zip(xs, context.inputs))
        )
        pairs = [
            tf.reshape(x, [*x.shape[:-2], x.shape[-2] // 2, 2 * x.shape[-1]])
            for x in xs
        ]
        keys, places = sorted_rows(pairs[0], self.descending)
        merged = [
            keys,
            *(tf.gather(p, places, batch_dims=len(order) - 1) for p in pairs[1:]),
        ]
        number = context.shard_offset(self.blocks) + tf.range(
            context.local_size(self.blocks)
        )
        partner = number + 1 - 2 * ((number + self.odd) % 2)
        alone = ((partner < 0) | (partner >= context.global_size(self.blocks)))[:, None]
        first, size = (
            (context.shard_offset(self.blocks) + self.odd) % 2,
            context.local_size(self.blocks),
        )
        ys = [
            tf.where(
                alone, _own(x, first, size), _own(tf.reshape(m, x.shape), first, size)
            )
            for x, m in zip(xs, merged)
        ]
        return tuple(arrange(y, order, s.names) for y, s in zip(ys, context.outputs))

    def gradient(self, dys: Any, ys: Any, *xs: Tensor) -> list[Tensor | None]:
        return [None] * len(xs)


def _own(x: Any, first: Any, size: int) -> Any:
    """Returns this slice's blocks of a window."""
    return tf.slice(
        x, [0] * (len(x.shape) - 2) + [first, 0], [*x.shape[:-2], size, x.shape[-1]]
    )


class Carried(Op):
    """y, of which is known that it is x in this order: for its gradient, which goes to
    x alone.

    back: y is x put back from this order.
    """

    dim: str
    blocks: int
    back: bool = False
    samples = (Sample(("d", 2), ("b:2;d:4", "b:2;d:4", "int b:2;d:4"), gradient=False),)

    def output_specs(self, x: Spec, y: Spec, order: Spec) -> tuple[Spec, ...]:
        return (y,)

    def local(
        self, context: LocalContext, x: Any, y: Any, order: Any
    ) -> tuple[Any, ...]:
        return (y,)

    def gradient(
        self, dz: Tensor, z: Tensor, x: Tensor, y: Tensor, order: Tensor
    ) -> list[Tensor | None]:
        back = (
            take_along(dz, order, self.dim)
            if self.back
            else _put_back(dz, order, self.dim, self.blocks)
        )
        return [back, None, None]

    def flops(self, *xs: Spec) -> int:
        return 0


def merge_sorted(
    x: Tensor, dim: str, blocks: int, descending: bool
) -> tuple[Tensor, Tensor]:
    """Returns x in order along `dim`, and the row from which each element came.

    Args:
      x: floats or integers.
      dim: the name along which rows are sorted.
      blocks: into how many slices it is cut, which divides its size.
      descending: whether the largest comes first.
    """
    keys, rows = apply_all(Sort(ROWS, descending), _in_blocks(x, dim, blocks))
    assert x.mesh is not None
    first = multiply(rows_of(x.mesh, Dimension(BLOCKS, blocks)), x.shape[dim] // blocks)
    y, order = (
        reshape(z, x.shape) for z in _merged(keys, add(rows, first), descending)
    )
    return apply(Carried(dim, blocks), x, y, order), order


def _put_back(y: Tensor, order: Tensor, dim: str, blocks: int) -> Tensor:
    """Returns x, where y is x in this order: y sorted by the rows from which
    it came.
    """
    keys, places = apply_all(Sort(ROWS), _in_blocks(order, dim, blocks))
    _, x = _merged(
        keys, apply(Reorder(ROWS), _in_blocks(y, dim, blocks), places), False
    )
    return apply(Carried(dim, blocks, back=True), y, reshape(x, y.shape), order)


def _in_blocks(x: Tensor, dim: str, blocks: int) -> Tensor:
    return split_dim(
        x, dim, [Dimension(BLOCKS, blocks), Dimension(ROWS, x.shape[dim] // blocks)]
    )


def _merged(keys: Tensor, others: Tensor, descending: bool) -> tuple[Tensor, ...]:
    """Returns sorted blocks sorted as a whole."""
    blocks = keys.shape[BLOCKS]
    for turn in range(blocks if blocks > 2 else 1):
        keys, others = apply_all(
            MergeSplit(BLOCKS, ROWS, bool(turn % 2), descending), keys, others
        )
    return keys, others
